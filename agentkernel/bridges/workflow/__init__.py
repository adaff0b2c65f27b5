"""Workflows: a Python function that has many agents do its work, and can be resumed."""

from .agents import WorkflowRun as WorkflowRun
from .flow import Flow as Flow
from .record import (
    WorkflowEnding as WorkflowEnding,
    workflow_ending as workflow_ending,
)
from .run import (
    WorkflowOptions as WorkflowOptions,
    WorkflowResult as WorkflowResult,
    run_workflow as run_workflow,
)
from .tool import WorkflowFunction as WorkflowFunction, WorkflowTool as WorkflowTool
from .values import (
    Progress as Progress,
    WorkflowAgentError as WorkflowAgentError,
    WorkflowLimitError as WorkflowLimitError,
    WorkflowLimits as WorkflowLimits,
    WorkflowRecordError as WorkflowRecordError,
)
