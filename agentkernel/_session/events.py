"""The durable vocabulary: one frozen class for each kind of fact in a session.

An event is an envelope (`SessionEvent`: number, time) around one fact. The wire
name of a fact is its class's `TYPE`; the codec writes
`{"seq", "time", "type", "data", "ignorable"?}`.

Which facts a session may hold is closed: the kernel appends its own, bridges append
the `approval/…`, `hook/…` and `subagent/…` ones, and anything else travels as an
`Extension`, which is always ignorable.

Facts are values without cycles, so the collector need not look at them (`gc=False`):
a long history costs it nothing.
"""

from typing import ClassVar, Literal, TypeAlias

import msgspec

from .._json import EMPTY, JsonObject, JsonValue
from .._messages import (
    AssistantMessage,
    ReasoningChunk,
    ReasoningEndChunk,
    TextChunk,
    ToolFailure,
    ToolResult,
    ToolSpec,
    Usage,
    UserMessage,
)

__all__ = [
    "BRIDGE_FACTS",
    "FACTS",
    "FORMAT",
    "ApprovalAsked",
    "ApprovalDecided",
    "AssistantReplied",
    "ChunkStreamed",
    "Ending",
    "EndingKind",
    "Extension",
    "Fact",
    "HookInvoked",
    "HookReturned",
    "InboxSpliced",
    "Lineage",
    "MessageEntered",
    "Queue",
    "RequestConfigured",
    "RetryScheduled",
    "SessionEvent",
    "SessionHeader",
    "SpliceOutcome",
    "StepEnded",
    "StepStarted",
    "StreamedChunk",
    "SubagentDescribed",
    "ToolCalled",
    "ToolReturned",
    "TurnEnded",
    "TurnStarted",
]

FORMAT = 1

EndingKind: TypeAlias = Literal[
    "completed",
    "max-tokens",
    "max-steps",
    "blocked",
    "aborted",
    "disposed",
    "error",
    "interrupted",
]
Queue: TypeAlias = Literal["next_turn", "next_step"]
SpliceOutcome: TypeAlias = Literal[
    "claimed", "discarded", "rejected", "consumed", "returned"
]
StreamedChunk: TypeAlias = TextChunk | ReasoningChunk | ReasoningEndChunk


class Lineage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a session comes from.

    Attributes:
      parent: the session of the agent that started this one, for a child.
      forked_from: the session whose history this one began with, for a fork.
      forked_at: the last sequence number of that session that was taken over.
      depth: 0 for a session that nobody's agent started.

    """

    parent: str | None = None
    forked_from: str | None = None
    forked_at: int | None = None
    depth: int = 0


class Ending(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How a turn ended. Only `error` and `blocked` say more than their kind."""

    kind: EndingKind
    code: str | None = None
    message: str | None = None


class SessionHeader(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The first fact of a session: its format, its options, its lineage."""

    TYPE: ClassVar[str] = "session/header"
    format: int
    options: JsonObject = EMPTY
    lineage: Lineage = Lineage()


class TurnStarted(msgspec.Struct, frozen=True, gc=False):
    """A turn was opened; input is claimed next. Turns are numbered from 1."""

    TYPE: ClassVar[str] = "turn/start"
    turn: int


class TurnEnded(msgspec.Struct, frozen=True, gc=False):
    """A turn has ended; nothing more of it follows."""

    TYPE: ClassVar[str] = "turn/end"
    turn: int
    reason: Ending


class StepStarted(msgspec.Struct, frozen=True, gc=False):
    """A step was opened: its input follows. Steps are numbered from 1 in a turn."""

    TYPE: ClassVar[str] = "step/start"
    turn: int
    step: int


class StepEnded(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A step has ended: all of its calls have their results.

    `usage` sums what is known of the step's attempts, failed ones included.
    """

    TYPE: ClassVar[str] = "step/end"
    turn: int
    step: int
    usage: Usage | None = None


class MessageEntered(msgspec.Struct, frozen=True, gc=False):
    """A claimed message entered the open step: it is history now."""

    TYPE: ClassVar[str] = "user/message"
    message: UserMessage


class ChunkStreamed(msgspec.Struct, frozen=True, gc=False):
    """A piece of an answer, as it came. `attempt` counts from 1 in a step."""

    TYPE: ClassVar[str] = "assistant/chunk"
    turn: int
    step: int
    attempt: int
    chunk: StreamedChunk


class AssistantReplied(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The answer of a step as one message; from here each call gets one result."""

    TYPE: ClassVar[str] = "assistant/message"
    turn: int
    step: int
    message: AssistantMessage
    usage: Usage | None = None
    interrupted: bool = False


class ToolCalled(msgspec.Struct, frozen=True, gc=False):
    """The body of a call starts next, with these arguments."""

    TYPE: ClassVar[str] = "tool/call"
    turn: int
    step: int
    call_id: str
    name: str
    arguments: JsonObject


class ToolReturned(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The one result of a call."""

    TYPE: ClassVar[str] = "tool/result"
    turn: int
    step: int
    call_id: str
    message: ToolResult
    error: ToolFailure | None = None
    meta: JsonObject = EMPTY


class InboxSpliced(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The inbox changed: ids left one queue, or messages were put at `start`.

    Without an outcome it is an edit: an arrival, a move or a replacement.
    `claimed` moves ids from the queue into the open turn. `discarded`, `rejected`
    and `consumed` take ids out of the queue or the claim for good. `returned` puts
    claimed messages back.
    """

    TYPE: ClassVar[str] = "agent/inbox/spliced"
    target: Queue
    start: int = 0
    removed: tuple[str, ...] = ()
    inserted: tuple[UserMessage, ...] = ()
    outcome: SpliceOutcome | None = None


class RequestConfigured(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What requests carry besides messages, from here on; appended on change."""

    TYPE: ClassVar[str] = "request/header"
    system: str
    tools: tuple[ToolSpec, ...]
    model: str
    options: JsonObject = EMPTY


class RetryScheduled(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An attempt failed and is closed; the next one starts after `delay` seconds."""

    TYPE: ClassVar[str] = "llm/retry"
    turn: int
    step: int
    attempt: int
    error: ToolFailure
    delay: float
    usage: Usage | None = None


class ApprovalAsked(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A person (or a policy in their place) is asked whether a call may run."""

    TYPE: ClassVar[str] = "approval/asked"
    approval_id: str
    call_id: str
    name: str
    arguments: JsonObject
    origin: str
    reason: str | None = None


class ApprovalDecided(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A question was closed. `cancelled` and `interrupted` are not denials."""

    TYPE: ClassVar[str] = "approval/decided"
    approval_id: str
    decision: Literal["allowed", "denied", "cancelled", "interrupted"]
    scope: Literal["once", "session"] = "once"
    reason: str | None = None


class HookInvoked(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A hook was started."""

    TYPE: ClassVar[str] = "hook/invoked"
    hook_id: str
    event: str
    command: str
    matcher: str | None = None


class HookReturned(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A hook has ended and is reaped."""

    TYPE: ClassVar[str] = "hook/result"
    hook_id: str
    outcome: Literal["success", "blocked", "failed", "timed-out", "cancelled"]
    decision: str = "none"
    exit_code: int | None = None
    duration: float | None = None
    detail: str | None = None


class SubagentDescribed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A child was started, or has ended if `ending` is there."""

    TYPE: ClassVar[str] = "subagent/descriptor"
    child: str
    kind: Literal["spawn", "fork", "remote"]
    call_id: str | None = None
    detached: bool = False
    description: str | None = None
    ending: Ending | None = None


class Extension(msgspec.Struct, frozen=True, gc=False):
    """A fact of somebody else's vocabulary; readers that do not know it skip it."""

    TYPE: ClassVar[str] = "extension"
    name: str
    body: JsonValue


Fact: TypeAlias = (
    SessionHeader
    | TurnStarted
    | TurnEnded
    | StepStarted
    | StepEnded
    | MessageEntered
    | ChunkStreamed
    | AssistantReplied
    | ToolCalled
    | ToolReturned
    | InboxSpliced
    | RequestConfigured
    | RetryScheduled
    | ApprovalAsked
    | ApprovalDecided
    | HookInvoked
    | HookReturned
    | SubagentDescribed
    | Extension
)

# What a bridge may append through `Session.append`; the rest is the kernel's.
BRIDGE_FACTS = (
    ApprovalAsked,
    ApprovalDecided,
    HookInvoked,
    HookReturned,
    SubagentDescribed,
    Extension,
)

FACTS: dict[str, type[Fact]] = {
    cls.TYPE: cls
    for cls in (
        SessionHeader,
        TurnStarted,
        TurnEnded,
        StepStarted,
        StepEnded,
        MessageEntered,
        ChunkStreamed,
        AssistantReplied,
        ToolCalled,
        ToolReturned,
        InboxSpliced,
        RequestConfigured,
        RetryScheduled,
        *BRIDGE_FACTS,
    )
}


class SessionEvent(msgspec.Struct, frozen=True, gc=False):
    """One durable fact of a session, numbered and dated.

    Attributes:
      seq: counts from 1 without a gap.
      time: Unix time in seconds.
      data: the fact.
      ignorable: whether a reader that does not know the type may skip it.
      raw: the JSON of the fact as it was read, kept only where it holds fields that
        this version does not know, so that they survive being written again.

    """

    seq: int
    time: float
    data: Fact
    ignorable: bool = False
    raw: bytes | None = None

    @property
    def type(self) -> str:
        """The wire name of the fact."""
        return self.data.TYPE
