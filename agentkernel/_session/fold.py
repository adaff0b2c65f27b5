"""From facts to views: the state of a session as a pure function of its log.

A `Fold` starts empty and takes one fact after the other; what it shows depends on
nothing else. It holds the model's history (`History`), the pending input
(`InboxFold`), the open turn with its calls, and what became of each message. The
live side reads it and never writes it: a decision becomes a fact, and the fact
changes the fold.

This module knows no clock, no task and no random number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Literal, Never, TypeAlias

import msgspec

from .._messages import AssistantMessage, ToolCall, Usage, UserMessage
from .events import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantReplied,
    ChunkStreamed,
    Ending,
    Fact,
    HookInvoked,
    HookReturned,
    InboxSpliced,
    MessageEntered,
    RequestConfigured,
    RetryScheduled,
    SessionHeader,
    StepEnded,
    StepStarted,
    StreamedChunk,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from .history import History
from .pending import InboxFold

__all__ = ["Fold", "MessageRecord", "OpenCall", "TurnRecord", "add_usage"]

MessageState: TypeAlias = Literal[
    "pending", "claimed", "entered", "discarded", "rejected", "consumed"
]


class OpenCall:
    """A call without a result. `started` says that its body may have run."""

    __slots__ = ("call", "started", "step", "turn")

    def __init__(self, turn: int, step: int, call: ToolCall) -> None:
        self.turn = turn
        self.step = step
        self.call = call
        self.started = False


class MessageRecord(msgspec.Struct, gc=False):
    """What became of one accepted message so far.

    Attributes:
      body: the message as it was first accepted: a repeated send is compared with it.
      turn: the turn that has claimed it, None while it is pending.
      returned_by: the last turn that claimed it and put it back.

    """

    body: UserMessage
    state: MessageState = "pending"
    turn: int | None = None
    returned_by: int | None = None


class TurnRecord(msgspec.Struct, gc=False):
    """How a turn ended, what it said last, and what is known of its tokens."""

    ending: Ending | None = None
    final: AssistantMessage | None = None
    usage: Usage | None = None


class Fold:
    """The state of a session. `apply` is its only mutator."""

    __slots__ = (
        "attempt",
        "chunks",
        "header",
        "history",
        "inbox",
        "last_turn",
        "messages",
        "open_approvals",
        "open_calls",
        "open_hooks",
        "open_step",
        "open_turn",
        "request",
        "step_usage",
        "turn_entered",
        "turns",
    )

    def __init__(self) -> None:
        self.header: SessionHeader | None = None
        self.request: RequestConfigured | None = None
        self.history: History = History()
        self.inbox: InboxFold = InboxFold()
        self.messages: dict[str, MessageRecord] = {}
        self.turns: dict[int, TurnRecord] = {}
        self.last_turn: int = 0
        self.open_turn: int | None = None
        self.open_step: int | None = None
        # Whether a message has entered the open turn.
        self.turn_entered: bool = False
        # The open attempt: its number and the chunks that no message holds yet.
        self.attempt: int = 1
        self.chunks: list[StreamedChunk] = []
        self.step_usage: Usage | None = None
        self.open_calls: dict[str, OpenCall] = {}
        self.open_approvals: dict[str, ApprovalAsked] = {}
        self.open_hooks: dict[str, HookInvoked] = {}

    @classmethod
    def over(cls, facts: Iterable[Fact]) -> Fold:
        """Fold a whole log."""
        fold = cls()
        for fact in facts:
            fold.apply(fact)
        return fold

    def apply(self, fact: Fact) -> None:
        """Take the next fact. Facts without a view change nothing."""
        handler = _HANDLERS.get(type(fact))
        if handler is not None:
            handler(self, fact)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # the table pairs each fact with its handler


def _header(fold: Fold, fact: SessionHeader) -> None:
    fold.header = fact


def _turn_started(fold: Fold, fact: TurnStarted) -> None:
    fold.open_turn = fold.last_turn = fact.turn
    fold.turn_entered = False
    fold.turns[fact.turn] = TurnRecord()


def _turn_ended(fold: Fold, fact: TurnEnded) -> None:
    fold.open_turn = fold.open_step = None
    fold.chunks.clear()
    fold.turns.setdefault(fact.turn, TurnRecord()).ending = fact.reason
    noted = fold.header is None or fold.header.options.get("stop_note", True)
    fold.history.end_turn(
        fact.reason, entered=fold.turn_entered, noted=noted is not False
    )


def _step_started(fold: Fold, fact: StepStarted) -> None:
    fold.open_step = fact.step
    fold.attempt = 1
    fold.step_usage = None
    fold.chunks.clear()


def _step_ended(fold: Fold, fact: StepEnded) -> None:
    fold.open_step = None
    fold.chunks.clear()
    if fact.usage is not None and fold.open_turn is not None:
        record = fold.turns[fold.open_turn]
        record.usage = add_usage(record.usage, fact.usage)


def _message_entered(fold: Fold, fact: MessageEntered) -> None:
    message = fact.message
    fold.inbox.claimed.pop(message.id, None)
    record = fold.messages.get(message.id)
    if record is None:
        record = fold.messages[message.id] = MessageRecord(message)
    record.state = "entered"
    record.turn = fold.open_turn
    fold.turn_entered = True
    fold.history.add_user(message)


def _chunk(fold: Fold, fact: ChunkStreamed) -> None:
    fold.chunks.append(fact.chunk)


def _replied(fold: Fold, fact: AssistantReplied) -> None:
    fold.chunks.clear()
    calls = fact.message.calls
    fold.history.add_assistant(fact.message, calls)
    fold.step_usage = add_usage(fold.step_usage, fact.usage)
    for call in calls:
        fold.open_calls[call.call_id] = OpenCall(fact.turn, fact.step, call)
    if fact.turn in fold.turns:
        fold.turns[fact.turn].final = fact.message


def _tool_called(fold: Fold, fact: ToolCalled) -> None:
    call = fold.open_calls.get(fact.call_id)
    if call is not None:
        call.started = True


def _tool_returned(fold: Fold, fact: ToolReturned) -> None:
    if fold.open_calls.pop(fact.call_id, None) is not None:
        fold.history.add_result(fact.message)


def _spliced(fold: Fold, fact: InboxSpliced) -> None:
    inbox = fold.inbox
    if fact.outcome == "claimed":
        inbox.claim(fact.target, fact.removed)
        for message_id in fact.removed:
            record = fold.messages[message_id]
            record.state = "claimed"
            record.turn = fold.open_turn
        return
    for message_id in fact.removed:
        inbox.take(message_id)
        if fact.outcome is not None and fact.outcome != "returned":
            record = fold.messages[message_id]
            record.state = fact.outcome
    if fact.inserted:
        for message in fact.inserted:
            inbox.claimed.pop(message.id, None)
            record = fold.messages.setdefault(message.id, MessageRecord(message))
            record.state = "pending"
            record.returned_by = record.turn or record.returned_by
            record.turn = None
        inbox.queue(fact.target)[fact.start : fact.start] = fact.inserted


def _configured(fold: Fold, fact: RequestConfigured) -> None:
    fold.request = fact


def _retry(fold: Fold, fact: RetryScheduled) -> None:
    fold.chunks.clear()
    fold.attempt = fact.attempt + 1
    fold.step_usage = add_usage(fold.step_usage, fact.usage)


def _asked(fold: Fold, fact: ApprovalAsked) -> None:
    fold.open_approvals[fact.approval_id] = fact


def _decided(fold: Fold, fact: ApprovalDecided) -> None:
    fold.open_approvals.pop(fact.approval_id, None)


def _hook_invoked(fold: Fold, fact: HookInvoked) -> None:
    fold.open_hooks[fact.hook_id] = fact


def _hook_returned(fold: Fold, fact: HookReturned) -> None:
    fold.open_hooks.pop(fact.hook_id, None)


def add_usage(left: Usage | None, right: Usage | None) -> Usage | None:
    """Add what is known; a part is unknown only if neither side knows it."""
    if left is None or right is None:
        return right if left is None else left
    return Usage(
        *(
            (a if b is None else b if a is None else a + b)
            for a, b in zip(_parts(left), _parts(right), strict=True)
        )
    )


def _parts(usage: Usage) -> tuple[int | None, ...]:
    return (
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
    )


_HANDLERS: Final[dict[type[Fact], Callable[[Fold, Never], None]]] = {
    SessionHeader: _header,
    TurnStarted: _turn_started,
    TurnEnded: _turn_ended,
    StepStarted: _step_started,
    StepEnded: _step_ended,
    MessageEntered: _message_entered,
    ChunkStreamed: _chunk,
    AssistantReplied: _replied,
    ToolCalled: _tool_called,
    ToolReturned: _tool_returned,
    InboxSpliced: _spliced,
    RequestConfigured: _configured,
    RetryScheduled: _retry,
    ApprovalAsked: _asked,
    ApprovalDecided: _decided,
    HookInvoked: _hook_invoked,
    HookReturned: _hook_returned,
}
