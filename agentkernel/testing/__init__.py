"""Tools to test agents, and what is plugged into a kernel, without chance or time."""

from .faulty import (
    FaultyStore as FaultyStore,
    Hold as Hold,
)
from .models import (
    EOF as EOF,
    Gate as Gate,
    ScriptedModel as ScriptedModel,
    call as call,
)
from .stores import check_store as check_store
