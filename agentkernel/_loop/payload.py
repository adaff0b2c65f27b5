"""What listeners are handed and what they decide: one frozen class for each event.

There are three kinds. A `Notification` is told to observers, who may look and call
any verb. A `Serial` event is awaited by one listener after the other. A `Waterfall`
goes through its listeners from the outside in: each may change the payload on the
way down, or the decision on the way up, or decide itself by not calling `next`.

The classes are also the names under which listeners are registered:
`agent.on(PreStep, listener)`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Literal, TypeAlias, TypeVar

import msgspec

from .._json import EMPTY, JsonObject
from .._messages import UserMessage
from .._session.events import Ending, Queue, SessionEvent
from .._signal import CancelCause, TurnSignal
from ..abc import ModelRequest, ToolInvocation, ToolOutput

if TYPE_CHECKING:
    from .._errors import ModelError
    from .agent import Agent
    from .prompt import Section

__all__ = [
    "AgentCreated",
    "AgentDisposed",
    "AgentStuck",
    "Allow",
    "Appended",
    "Approve",
    "Ask",
    "Assemble",
    "Blocker",
    "CancelRequested",
    "Deny",
    "Enter",
    "ErrorReported",
    "Execute",
    "Fail",
    "InboxClaimed",
    "InboxDiscarded",
    "InboxInserted",
    "Next",
    "Notification",
    "PostExecute",
    "PreExecute",
    "PreStep",
    "Reject",
    "Request",
    "RequestError",
    "Retry",
    "Serial",
    "SessionStarted",
    "Status",
    "StatusChanged",
    "TurnStopping",
    "Waterfall",
]

P = TypeVar("P")
D = TypeVar("D")

Status: TypeAlias = Literal["idle", "running"]
# What a waterfall's listener calls to have the rest of it decide.
Next: TypeAlias = Callable[[P], Awaitable[D]]


class Notification(msgspec.Struct, Generic[P], frozen=True, eq=False):
    """Told to observers, synchronously; what they raise is contained."""

    agent: Agent


class Serial(msgspec.Struct, Generic[P], frozen=True, eq=False):
    """Awaited by one listener after the other."""

    agent: Agent
    signal: TurnSignal


class Waterfall(msgspec.Struct, Generic[P, D], frozen=True, eq=False):
    """Decided by listeners that call each other through `next`."""

    agent: Agent


class AgentCreated(Notification["AgentCreated"], frozen=True, eq=False):
    """`agent/created`: the agent is in the registry and idle."""


class AgentDisposed(Notification["AgentDisposed"], frozen=True, eq=False):
    """`agent/disposed`: the agent has left the registry; nothing of it runs."""


class SessionStarted(Notification["SessionStarted"], frozen=True, eq=False):
    """`agent/session-start`: a session was created, resumed or forked."""

    source: Literal["create", "resume", "fork"]


class StatusChanged(Notification["StatusChanged"], frozen=True, eq=False):
    """`agent/status`."""

    status: Status


class CancelRequested(Notification["CancelRequested"], frozen=True, eq=False):
    """`agent/cancel-requested`: an effective cancel has begun; it cannot be vetoed."""

    cause: CancelCause
    keep_inbox: bool
    turn: int | None


class InboxInserted(Notification["InboxInserted"], frozen=True, eq=False):
    """`agent/inbox/inserted`: a message was accepted or put back."""

    queue: Queue
    messages: tuple[UserMessage, ...]


class InboxClaimed(Notification["InboxClaimed"], frozen=True, eq=False):
    """`agent/inbox/claimed`: a turn has taken messages."""

    turn: int
    ids: tuple[str, ...]


class InboxDiscarded(Notification["InboxDiscarded"], frozen=True, eq=False):
    """`agent/inbox/discarded`: messages were withdrawn or dropped by a cancel."""

    messages: tuple[UserMessage, ...]


class ErrorReported(Notification["ErrorReported"], frozen=True, eq=False):
    """`agent/error`: something failed that changes no outcome, or a store failed."""

    error: BaseException
    where: str


class Blocker(msgspec.Struct, frozen=True):
    """Something that quiescence waits for.

    Attributes:
      kind: `tool`, `model`, `listener`, `retry`, `flush`, `job`, `child`,
        `maintenance` or `turn`.
      name: which one.
      age: seconds since it began.

    """

    kind: str
    name: str
    age: float


class AgentStuck(Notification["AgentStuck"], frozen=True, eq=False):
    """`agent/stuck`: a stop, or a write, is taking longer than `stuck_after`."""

    blockers: tuple[Blocker, ...]


class Appended(Notification["Appended"], frozen=True, eq=False):
    """A durable event joined the log; events come in order, each to all observers."""

    event: SessionEvent


class TurnStopping(Serial["TurnStopping"], frozen=True, eq=False):
    """`agent/turn-stopping`: the turn owes nothing and is about to end as `ending`.

    A listener may `steer` to continue it.
    """

    turn: int
    step: int
    ending: Ending


class Enter(msgspec.Struct, frozen=True):
    """Let these messages enter the step; what is left out of the batch is consumed."""

    messages: tuple[UserMessage, ...]


class Reject(msgspec.Struct, frozen=True):
    """Let nothing enter; the turn ends `blocked` with this reason.

    What was claimed is gone, but for notices: they go back to their queue, and wait.
    """

    reason: str = ""


class PreStep(Waterfall["PreStep", Enter | Reject], frozen=True, eq=False):
    """`agent/pre-step`: what was claimed is about to enter a step."""

    signal: TurnSignal
    turn: int
    step: int
    messages: tuple[UserMessage, ...]


class Request(Waterfall["Request", ModelRequest], frozen=True, eq=False):
    """`agent/request`: a request is about to be sent; the decision is the request."""

    signal: TurnSignal
    turn: int
    step: int
    attempt: int
    request: ModelRequest


class Retry(msgspec.Struct, frozen=True):
    """Try the request again after `delay` seconds."""

    delay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a delay that nobody could record or wait for."""
        if not math.isfinite(self.delay):
            raise ValueError(f"a retry cannot wait for {self.delay} seconds")


class Fail(msgspec.Struct, frozen=True):
    """Let the failure stand; the turn ends `error`."""


class RequestError(Waterfall["RequestError", Retry | Fail], frozen=True, eq=False):
    """`agent/request-error`: an attempt failed.

    `delivered` says whether observers have seen anything of its answer.
    """

    signal: TurnSignal
    turn: int
    step: int
    attempt: int
    error: ModelError
    delivered: bool


class Assemble(Waterfall["Assemble", str], frozen=True, eq=False):
    """`system-prompt/assemble`: sections become the system prompt.

    The signal is None when the prompt is assembled outside a turn.
    """

    signal: TurnSignal | None
    sections: tuple[Section, ...]
    variables: JsonObject = EMPTY


class Allow(msgspec.Struct, frozen=True):
    """Run the call; `arguments` replaces the model's if it is given."""

    arguments: JsonObject | None = None


class Ask(msgspec.Struct, frozen=True):
    """Have the call approved first.

    Attributes:
      reason: shown to who is asked.
      arguments: replaces the model's if it is given: they are asked about, and run.
      waivable: nothing in particular asks for this, so a listener that vouches for
        the call may allow it instead.

    """

    reason: str = ""
    arguments: JsonObject | None = None
    waivable: bool = False


class Deny(msgspec.Struct, frozen=True):
    """Do not run the call; the model is told the reason."""

    reason: str = ""


class PreExecute(Waterfall["PreExecute", Allow | Ask | Deny], frozen=True, eq=False):
    """`tools/pre-execute`: a call with valid arguments asks whether it may run."""

    signal: TurnSignal
    call: ToolInvocation


class Approve(Waterfall["Approve", Allow | Deny], frozen=True, eq=False):
    """`tools/approve`: a listener asks whoever may decide."""

    signal: TurnSignal
    call: ToolInvocation
    reason: str


class Execute(Waterfall["Execute", ToolOutput], frozen=True, eq=False):
    """`tools/execute`: around the body."""

    signal: TurnSignal
    call: ToolInvocation


class PostExecute(Waterfall["PostExecute", ToolOutput], frozen=True, eq=False):
    """`tools/post-execute`: the decision is what the model is shown.

    Each call that was announced and not stopped comes here: also one whose body, or a
    listener around it, raised or took too long.

    Attributes:
      output: what the call gave back; its `error` is set if it failed.
      seconds: how long the body took, with the listeners around it.

    """

    signal: TurnSignal
    call: ToolInvocation
    output: ToolOutput
    seconds: float
