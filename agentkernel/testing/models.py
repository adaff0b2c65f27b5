"""A model that says what a script says, and gates to hold it at any point."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final, TypeAlias, final

import msgspec
import trio

from agentkernel import (
    Chunk,
    FinishChunk,
    JsonValue,
    ModelError,
    ModelRequest,
    TextChunk,
    ToolCallChunk,
)

__all__ = ["EOF", "Gate", "ScriptItem", "ScriptedModel", "call"]


@final
class Gate:
    """A point that a test holds: what comes to it waits until it is opened.

    Once opened it stays open. Several may wait at one gate.
    """

    def __init__(self) -> None:
        self._reached = trio.Event()
        self._opened = trio.Event()
        self.arrivals: int = 0

    async def wait(self) -> None:
        """Arrive, and wait until the gate is open.

        Always a checkpoint.

        Cancellation:
          Passes through; the arrival counts.

        """
        self.arrivals += 1
        self._reached.set()
        await self._opened.wait()

    async def reached(self) -> None:
        """Wait until something has arrived.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        await self._reached.wait()

    def open(self) -> None:
        """Let through what waits and whatever comes. Not a checkpoint."""
        self._opened.set()


class _Eof:
    def __repr__(self) -> str:
        return "EOF"


# Ends an answer without a finish, as a connection that was cut does.
EOF: Final = _Eof()

ScriptItem: TypeAlias = str | Chunk | Gate | BaseException | float | _Eof


def call(
    name: str, /, *, id: str | None = None, **arguments: JsonValue
) -> ToolCallChunk:  # the provider's own word
    """Script a tool call."""
    return ToolCallChunk(name, json.dumps(arguments), provider_id=id)


@final
class ScriptedModel:
    """A model whose n-th answer is the n-th script.

    A script is a sequence of: a text, a chunk, a `Gate` to wait at, a number of
    seconds to sleep on Trio's clock, an exception to raise, or `EOF` to end without a
    finish. A finish that fits is added to a script that has none.

    Attributes:
      requests: what it was asked, in order, each with its messages as they were.
      open_streams: how many answers are being given now.

    """

    def __init__(
        self,
        *scripts: Sequence[ScriptItem],
        default: Sequence[ScriptItem] | None = None,
    ) -> None:
        self._scripts = list(scripts)
        self._default = default
        self.requests: list[ModelRequest] = []
        self.open_streams: int = 0

    def add(self, *scripts: Sequence[ScriptItem]) -> None:
        """Append scripts for later requests."""
        self._scripts += scripts

    def stream(
        self, request: ModelRequest, /
    ) -> AbstractAsyncContextManager[AsyncIterable[Chunk]]:
        """Give the next scripted answer; see `agentkernel.Model`."""
        self.requests.append(
            msgspec.structs.replace(request, messages=tuple(request.messages))
        )
        number = len(self.requests)
        if number <= len(self._scripts):
            script = self._scripts[number - 1]
        elif self._default is not None:
            script = self._default
        else:
            script = [ModelError(f"the script has no answer for request {number}")]
        return self._open(script)

    @asynccontextmanager
    async def _open(
        self, script: Sequence[ScriptItem]
    ) -> AsyncGenerator[AsyncIterable[Chunk], None]:
        self.open_streams += 1
        try:
            yield _Answer(script)
        finally:
            self.open_streams -= 1


@final
class _Answer:
    """One answer while it is given: an async iterator over a script."""

    def __init__(self, script: Sequence[ScriptItem]) -> None:
        self._items = iter(script)
        # What is still to come behind the script; None once it has finished.
        self._finish: FinishChunk | None = FinishChunk("stop")

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> Chunk:
        """Give the next chunk, and do what the script says before it.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        while True:
            await trio.lowlevel.checkpoint()
            try:
                item = next(self._items)
            except StopIteration:
                return self._last()
            chunk = await self._act(item)
            if chunk is not None:
                return chunk

    async def _act(self, item: ScriptItem) -> Chunk | None:
        """Do what an item says; return it if it is a chunk."""
        if isinstance(item, str):
            item = TextChunk(item)
        elif isinstance(item, Gate):
            await item.wait()
        elif isinstance(item, BaseException):
            raise item
        elif isinstance(item, int | float):
            await trio.sleep(item)
        elif isinstance(item, _Eof):
            self._items, self._finish = iter(()), None
        elif isinstance(item, FinishChunk):
            self._finish = None
        elif isinstance(item, ToolCallChunk):
            self._finish = FinishChunk("tool-calls")
        await trio.lowlevel.checkpoint_if_cancelled()
        return None if isinstance(item, Gate | int | float | _Eof) else item

    def _last(self) -> FinishChunk:
        """Finish once, unless the script has done so or was cut."""
        finish, self._finish = self._finish, None
        if finish is None:
            raise StopAsyncIteration
        return finish
