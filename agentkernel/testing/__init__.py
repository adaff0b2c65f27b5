"""Tools to test agents, and what is plugged into a kernel, without chance or time.

A state machine is in `agentkernel.testing.machine`, which needs Hypothesis.
"""

from .cancellation import (
    Act as Act,
    Point as Point,
    Sweep as Sweep,
    cancel_and_keep as cancel_and_keep,
    cancel_broadly as cancel_broadly,
    cancel_everywhere as cancel_everywhere,
    cancel_scope as cancel_scope,
    cancel_then_send as cancel_then_send,
    dispose as dispose,
    play as play,
)
from .faulty import FaultyStore as FaultyStore, Hold as Hold
from .log_check import LogReport as LogReport, check_log as check_log
from .machine_host import Host as Host
from .model_check import check_model as check_model
from .models import (
    EOF as EOF,
    Gate as Gate,
    ScriptedModel as ScriptedModel,
    call as call,
)
from .schedules import (
    Runs as Runs,
    check_schedules as check_schedules,
    mark as mark,
    run_under_schedules as run_under_schedules,
)
from .settled import check_messages as check_messages
from .stage import (
    Scenario as Scenario,
    Stage as Stage,
    install_yielding_listeners as install_yielding_listeners,
)
from .stores import check_store as check_store
from .tool_check import check_tool as check_tool
