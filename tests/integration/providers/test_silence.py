"""How long a provider may be silent, on a clock that the test moves.

The server is a real one; the clock is virtual and does not jump by itself. A test
waits until all tasks are blocked, which means that all bytes have arrived, and then
moves the clock. Exact times are exact.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import final

import pytest
import trio
from trio.testing import MockClock

from agentkernel import Chunk, FinishChunk, Model, ModelError
from tests.integration.providers.server import Exchange, falls_silent, open_server
from tests.integration.providers.transcripts import (
    HELLO,
    MAKERS,
    delta,
    event,
    message_delta,
    message_start,
    named,
    text_block,
    text_of,
)

TEXT = {
    "openai": delta(content="half"),
    "anthropic": message_start() + text_block(0, "half", stop=False),
}
REASON = {
    "openai": delta(content="all") + delta("stop"),
    "anthropic": message_start() + text_block(0, "all") + message_delta(),
}
LIFE = {
    "openai": [b": ping\n\n", b"data:\n\n", event({"choices": []})],
    "anthropic": [b": ping\n\n", b"event: ping\n\n", named("ping")],
}
both = pytest.mark.parametrize("provider", sorted(MAKERS))


@final
class Reading:
    """What a task that reads one answer has seen."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.error: ModelError | None = None
        self.ended_at: float | None = None


@asynccontextmanager
async def reading(model: Model) -> AsyncGenerator[Reading, None]:
    state = Reading()

    async def read() -> None:
        try:
            async with model.stream(HELLO) as answer:
                async for chunk in answer:
                    state.chunks.append(chunk)
        except ModelError as error:
            state.error = error
        state.ended_at = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        yield state
        await trio.testing.wait_all_tasks_blocked(0.01)
        nursery.cancel_scope.cancel()


async def settle() -> None:
    await trio.testing.wait_all_tasks_blocked(0.01)


@both
@pytest.mark.case("PROV-06")
@pytest.mark.parametrize("parts", ["nothing", "head", "text"])
async def test_silence_ends_the_attempt_at_its_limit(
    provider: str, parts: str, mock_clock: MockClock
) -> None:
    """PROV-06: before the head, behind the head, behind some text."""

    async def mute(exchange: Exchange) -> None:
        await exchange.wait_gone()

    script = {
        "nothing": mute,
        "head": falls_silent(),
        "text": falls_silent(TEXT[provider]),
    }[parts]
    async with open_server(script) as server:
        model = MAKERS[provider]("m", base_url=server.url, idle_seconds=10.0)
        start = trio.current_time()
        async with reading(model) as state:
            await settle()
            mock_clock.jump(9.9)
            await settle()
            assert state.ended_at is None
            mock_clock.jump(0.2)
            await settle()
        assert state.error is not None
        assert (state.error.code, state.error.retryable) == ("idle", True)
        assert state.ended_at == pytest.approx(start + 10.1)
        assert text_of(state.chunks) == ("half" if parts == "text" else "")
        await server.wait_open(0)


@both
@pytest.mark.case("PROV-06", "SSE-04")
async def test_pings_keep_no_request_alive(
    provider: str, mock_clock: MockClock
) -> None:
    """PROV-06: a server that only says that it lives will not answer."""
    more = trio.Event()

    async def script(exchange: Exchange) -> None:
        nonlocal more
        await exchange.head()
        await exchange.chunk(TEXT[provider])
        for part in LIFE[provider]:
            await more.wait()
            more = trio.Event()
            await exchange.chunk(part)
        await exchange.wait_gone()

    async with open_server(script) as server:
        model = MAKERS[provider]("m", base_url=server.url, idle_seconds=10.0)
        async with reading(model) as state:
            await settle()
            for _ in LIFE[provider]:
                mock_clock.jump(3.0)
                more.set()
                await settle()
                assert state.ended_at is None
            mock_clock.jump(1.5)
            await settle()
        assert state.error is not None
        assert state.error.code == "idle"
        await server.wait_open(0)


@both
@pytest.mark.case("PROV-06")
async def test_each_event_begins_the_wait_anew(
    provider: str, mock_clock: MockClock
) -> None:
    """PROV-06: a slow answer is an answer, also one of call arguments alone."""
    steps = {
        "openai": [
            delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),
            *(
                delta(tool_calls=[{"index": 0, "function": {"arguments": part}}])
                for part in ("{", '"x":', "1}")
            ),
            delta("tool_calls"),
        ],
        "anthropic": [
            named(
                "content_block_start",
                index=0,
                content_block={"type": "tool_use", "id": "a", "name": "f"},
            ),
            *(
                named(
                    "content_block_delta",
                    index=0,
                    delta={"type": "input_json_delta", "partial_json": part},
                )
                for part in ("{", '"x":', "1}")
            ),
            named("content_block_stop", index=0) + message_delta("tool_use"),
        ],
    }[provider]
    more = trio.Event()

    async def script(exchange: Exchange) -> None:
        nonlocal more
        await exchange.head()
        for part in steps:
            await more.wait()
            more = trio.Event()
            await exchange.chunk(part)
        await exchange.end()

    async with open_server(script) as server:
        model = MAKERS[provider]("m", base_url=server.url, idle_seconds=10.0)
        async with reading(model) as state:
            for _ in steps:
                await settle()
                mock_clock.jump(9.0)
                more.set()
            await settle()
        assert state.error is None
        assert state.chunks[-1] == FinishChunk("tool-calls")


@both
@pytest.mark.case("PROV-07")
async def test_a_whole_answer_does_not_wait_long_for_what_may_follow(
    provider: str, mock_clock: MockClock
) -> None:
    """The answer is there; a server that forgets to end it costs little."""
    async with open_server(falls_silent(REASON[provider])) as server:
        model = MAKERS[provider]("m", base_url=server.url, idle_seconds=100.0)
        async with reading(model) as state:
            await settle()
            assert text_of(state.chunks) == "all"
            mock_clock.jump(5.1)
            await settle()
        assert state.error is None
        assert state.chunks[-1] == FinishChunk("stop")
        await server.wait_open(0)


@both
async def test_time_that_the_reader_takes_is_no_silence(
    provider: str, mock_clock: MockClock
) -> None:
    """Whoever handles a chunk may take as long as they like."""
    async with open_server(falls_silent(TEXT[provider] + b": x\n\n")) as server:
        model = MAKERS[provider]("m", base_url=server.url, idle_seconds=10.0)
        async with model.stream(HELLO) as answer:
            chunks = aiter(answer)
            while not text_of([await anext(chunks)]):
                pass
            mock_clock.jump(50.0)
            with trio.move_on_after(9.0) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(anext, chunks)
                    await settle()
                    mock_clock.jump(9.5)
            assert scope.cancelled_caught
