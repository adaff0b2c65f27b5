"""Tools: typed Python functions, processes, a workspace folder, approval policies."""

from .function import (
    THREADS_PER_TOOL as THREADS_PER_TOOL,
    FunctionTool as FunctionTool,
    ToolOptions as ToolOptions,
    tool as tool,
)
from .isolated import IsolatedCallError as IsolatedCallError
from .process import (
    CommandResult as CommandResult,
    ProcessGroup as ProcessGroup,
    ProcessLimits as ProcessLimits,
    Survivor as Survivor,
    open_process_group as open_process_group,
    run_command as run_command,
)
