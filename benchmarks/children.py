"""Prints what 1,000 children cost beside 1,000 bare Trio tasks with the same model work.

python benchmarks/children.py [COUNT]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Awaitable, Callable

import trio

import agentkernel as ak
from agentkernel.bridges.jobs import Jobs, child_job
from agentkernel.bridges.subagents import Persona, Subagents
from agentkernel.testing import ScriptedModel

COUNT = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
ANSWER = ["one ", "two ", "three"]


async def ask(model: ScriptedModel) -> str:
    """Do the model's work, as a turn does, without a turn."""
    with trio.CancelScope():
        async with trio.open_nursery():
            async with model.stream(ak.abc.ModelRequest("", ())) as chunks:
                text = "".join(
                    [c.text async for c in chunks if isinstance(c, ak.TextChunk)]
                )
    with trio.CancelScope(shield=True):
        await trio.lowlevel.checkpoint()
    return text


async def bare(at_once: int) -> None:
    model, slots = ScriptedModel(default=ANSWER), trio.Semaphore(at_once)

    async def one() -> None:
        async with slots:
            assert await ask(model) == "one two three"

    async with trio.open_nursery() as nursery:
        for _ in range(COUNT):
            nursery.start_soon(one)


async def children(at_once: int) -> None:
    subagents = Subagents([Persona("w", model="child")], max_children=at_once)
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("child", ScriptedModel(default=ANSWER))
        async with kernel.open("s", model="child") as parent:

            async def one() -> None:
                report = await subagents.run(parent, "go")
                assert report.text == "one two three"

            async with trio.open_nursery() as nursery:
                for _ in range(COUNT):
                    nursery.start_soon(one)


async def jobs(at_once: int) -> None:
    del at_once
    subagents = Subagents([Persona("w", model="child")])
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("child", ScriptedModel(default=ANSWER))
        board = Jobs(kernel, max_jobs=COUNT, max_ended=COUNT)
        async with kernel.open("s", model="child") as parent:
            started = [
                board.start(parent, child_job(subagents, "go"), kind="a", title="t")
                for _ in range(COUNT)
            ]
            for job in started:
                assert await job.wait() == "completed"
            await parent.when_idle()


def measured(story: Callable[[int], Awaitable[None]], at_once: int) -> float:
    """Measure the CPU seconds of the best of three runs."""
    best = float("inf")
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        trio.run(story, at_once)
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    print(f"{COUNT} times: start, three chunks, end; microseconds of CPU each")
    for at_once in (10, COUNT):
        shell = measured(bare, at_once)
        print(f"at most {at_once} at once")
        print(f"  bare tasks:        {shell / COUNT * 1e6:8.1f}")
        for name, story in (
            ("awaited children", children),
            ("jobs with children", jobs),
        ):
            if story is jobs and at_once < COUNT:
                continue
            took = measured(story, at_once)
            print(f"  {name + ':':18} {took / COUNT * 1e6:8.1f}  {took / shell:.1f}x")


if __name__ == "__main__":
    main()
