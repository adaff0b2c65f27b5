"""`check_model` passes a model that keeps the port and names what one breaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import pytest
import trio

from agentkernel import (
    Chunk,
    FinishChunk,
    Model,
    ModelError,
    ModelRequest,
    ReasoningEndChunk,
    TextChunk,
    Usage,
    UsageChunk,
)
from agentkernel.testing.model_check import check_model

GOOD: list[Chunk] = [
    TextChunk("a"),
    TextChunk("b"),
    FinishChunk("stop"),
    UsageChunk(Usage(1, 2)),
]


async def generate(chunks: list[Chunk]) -> AsyncGenerator[Chunk, None]:
    for chunk in chunks:
        await trio.lowlevel.checkpoint()
        yield chunk


class InMemory:
    """Keeps the port: its generator is closed with the block."""

    def __init__(self, chunks: list[Chunk] = GOOD) -> None:
        self.chunks = chunks

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        async with aclosing(generate(self.chunks)) as answer:
            yield answer


class LeavesGenerator:
    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        await trio.lowlevel.checkpoint()
        yield waiting(GOOD)


async def waiting(chunks: list[Chunk]) -> AsyncGenerator[Chunk, None]:
    try:
        for chunk in chunks:
            yield chunk
    finally:
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()


class WrapsErrors:
    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        async with trio.open_nursery(), aclosing(generate(GOOD)) as answer:
            yield answer


class RenamesCancellation:
    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        try:
            async with aclosing(generate(GOOD)) as answer:
                yield answer
        except trio.Cancelled:
            raise ModelError("cancelled") from None


class OneAtATime:
    """A cancelled answer keeps the only slot."""

    def __init__(self) -> None:
        self.slot = trio.Semaphore(1)

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        await self.slot.acquire()
        async with aclosing(generate(GOOD)) as answer:
            yield answer
        self.slot.release()


class WaitsForTheRest:
    """Its exit reads the answer to an end that never comes."""

    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        read = 0

        async def counted() -> AsyncGenerator[Chunk, None]:
            nonlocal read
            for chunk in GOOD:
                await trio.lowlevel.checkpoint()
                read += 1
                yield chunk

        async with aclosing(counted()) as answer:
            yield answer
            if read < len(GOOD):
                await trio.sleep_forever()


class LeavesTask:
    @asynccontextmanager
    async def stream(
        self, request: ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[Chunk], None]:
        trio.lowlevel.spawn_system_task(trio.sleep_forever)
        async with aclosing(generate(GOOD)) as answer:
            yield answer


async def test_a_model_that_keeps_the_port_passes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Else nobody could use the checker."""
    await check_model(InMemory)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: InMemory([*GOOD, *GOOD]), "finished 2 times"),
        (lambda: InMemory(GOOD[:2]), "finished 0 times"),
        (lambda: InMemory([*GOOD, TextChunk("c")]), "followed the end"),
        (lambda: InMemory([TextChunk(""), *GOOD]), "is empty"),
        (lambda: InMemory([ReasoningEndChunk(), *GOOD]), "had not begun"),
        (
            lambda: InMemory([*GOOD[:2], FinishChunk("tool-calls")]),
            "held none",
        ),
        (LeavesGenerator, "left to the garbage collector"),
        (WrapsErrors, "came out as ExceptionGroup"),
        (RenamesCancellation, r"cancel at task step \d+ raised ModelError"),
        (OneAtATime, "hung for"),
        (WaitsForTheRest, "hung for"),
        (LeavesTask, "left a task behind"),
    ],
)
async def test_a_broken_promise_is_named(
    make: Callable[[], Model], match: str, autojump_clock: trio.testing.MockClock
) -> None:
    """A checker that finds nothing proves nothing."""
    with pytest.raises(AssertionError, match=match):
        await check_model(make)
