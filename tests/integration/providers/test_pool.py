"""Cancelled answers give their connections back, however many are cancelled at once.

Random points with a seed; contention for a small pool is needed to show the fault,
which is why so many answers run at once.
"""

from __future__ import annotations

import random
from collections import Counter

import httpx2
import pytest
import trio

from agentkernel import ModelError
from agentkernel.bridges.providers import AnthropicModel, OpenAIModel
from tests.integration.providers.server import Exchange, open_server
from tests.integration.providers.transcripts import (
    HELLO,
    chat,
    messages,
    read,
    text_of,
)


async def pause() -> None:
    for _ in range(10):
        await trio.lowlevel.checkpoint()


async def answer_slowly(exchange: Exchange) -> None:
    """Let some scheduling rounds pass at each stage, so that cancels land there."""
    body = chat("a", "b") if "chat" in exchange.request.target else messages("a", "b")
    await pause()
    await exchange.head()
    for at in range(0, len(body), 100):
        await pause()
        await exchange.chunk(body[at : at + 100])
    await exchange.end()


async def cancel_many(
    model: OpenAIModel | AnthropicModel, total: int, at_once: int, seed: int
) -> Counter[str]:
    """Read answers, most of them cancelled after a random number of rounds."""
    rng = random.Random(seed)  # noqa: S311  # a seed, no secret
    seen: Counter[str] = Counter()
    limit = trio.CapacityLimiter(at_once)

    async def one(stage: str, rounds: int, twice: bool) -> None:  # noqa: FBT001  # start_soon passes by position
        """Cancel so many rounds after this stage has begun; perhaps once more."""
        begun = {name: trio.Event() for name in ("start", "head", "body")}

        async def cancel() -> None:
            await begun[stage].wait()
            for _ in range(rounds):
                await trio.lowlevel.checkpoint()
            inner.cancel()
            if twice:
                await trio.lowlevel.checkpoint()
                outer.cancel()

        async with limit:
            reached = "start"
            with trio.CancelScope() as outer:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel)
                    with trio.CancelScope() as inner:
                        begun["start"].set()
                        async with model.stream(HELLO) as answer:
                            reached = "head"
                            begun["head"].set()
                            async for _ in answer:
                                reached = "body"
                                begun["body"].set()
                            reached = "whole"
                    nursery.cancel_scope.cancel()
            seen[reached] += 1

    async with trio.open_nursery() as nursery:
        for number in range(total):
            stage = rng.choice(["start", "start", "head", "body"])
            rounds = rng.randrange(300) if stage == "start" else rng.randrange(30)
            nursery.start_soon(one, stage, rounds, number % 3 == 0)
    return seen


async def check_pool(provider: str, total: int, at_once: int) -> None:
    limits = httpx2.Limits(max_connections=5, max_keepalive_connections=0)
    async with (
        open_server(answer_slowly) as server,
        httpx2.AsyncClient(limits=limits) as client,
    ):
        make = {"openai": OpenAIModel, "anthropic": AnthropicModel}[provider]
        model = make("m", base_url=server.url, client=client)
        seen = await cancel_many(model, total, at_once, seed=7)
        # It raced: answers were cancelled while they waited and while they ran.
        assert min(seen[reached] for reached in ("start", "head", "body")) > 100, seen
        with trio.fail_after(30):
            assert text_of(await read(model)) == "ab"
            await server.wait_open(0)


@pytest.mark.case("CONC-07")
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_cancelled_answers_leak_no_slot_of_the_pool(provider: str) -> None:
    """CONC-07: a leaked slot is gone for ever, and five of them are all."""
    await check_pool(provider, total=1500, at_once=60)


async def test_a_pool_that_is_full_gives_no_error_but_a_turn() -> None:
    """Waiting for a connection is no failure, as long as one comes free."""
    limits = httpx2.Limits(max_connections=2)
    async with (
        open_server(answer_slowly) as server,
        httpx2.AsyncClient(limits=limits) as client,
    ):
        model = OpenAIModel("m", base_url=server.url, client=client)
        done: list[str] = []

        async def one() -> None:
            try:
                done.append(text_of(await read(model)))
            except ModelError as error:  # pragma: no cover
                done.append(str(error))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(one)
        assert done == ["ab"] * 20
        assert server.accepted <= 20
