"""Models that answer at once: what is left to measure is the kernel."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType

import trio

import agentkernel as ak
from agentkernel.tools import tool

__all__ = ["Adds", "Answers", "Blocks", "Drips", "add"]

TEXT = (ak.TextChunk("one "), ak.TextChunk("two "), ak.TextChunk("three"))
CALL = ak.ToolCallChunk("add", '{"a": 1, "b": 2}')


@tool
async def add(a: int, b: int) -> str:  # noqa: RUF029  # it answers at once
    """Add two numbers."""
    return str(a + b)


class Adds:
    """The same as a bare tool: no schema is made, no argument converted."""

    spec = ak.ToolSpec("add", "Add two numbers.", {"type": "object"})
    parallel_safe = False
    max_seconds = None

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation) -> ak.ToolOutput:  # as the function is
        return ak.ToolOutput.of("3")


class _Stream:
    """The cheapest context manager around a generator."""

    def __init__(self, chunks: AsyncGenerator[ak.Chunk]) -> None:
        self._chunks = chunks

    async def __aenter__(self) -> AsyncGenerator[ak.Chunk]:
        return self._chunks

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._chunks.aclose()


class Answers:
    """Three chunks of text; where there are tools, one call first."""

    def stream(self, request: ak.ModelRequest) -> _Stream:
        if request.tools and not isinstance(request.messages[-1], ak.ToolResults):
            return _Stream(_one_call())
        return _Stream(_three_chunks())


async def _three_chunks() -> AsyncGenerator[ak.Chunk]:  # noqa: RUF029  # it answers at once
    for chunk in TEXT:
        yield chunk
    yield ak.FinishChunk("stop")


async def _one_call() -> AsyncGenerator[ak.Chunk]:  # noqa: RUF029  # it answers at once
    yield CALL
    yield ak.FinishChunk("tool-calls")


class Drips:
    """Many chunks, each after a checkpoint, as if it came from outside."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    def stream(self, request: ak.ModelRequest) -> _Stream:
        return _Stream(self._drip())

    async def _drip(self) -> AsyncGenerator[ak.Chunk]:
        for _ in range(self._chunks):
            await trio.lowlevel.checkpoint()
            yield TEXT[0]
        yield ak.FinishChunk("stop")


class Blocks:
    """Never answers; counts the streams that are open."""

    def __init__(self) -> None:
        self.open = 0

    def stream(self, request: ak.ModelRequest) -> _Counted:
        return _Counted(self)


class _Counted(_Stream):
    def __init__(self, model: Blocks) -> None:
        super().__init__(_never())
        self._model = model

    async def __aenter__(self) -> AsyncGenerator[ak.Chunk]:
        self._model.open += 1
        return await super().__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await super().__aexit__(exc_type, exc, traceback)
        self._model.open -= 1


async def _never() -> AsyncGenerator[ak.Chunk]:
    await trio.sleep_forever()
    yield TEXT[0]
