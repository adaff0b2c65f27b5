"""Many agents at once."""

from __future__ import annotations

from collections.abc import Sequence

import trio

import agentkernel as ak

from .measure import Row, Sizes, against, alternate, timed
from .models import Answers
from .shell import bare_turn
from .turns import turns

__all__ = ["crowd"]


async def crowd(sizes: Sizes) -> Sequence[Row]:
    """One turn each, all at once, against the same turns one after the other."""
    count = sizes.agents
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Answers())
        agents = await _open(kernel, count)
        for agent in agents:
            await turns(agent, 1)
        together, single = await alternate(
            sizes.rounds,
            lambda: timed(count, lambda: _at_once(agents)),
            lambda: timed(count, lambda: _one_by_one(agents)),
        )
        alone, _ = await alternate(
            sizes.rounds,
            lambda: timed(count, lambda: turns(agents[0], count)),
            lambda: timed(1, trio.lowlevel.checkpoint),
        )
    ratio = against(together, single)
    work = f"{count:,} agents at once, a turn"
    rows = [Row(work, "us", together, "one by one", single, ratio, "1.2x")]
    ratio = against(together, alone)
    rows.append(Row("the same", "us", together, "turns of one agent", alone, ratio))
    bare, bare_alone = await alternate(
        sizes.rounds,
        lambda: timed(count, lambda: _bare_at_once(count)),
        lambda: timed(count, lambda: _bare_one_by_one(count)),
    )
    ratio = against(bare, bare_alone)
    work = f"{count:,} bare shells at once, each in a task"
    rows.append(Row(work, "us", bare, "one by one", bare_alone, ratio))
    return rows


async def _open(kernel: ak.Kernel, count: int) -> Sequence[ak.Agent]:
    return [(await kernel.create(model="fake")).agent for _ in range(count)]


async def _at_once(agents: Sequence[ak.Agent]) -> None:
    for agent in agents:
        agent.followup("hi")
    for agent in agents:
        await agent.when_idle()


async def _one_by_one(agents: Sequence[ak.Agent]) -> None:
    for agent in agents:
        agent.followup("hi")
        await agent.when_idle()


async def _bare_at_once(count: int) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(bare_turn)


async def _bare_one_by_one(count: int) -> None:
    for _ in range(count):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bare_turn)
