"""Puts streamed pieces of tool calls back together, or says that it cannot.

Servers that speak chat completions disagree on how a piece says which call it
belongs to: by id, by index, by both, by neither; with an index that is reused, with
ids only at first, with the name last. The rules, the strongest first:

1. A known id names its call, whatever the index says.
2. A new id opens a call, unless it comes late for one that is known by index alone.
3. A piece with an index but no id belongs to the call that uses that index; if the
   index is unknown, it opens one.
4. A piece with neither belongs to the only call that still wants arguments.
5. A name that comes with arguments after complete arguments opens a call.

Where two calls could be meant, and where a call turns out to hold two, there is no
guess: the answer fails with a clear error. A merged call would run with arguments
that nobody wrote.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from agentkernel import ModelError, ToolCallChunk, clean_text

from .wire import is_cut

__all__ = ["CallPiece", "ToolCallAssembler"]


class CallPiece(msgspec.Struct, frozen=True):
    """One piece of one call, as it came; empty text where the server wrote nothing."""

    index: int | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _Call:
    """A call that is being put together. `index` is the one it was opened with."""

    __slots__ = ("call_id", "index", "name", "pieces")

    def __init__(self, piece: CallPiece) -> None:
        self.index = piece.index
        self.call_id = piece.call_id
        self.name = piece.name
        self.pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are JSON already: nothing can be added to them."""
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


class ToolCallAssembler:
    """Collects the calls of one answer. Used by one task, for one answer."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, piece: CallPiece) -> None:
        """Take the next piece. Not a checkpoint.

        Raises:
          ModelError: if it could belong to more than one call.

        """
        if not (piece.call_id or piece.name or piece.arguments):
            return
        call = self._find(piece)
        if call is None:
            call = _Call(piece)
            self._calls.append(call)
        call.call_id = call.call_id or piece.call_id
        if piece.name and call.name and piece.name != call.name:
            raise _ambiguous(f"one call is named {call.name!r} and {piece.name!r}")
        call.name = call.name or piece.name
        if piece.arguments:
            call.pieces.append(piece.arguments)

    def finish(
        self, *, cut: bool, rename: Callable[[str], str] = str
    ) -> list[ToolCallChunk]:
        """Give the calls, in the order in which they were opened.

        Not a checkpoint.

        Args:
          cut: whether the answer ended before the model was done: then the last
            call is taken for truncated, and so is any that is not whole.
          rename: maps the name on the wire to that of the tool.

        Raises:
          ModelError: if a call has no name, or holds the arguments of two.

        """
        chunks = [
            _chunk(call, rename, is_end=cut and call is self._calls[-1])
            for call in self._calls
        ]
        self._calls.clear()
        return chunks

    def _find(self, piece: CallPiece) -> _Call | None:
        """Find the call that a piece belongs to, None if it opens one."""
        if piece.call_id:
            known = [c for c in self._calls if c.call_id == piece.call_id]
            return self._known(known, piece) if known else self._late_id(piece)
        if piece.index is not None:
            return self._by_index(piece, piece.index)
        return self._last_wanting(piece, self._calls)

    def _known(self, known: list[_Call], piece: CallPiece) -> _Call | None:
        """Choose among the calls that carry the piece's id: nearly always one."""
        if len(known) > 1:
            known = [c for c in known if c.index == piece.index] or known[-1:]
        call = known[-1]
        # Some models give all their calls the same id: a header that comes with
        # another index once the first call is whole opens the next one.
        if piece.name and piece.index != call.index and call.is_complete:
            return None
        return call

    def _late_id(self, piece: CallPiece) -> _Call | None:
        """Find the call that a new id comes late for, None if it opens one."""
        nameless = [c for c in self._calls if not c.call_id]
        if piece.index is not None:
            nameless = [c for c in nameless if c.index == piece.index]
        elif piece.name:
            return None
        if nameless and not (piece.name and nameless[-1].is_complete):
            return nameless[-1]
        return None

    def _by_index(self, piece: CallPiece, index: int) -> _Call | None:
        using = [c for c in self._calls if c.index == index]
        if using:
            return self._last_wanting(piece, using)
        # Heads that all said 0, then tails that count: the index is an ordinal.
        if not piece.name and 0 <= index < len(self._calls):
            return self._last_wanting(piece, self._calls)
        return None

    def _last_wanting(self, piece: CallPiece, calls: list[_Call]) -> _Call | None:
        """Choose the one call of several that still wants arguments."""
        if not calls:
            return None
        if len(calls) == 1 and not piece.name:
            return calls[0]
        wanting = [c for c in calls if not c.is_complete]
        if piece.name:
            last = wanting[-1] if wanting else calls[-1]
            # The same header once more, after all has come, asks for nothing.
            repeats = not wanting and not piece.arguments.strip()
            return (
                last if last.name in {"", piece.name} and (wanting or repeats) else None
            )
        if len(wanting) == 1:
            return wanting[0]
        if not wanting and not piece.arguments.strip():
            return calls[-1]
        raise _ambiguous(
            "a piece of arguments came without an id, and "
            f"{len(wanting) or len(calls)} calls could be meant"
        )


def _chunk(call: _Call, rename: Callable[[str], str], *, is_end: bool) -> ToolCallChunk:
    arguments = clean_text(call.arguments)
    truncated = is_end or is_cut(arguments.strip() or "{}")
    if not call.name and not truncated:
        raise _ambiguous("a call has arguments but no name")
    if _holds_two(arguments):
        raise _ambiguous(f"the arguments of two calls came for {call.name!r}")
    return ToolCallChunk(
        rename(clean_text(call.name)),
        arguments if arguments.strip() or truncated else "{}",
        clean_text(call.call_id) or None,
        truncated,
    )


def _holds_two(arguments: str) -> bool:
    """Whether something follows the first JSON value."""
    text = arguments.strip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return end < len(text)


def _ambiguous(what: str) -> ModelError:
    return ModelError(
        f"the provider's tool calls cannot be told apart: {what}",
        code="server",
        retryable=True,
    )
