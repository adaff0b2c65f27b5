"""What an idle agent keeps in memory, each figure from a process of its own."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence

import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak

from .measure import Figures, Row, Sizes
from .models import Answers

__all__ = ["weight"]


async def weight(sizes: Sizes) -> Sequence[Row]:  # noqa: RUF029  # as the other rows
    """After a turn, against a parked Trio task with its nursery."""
    works = {"objects": "an idle agent after a turn", "pages": "the same, as pages"}
    rows: list[Row] = []
    for how, work in works.items():
        agents = _weigh("agents", how, sizes.agents)
        tasks = _weigh("tasks", how, sizes.agents)
        row = Row(work, "kB", agents, "a parked task", tasks, reach="25 kB")
        rows.append(row)
    return rows


def _weigh(what: str, how: str, count: int) -> Figures:
    command = [sys.executable, "-m", "benchmarks.weight", what, how, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # this file itself
    return Figures([float(done.stdout)])


async def _agents(count: int, weigh: Callable[[], float]) -> None:
    """Weigh agents between their creation and their end."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Answers())
        await _settle(kernel, 3)
        before = weigh()
        await _settle(kernel, count)
        print((weigh() - before) / count / 1024)


async def _settle(kernel: ak.Kernel, count: int) -> None:
    for _ in range(count):
        handle = await kernel.create(model="fake")
        handle.agent.followup("hi")
        await handle.agent.when_idle()


async def _tasks(count: int, weigh: Callable[[], float]) -> None:
    """Weigh tasks that are parked in a nursery of their own."""
    async with trio.open_nursery() as nursery:
        before = weigh()
        for _ in range(count):
            nursery.start_soon(_parked)
        await wait_all_tasks_blocked()
        print((weigh() - before) / count / 1024)
        nursery.cancel_scope.cancel()


async def _parked() -> None:
    async with trio.open_nursery():
        await trio.sleep_forever()


def _objects() -> float:
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    return size


def _pages() -> float:
    """The process's resident memory; without /proc, the most that it ever was."""
    gc.collect()
    try:
        with open("/proc/self/statm", encoding="ascii") as fields:
            return float(int(fields.read().split()[1]) * resource.getpagesize())
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _main(what: str, how: str, count: str) -> None:
    work: Callable[[int, Callable[[], float]], Awaitable[None]]
    work = _agents if what == "agents" else _tasks
    if how == "objects":
        tracemalloc.start()
    trio.run(work, int(count), _objects if how == "objects" else _pages)


if __name__ == "__main__":
    _main(*sys.argv[1:])
