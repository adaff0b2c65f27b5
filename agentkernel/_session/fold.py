"""From facts to views: the state of a session as a pure function of its log.

A `Fold` starts empty and takes one fact after the other; what it shows depends on
nothing else. It holds the model's history (`History`), the pending input
(`InboxFold`), the open turn with its calls, and what became of each message. The
live side reads it and never writes it: a decision becomes a fact, and the fact
changes the fold.

This module knows no clock, no task and no random number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias, overload

from .._messages import (
    AssistantMessage,
    Message,
    Note,
    ToolCall,
    ToolResult,
    ToolResults,
    Usage,
    UserMessage,
)
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
    Queue,
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

__all__ = [
    "STOP_NOTE",
    "Fold",
    "History",
    "InboxFold",
    "MessageRecord",
    "MessageView",
    "OpenCall",
    "TurnRecord",
]

STOP_NOTE = Note("The previous turn was stopped before it had finished.")

MessageState: TypeAlias = Literal[
    "pending", "claimed", "entered", "discarded", "rejected", "consumed"
]


class MessageView(Sequence[Message]):
    """The history up to a point: immutable, and not a copy.

    The list behind it only grows at its end, and a change anywhere else is made in
    a new list, so what a view shows stays as it is.
    """

    __slots__ = ("_items", "_stop")

    def __init__(self, items: list[Message], stop: int) -> None:
        self._items = items
        self._stop = stop

    def __len__(self) -> int:
        return self._stop

    def __iter__(self) -> Iterator[Message]:
        return islice(self._items, self._stop)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        if isinstance(index, slice):
            return tuple(self._items[i] for i in range(*index.indices(self._stop)))
        if not -self._stop <= index < self._stop:
            raise IndexError(index)
        return self._items[index % self._stop]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # compares by content, like a list

    def __repr__(self) -> str:
        return f"MessageView({list(self)!r})"


class _ResultBlock:
    """The results of one assistant message while they come in."""

    __slots__ = ("calls", "index", "results")

    def __init__(self, index: int, calls: tuple[ToolCall, ...]) -> None:
        # Where the block belongs: directly behind its assistant message.
        self.index = index
        self.calls = calls
        self.results: dict[str, ToolResult] = {}


class History:
    """What the model is shown: messages, result blocks in call order, stop notes."""

    __slots__ = ("_block_of", "_items", "_stopped_run")

    def __init__(self) -> None:
        self._items: list[Message] = []
        self._block_of: dict[str, _ResultBlock] = {}
        # Whether the last turn in which anything entered was stopped: one note
        # stands for a run of such turns.
        self._stopped_run = False

    def view(self) -> MessageView:
        """Show the messages so far; a result block appears when it is complete."""
        return MessageView(self._items, len(self._items))

    def add_user(self, message: UserMessage) -> None:
        """Put what entered a step at the end."""
        self._items.append(message)

    def add_assistant(self, message: AssistantMessage) -> None:
        """Put an answer at the end and open the block of its calls' results."""
        if not message.content:
            return
        self._items.append(message)
        calls = message.calls
        if calls:
            block = _ResultBlock(len(self._items), calls)
            for call in calls:
                self._block_of[call.call_id] = block

    def add_result(self, result: ToolResult) -> None:
        """Take one result; the block joins the history with its last one."""
        block = self._block_of.pop(result.call_id, None)
        if block is None:
            return
        block.results[result.call_id] = result
        if len(block.results) < len(block.calls):
            return
        message = ToolResults(tuple(block.results[c.call_id] for c in block.calls))
        if block.index == len(self._items):
            self._items.append(message)
            return
        items = self._items.copy()
        items.insert(block.index, message)
        self._items = items
        for other in set(self._block_of.values()):
            if other.index > block.index:
                other.index += 1

    def end_turn(self, ending: Ending, *, entered: bool, noted: bool) -> None:
        """Close a turn: a stopped one in which something entered leaves a note."""
        if ending.kind != "aborted":
            self._stopped_run = False
        elif entered:
            if noted and not self._stopped_run:
                self._items.append(STOP_NOTE)
            self._stopped_run = True


class InboxFold:
    """Pending input: two queues, and what the open turn has claimed of them."""

    __slots__ = ("claimed", "next_step", "next_turn")

    def __init__(self) -> None:
        self.next_turn: list[UserMessage] = []
        self.next_step: list[UserMessage] = []
        # Claimed and not yet entered, in claim order, with the queue it came from.
        self.claimed: dict[str, tuple[Queue, UserMessage]] = {}

    def queue(self, name: Queue) -> list[UserMessage]:
        """Name one of the two queues."""
        return self.next_turn if name == "next_turn" else self.next_step

    def find(self, message_id: str) -> tuple[Queue, int] | None:
        """Say where a pending message stands."""
        for name in ("next_turn", "next_step"):
            for index, message in enumerate(self.queue(name)):
                if message.id == message_id:
                    return name, index
        return None

    @property
    def owes_step(self) -> bool:
        """Whether something in `next_step` asks for a step of its own."""
        return any(not message.passive for message in self.next_step)

    @property
    def has_work(self) -> bool:
        """Whether a drain would find something to run a turn for."""
        return bool(self.next_turn) or (bool(self.next_step) and self.owes_step)

    @property
    def pending_ids(self) -> tuple[str, ...]:
        """The ids of both queues, in the order in which they would be claimed."""
        return tuple(m.id for m in (*self.next_step, *self.next_turn))

    def take(self, message_id: str) -> None:
        """Remove a message from wherever it is."""
        if self.claimed.pop(message_id, None) is not None:
            return
        for queue in (self.next_turn, self.next_step):
            for index, message in enumerate(queue):
                if message.id == message_id:
                    del queue[index]
                    return

    def claim(self, queue: Queue, ids: tuple[str, ...]) -> None:
        """Move messages from a queue into the claim."""
        pending = self.queue(queue)
        for message_id in ids:
            index = next(i for i, m in enumerate(pending) if m.id == message_id)
            self.claimed[message_id] = (queue, pending.pop(index))


class OpenCall:
    """A call without a result. `started` says that its body may have run."""

    __slots__ = ("call", "started", "step", "turn")

    def __init__(self, turn: int, step: int, call: ToolCall) -> None:
        self.turn = turn
        self.step = step
        self.call = call
        self.started = False


class MessageRecord:
    """What became of one accepted message so far."""

    __slots__ = ("body", "state", "turn")

    def __init__(self, body: UserMessage) -> None:
        # As it was first accepted: what a repeated send is compared with.
        self.body = body
        self.state: MessageState = "pending"
        self.turn: int | None = None


class TurnRecord:
    """How a turn ended and what it said last."""

    __slots__ = ("ending", "final", "usage")

    def __init__(self) -> None:
        self.ending: Ending | None = None
        self.final: AssistantMessage | None = None
        self.usage: Usage | None = None


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
        self.history = History()
        self.inbox = InboxFold()
        self.messages: dict[str, MessageRecord] = {}
        self.turns: dict[int, TurnRecord] = {}
        self.last_turn = 0
        self.open_turn: int | None = None
        self.open_step: int | None = None
        # Whether a message has entered the open turn.
        self.turn_entered = False
        # The open attempt: its number and the chunks that no message holds yet.
        self.attempt = 1
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
            handler(self, fact)

    def _header(self, fact: SessionHeader) -> None:
        self.header = fact

    def _turn_started(self, fact: TurnStarted) -> None:
        self.open_turn = self.last_turn = fact.turn
        self.turn_entered = False
        self.turns[fact.turn] = TurnRecord()

    def _turn_ended(self, fact: TurnEnded) -> None:
        self.open_turn = self.open_step = None
        self.chunks.clear()
        self.turns.setdefault(fact.turn, TurnRecord()).ending = fact.reason
        noted = self.header is None or self.header.options.get("stop_note", True)
        self.history.end_turn(
            fact.reason, entered=self.turn_entered, noted=noted is not False
        )

    def _step_started(self, fact: StepStarted) -> None:
        self.open_step = fact.step
        self.attempt = 1
        self.step_usage = None
        self.chunks.clear()

    def _step_ended(self, fact: StepEnded) -> None:
        self.open_step = None
        self.chunks.clear()
        if fact.usage is not None and self.open_turn is not None:
            record = self.turns[self.open_turn]
            record.usage = add_usage(record.usage, fact.usage)

    def _message_entered(self, fact: MessageEntered) -> None:
        message = fact.message
        self.inbox.claimed.pop(message.id, None)
        record = self.messages.get(message.id)
        if record is None:
            record = self.messages[message.id] = MessageRecord(message)
        record.state = "entered"
        record.turn = self.open_turn
        self.turn_entered = True
        self.history.add_user(message)

    def _chunk(self, fact: ChunkStreamed) -> None:
        self.chunks.append(fact.chunk)

    def _replied(self, fact: AssistantReplied) -> None:
        self.chunks.clear()
        self.history.add_assistant(fact.message)
        self.step_usage = add_usage(self.step_usage, fact.usage)
        for call in fact.message.calls:
            self.open_calls[call.call_id] = OpenCall(fact.turn, fact.step, call)
        if fact.turn in self.turns:
            self.turns[fact.turn].final = fact.message

    def _tool_called(self, fact: ToolCalled) -> None:
        call = self.open_calls.get(fact.call_id)
        if call is not None:
            call.started = True

    def _tool_returned(self, fact: ToolReturned) -> None:
        if self.open_calls.pop(fact.call_id, None) is not None:
            self.history.add_result(fact.message)

    def _spliced(self, fact: InboxSpliced) -> None:
        inbox = self.inbox
        if fact.outcome == "claimed":
            inbox.claim(fact.target, fact.removed)
            for message_id in fact.removed:
                record = self.messages[message_id]
                record.state = "claimed"
                record.turn = self.open_turn
            return
        for message_id in fact.removed:
            inbox.take(message_id)
            if fact.outcome is not None and fact.outcome != "returned":
                record = self.messages[message_id]
                record.state = fact.outcome
        if fact.inserted:
            for message in fact.inserted:
                inbox.claimed.pop(message.id, None)
                record = self.messages.setdefault(message.id, MessageRecord(message))
                record.state = "pending"
                record.turn = None
            inbox.queue(fact.target)[fact.start : fact.start] = fact.inserted

    def _configured(self, fact: RequestConfigured) -> None:
        self.request = fact

    def _retry(self, fact: RetryScheduled) -> None:
        self.chunks.clear()
        self.attempt = fact.attempt + 1
        self.step_usage = add_usage(self.step_usage, fact.usage)

    def _asked(self, fact: ApprovalAsked) -> None:
        self.open_approvals[fact.approval_id] = fact

    def _decided(self, fact: ApprovalDecided) -> None:
        self.open_approvals.pop(fact.approval_id, None)

    def _hook_invoked(self, fact: HookInvoked) -> None:
        self.open_hooks[fact.hook_id] = fact

    def _hook_returned(self, fact: HookReturned) -> None:
        self.open_hooks.pop(fact.hook_id, None)


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


_HANDLERS = {
    SessionHeader: Fold._header,
    TurnStarted: Fold._turn_started,
    TurnEnded: Fold._turn_ended,
    StepStarted: Fold._step_started,
    StepEnded: Fold._step_ended,
    MessageEntered: Fold._message_entered,
    ChunkStreamed: Fold._chunk,
    AssistantReplied: Fold._replied,
    ToolCalled: Fold._tool_called,
    ToolReturned: Fold._tool_returned,
    InboxSpliced: Fold._spliced,
    RequestConfigured: Fold._configured,
    RetryScheduled: Fold._retry,
    ApprovalAsked: Fold._asked,
    ApprovalDecided: Fold._decided,
    HookInvoked: Fold._hook_invoked,
    HookReturned: Fold._hook_returned,
}
