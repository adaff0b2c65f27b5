"""Turns in memory: plain, with a tool, a chunk more, late in a session, stopped."""

from __future__ import annotations

import time
from collections.abc import Sequence

import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak

from .measure import Row, Section, Sizes, against, alternate, timed
from .models import Adds, Answers, Blocks, Drips, add
from .shell import DrivenShell, bare_turns

__all__ = [
    "cancelling",
    "chunk",
    "follow",
    "hops",
    "late_turn",
    "tool_turn",
    "turn",
    "turns",
]


async def turns(agent: ak.Agent, count: int) -> None:
    for _ in range(count):
        agent.followup("hi")
        await agent.when_idle()


def _of_turns(agent: ak.Agent, count: int) -> Section:
    return lambda: timed(count, lambda: turns(agent, count))


def _of_shell(count: int) -> Section:
    return lambda: timed(count, lambda: bare_turns(count))


async def turn(sizes: Sizes) -> Sequence[Row]:
    count = sizes.turns
    driven = DrivenShell()
    async with ak.open_kernel(ak.MemoryStore()) as kernel, trio.open_nursery() as tasks:
        kernel.models.register("fake", Answers())
        tasks.start_soon(driven.run)
        async with kernel.open("plain", model="fake") as agent:
            taken, woken, bare = await alternate(
                sizes.rounds,
                _of_turns(agent, count),
                lambda: timed(count, lambda: driven.turns(count)),
                _of_shell(2 * count),
            )
        tasks.cancel_scope.cancel()
    ratio, woken_ratio = against(taken, bare), against(woken, bare)
    return [
        Row("turn of three text chunks", "us", taken, "shell", bare, ratio, "3x"),
        Row("the shell in a driver", "us", woken, "shell", bare, woken_ratio),
    ]


async def tool_turn(sizes: Sizes) -> Sequence[Row]:
    """A tool that is nothing but the port, then a typed function as most are."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Answers())
        async with (
            kernel.open("bare", model="fake", tools=[Adds()]) as bare,
            kernel.open("typed", model="fake", tools=[add]) as typed,
        ):
            ported, converted, shell = await alternate(
                sizes.rounds,
                _of_turns(bare, sizes.turns // 2 + 1),
                _of_turns(typed, sizes.turns // 2 + 1),
                _of_shell(sizes.turns),
            )
    ratio, typed_ratio = against(ported, shell), against(converted, shell)
    work, typed_work = "turn with one tool call", "the same, a typed function as tool"
    return [
        Row(work, "us", ported, "shell", shell, ratio, "6x"),
        Row(typed_work, "us", converted, "shell", shell, typed_ratio),
    ]


async def chunk(sizes: Sizes) -> Sequence[Row]:
    """One long answer with a subscriber, against as many sends to a receiver."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Drips(sizes.chunks))
        async with kernel.open("chunks", model="fake") as agent:

            async def followed() -> float:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow, agent)
                    await wait_all_tasks_blocked()
                    taken = await timed(sizes.chunks, lambda: turns(agent, 1))
                    nursery.cancel_scope.cancel()
                return taken

            taken, hop = await alternate(
                sizes.rounds, followed, lambda: hops(sizes.chunks)
            )
    ratio = against(taken, hop)
    return [Row("one more chunk, followed", "us", taken, "hop", hop, ratio, "1x")]


async def follow(agent: ak.Agent) -> None:
    async with agent.session.subscribe(after=agent.session.cursor) as events:
        async for _ in events:
            pass


async def hops(count: int) -> float:
    send, receive = trio.open_memory_channel[int](1)

    async def receiver() -> None:
        async for _ in receive:
            pass

    async def sender() -> None:
        async with send:
            for number in range(count):
                await send.send(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receiver)
        await wait_all_tasks_blocked()
        return await timed(count, sender)


async def late_turn(sizes: Sizes) -> Sequence[Row]:
    """Turns behind the 5,000th of one session against those behind the 10th."""
    count = max(1, sizes.turns // 2)
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Answers())
        async with kernel.open("long", model="fake") as agent:
            await turns(agent, sizes.late_turn)

            async def early() -> float:
                return await _mean(max(1, count // 10), lambda: _ten_more(kernel))

            late, first = await alternate(sizes.rounds, _of_turns(agent, count), early)
    ratio = against(late, first)
    work = f"turn {sizes.late_turn:,} of a session"
    return [Row(work, "us", late, "turn 10", first, ratio, "1.1x")]


async def _ten_more(kernel: ak.Kernel) -> float:
    async with kernel.open(model="fake") as agent:
        await turns(agent, 10)
        return await timed(10, lambda: turns(agent, 10))


async def cancelling(sizes: Sizes) -> Sequence[Row]:
    """From the stop to idle, while the model's stream waits."""
    model = Blocks()
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", model)
        async with kernel.open("cancel", model="fake") as agent:

            async def stop() -> float:
                return await _mean(sizes.cancels, lambda: _stop_agent(agent))

            async def stop_bare() -> float:
                return await _mean(sizes.cancels, _stop_shell)

            taken, bare = await alternate(sizes.rounds, stop, stop_bare)
    assert model.open == 0, "a stream was left open"
    ratio = against(taken, bare)
    return [Row("cancel to idle", "us", taken, "shell", bare, ratio, "2x")]


async def _mean(count: int, once: Section) -> float:
    return sum([await once() for _ in range(count)]) / count


async def _stop_agent(agent: ak.Agent) -> float:
    agent.followup("hi")
    await wait_all_tasks_blocked()
    start = time.process_time()
    agent.cancel()
    await agent.when_idle()
    return (time.process_time() - start) * 1e6


async def _stop_shell() -> float:
    """Stop the bare shell in its nursery, and be told when it has ended."""
    scope, ended = trio.CancelScope(), trio.Event()

    async def blocked_turn() -> None:
        with scope:
            async with trio.open_nursery():
                await trio.sleep_forever()
        with trio.CancelScope(shield=True):
            await trio.lowlevel.checkpoint()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(blocked_turn)
        await wait_all_tasks_blocked()
        start = time.process_time()
        scope.cancel()
        await ended.wait()
        return (time.process_time() - start) * 1e6
