"""agentkernel: a Trio structured-concurrency kernel for LLM agents."""

from ._errors import (
    AgentBusyError as AgentBusyError,
    AgentDisposedError as AgentDisposedError,
    AgentKernelError as AgentKernelError,
    KernelClosedError as KernelClosedError,
    MaintenanceCancelled as MaintenanceCancelled,
    MessageConflictError as MessageConflictError,
    MessageNotPendingError as MessageNotPendingError,
    ModelError as ModelError,
    OwnTurnError as OwnTurnError,
    SessionBusyError as SessionBusyError,
    SessionDisplacedError as SessionDisplacedError,
    SessionExistsError as SessionExistsError,
    SessionFormatError as SessionFormatError,
    SessionNotFoundError as SessionNotFoundError,
    StorageError as StorageError,
    ToolArgumentsError as ToolArgumentsError,
    TurnCancelled as TurnCancelled,
    UnknownNameError as UnknownNameError,
    WrongThreadError as WrongThreadError,
)
from ._json import (
    JsonObject as JsonObject,
    JsonValue as JsonValue,
    clean_text as clean_text,
    freeze as freeze,
)
from ._loop.agent import Agent as Agent
from ._loop.ask import (
    Reply as Reply,
    ReplyEvents as ReplyEvents,
    ReplyText as ReplyText,
)
from ._loop.block import open_kernel as open_kernel
from ._loop.dispatch import current_agent as current_agent
from ._loop.failure import describe_error as describe_error
from ._loop.handle import AgentHandle as AgentHandle
from ._loop.inbox import Inbox as Inbox
from ._loop.kernel import Kernel as Kernel
from ._loop.options import AgentOptions as AgentOptions
from ._loop.outcome import Outcome as Outcome
from ._loop.payload import (
    AgentCreated as AgentCreated,
    AgentDisposed as AgentDisposed,
    AgentStuck as AgentStuck,
    Allow as Allow,
    Appended as Appended,
    Approve as Approve,
    Ask as Ask,
    Assemble as Assemble,
    Blocker as Blocker,
    CancelRequested as CancelRequested,
    Deny as Deny,
    Enter as Enter,
    ErrorReported as ErrorReported,
    Execute as Execute,
    Fail as Fail,
    InboxClaimed as InboxClaimed,
    InboxDiscarded as InboxDiscarded,
    InboxInserted as InboxInserted,
    Next as Next,
    Notification as Notification,
    PostExecute as PostExecute,
    PreExecute as PreExecute,
    PreStep as PreStep,
    Reject as Reject,
    Request as Request,
    RequestError as RequestError,
    Retry as Retry,
    Serial as Serial,
    SessionStarted as SessionStarted,
    StatusChanged as StatusChanged,
    TurnStopping as TurnStopping,
    Waterfall as Waterfall,
)
from ._loop.prompt import Prompt as Prompt, Section as Section
from ._loop.registry import (
    ModelRegistry as ModelRegistry,
    Registry as Registry,
    ToolRegistry as ToolRegistry,
)
from ._loop.verbs import CancelReceipt as CancelReceipt, Sent as Sent
from ._messages import (
    AssistantMessage as AssistantMessage,
    BinaryBlock as BinaryBlock,
    Blob as Blob,
    Chunk as Chunk,
    FinishChunk as FinishChunk,
    FinishReason as FinishReason,
    Message as Message,
    Note as Note,
    ReasoningBlock as ReasoningBlock,
    ReasoningChunk as ReasoningChunk,
    ReasoningEndChunk as ReasoningEndChunk,
    TextBlock as TextBlock,
    TextChunk as TextChunk,
    ToolCall as ToolCall,
    ToolCallChunk as ToolCallChunk,
    ToolFailure as ToolFailure,
    ToolResult as ToolResult,
    ToolResults as ToolResults,
    ToolSpec as ToolSpec,
    Usage as Usage,
    UsageChunk as UsageChunk,
    UserMessage as UserMessage,
)
from ._session.codec import (
    decode_event as decode_event,
    encode_event as encode_event,
)
from ._session.events import (
    ApprovalAsked as ApprovalAsked,
    ApprovalDecided as ApprovalDecided,
    AssistantReplied as AssistantReplied,
    ChunkStreamed as ChunkStreamed,
    Ending as Ending,
    Extension as Extension,
    Fact as Fact,
    HookInvoked as HookInvoked,
    HookReturned as HookReturned,
    InboxSpliced as InboxSpliced,
    Lineage as Lineage,
    MessageEntered as MessageEntered,
    RequestConfigured as RequestConfigured,
    RetryScheduled as RetryScheduled,
    SessionEvent as SessionEvent,
    SessionHeader as SessionHeader,
    StepEnded as StepEnded,
    StepStarted as StepStarted,
    SubagentDescribed as SubagentDescribed,
    ToolCalled as ToolCalled,
    ToolReturned as ToolReturned,
    TurnEnded as TurnEnded,
    TurnStarted as TurnStarted,
)
from ._session.fold import MessageRecord as MessageRecord
from ._session.history import (
    STOP_NOTE as STOP_NOTE,
    MessageView as MessageView,
)
from ._session.session import Session as Session
from ._session.subscription import (
    Cursor as Cursor,
    Gap as Gap,
    Reset as Reset,
    Subscription as Subscription,
)
from ._signal import (
    PARENT as PARENT,
    USER as USER,
    CancelCause as CancelCause,
    StopReason as StopReason,
    TurnSignal as TurnSignal,
)
from ._util import fix_module_metadata as _fix
from .abc import (
    Append as Append,
    Claim as Claim,
    EpochStart as EpochStart,
    Model as Model,
    ModelRequest as ModelRequest,
    SessionInfo as SessionInfo,
    SessionStore as SessionStore,
    Tool as Tool,
    ToolInvocation as ToolInvocation,
    ToolOutput as ToolOutput,
)
from .stores import (
    JsonlStore as JsonlStore,
    MemoryStore as MemoryStore,
    SqliteStore as SqliteStore,
)

_fix(__name__, globals())
del _fix
