"""Tools: typed Python functions, processes, a workspace folder, approval policies.

Everything here stands above the kernel and uses its public surface only. Importing it
imports no more than the kernel and the standard library.
"""

from .approval import (
    Action as Action,
    Decision as Decision,
    Policy as Policy,
    Rule as Rule,
    Syntax as Syntax,
)
from .environment import scrubbed_environment as scrubbed_environment
from .folder import WorkspaceError as WorkspaceError
from .function import (
    THREADS_PER_TOOL as THREADS_PER_TOOL,
    FunctionTool as FunctionTool,
    ToolOptions as ToolOptions,
    tool as tool,
)
from .isolated import IsolatedCallError as IsolatedCallError
from .output import BoundedOutput as BoundedOutput, Captured as Captured
from .process import (
    CommandResult as CommandResult,
    ProcessGroup as ProcessGroup,
    ProcessLimits as ProcessLimits,
    Stderr as Stderr,
    Survivor as Survivor,
    open_process_group as open_process_group,
    run_command as run_command,
)
from .workspace import (
    READING as READING,
    WORKSPACE as WORKSPACE,
    workspace_tools as workspace_tools,
)
