"""Tools to test agents, and what is plugged into a kernel, without chance or time."""

from .models import (
    EOF as EOF,
    Gate as Gate,
    ScriptedModel as ScriptedModel,
    call as call,
)
