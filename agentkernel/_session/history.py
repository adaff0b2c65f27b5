"""What the model is shown: the history of a session, as its fold keeps it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar, cast, overload

from .._messages import (
    AssistantMessage,
    Message,
    Note,
    TextBlock,
    ToolCall,
    ToolResult,
    ToolResults,
    UserMessage,
)
from .events import Ending

__all__ = ["STOP_NOTE", "History", "MessageView"]

STOP_NOTE = Note("The previous turn was stopped before it had finished.")


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
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...  # type: ignore[explicit-any]  # a bare slice
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:  # type: ignore[explicit-any]  # a bare slice
        if isinstance(index, slice):
            return tuple(self._items[i] for i in range(*index.indices(self._stop)))
        if not -self._stop <= index < self._stop:
            raise IndexError(index)
        return self._items[index % self._stop]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return tuple(self) == tuple(cast("Sequence[object]", other))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]  # compares by content, like a list

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

    def add_assistant(
        self, message: AssistantMessage, calls: tuple[ToolCall, ...]
    ) -> None:
        """Put an answer at the end and open the block of its calls' results."""
        if not _says_something(message):
            return
        self._items.append(message)
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


def _says_something(message: AssistantMessage) -> bool:
    """Whether a provider would take it: blank text alone is refused by some."""
    for block in message.content:
        if not isinstance(block, TextBlock) or block.text.strip():
            return True
    return False
