"""Prints how many instructions the kernel takes: figures that no neighbour changes.

python -m benchmarks.instructions [ROW ...]

It needs valgrind. Each work runs in a process of its own, at two sizes, and what is
printed is the difference: neither imports nor the opening of a kernel are in it. What
a figure leaves out is what a processor waits for, and the system's own part.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping

import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak

from .models import Adds, Answers, Drips
from .shell import DrivenShell, bare_turns
from .turns import follow, hops, turns

FEW, MANY = 100, 600


async def _turn(count: int) -> None:
    await _turns(count)


async def _tool_turn(count: int) -> None:
    await _turns(count, Adds())


async def _turns(count: int, *tools: ak.Tool) -> None:
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Answers())
        async with kernel.open(model="fake", tools=tools) as agent:
            await turns(agent, count)


async def _chunk(count: int) -> None:
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("fake", Drips(count))
        async with kernel.open(model="fake") as agent, trio.open_nursery() as nursery:
            nursery.start_soon(follow, agent)
            await wait_all_tasks_blocked()
            await turns(agent, 1)
            nursery.cancel_scope.cancel()


async def _driven(count: int) -> None:
    driven = DrivenShell()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(driven.run)
        await wait_all_tasks_blocked()
        await driven.turns(count)
        nursery.cancel_scope.cancel()


async def _hop(count: int) -> None:
    await hops(count)


# Each beside what it is held against.
ROWS: Mapping[str, str] = {
    "shell": "shell",
    "driven": "shell",
    "turn": "shell",
    "tool": "shell",
    "hop": "hop",
    "chunk": "hop",
}
WORK: Mapping[str, Callable[[int], Awaitable[None]]] = {
    "shell": bare_turns,
    "driven": _driven,
    "turn": _turn,
    "tool": _tool_turn,
    "hop": _hop,
    "chunk": _chunk,
}


def count_of(row: str) -> int:
    """Count the instructions of one unit of a row's work."""
    _counted(row, 1)  # what is not compiled yet is compiled here
    return (_counted(row, MANY) - _counted(row, FEW)) // (MANY - FEW)


def _counted(row: str, units: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
    command += ["--cachegrind-out-file=/dev/null", sys.executable]
    command += ["-m", __spec__.name, "--work", str(units), row]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(  # noqa: S603  # our own command
        command, env=environment, capture_output=True, text=True, check=True
    )
    found = re.search(r"I +refs: +([\d,]+)", done.stderr)
    assert found is not None, done.stderr
    return int(found[1].replace(",", ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=int, metavar="UNITS", help=argparse.SUPPRESS)
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], metavar="ROW")
    settings = parser.parse_args()
    if settings.work is not None:
        trio.run(WORK[settings.rows[0]], settings.work)
        return
    counts: dict[str, int] = {}
    for row in settings.rows or ROWS:
        for each in (ROWS[row], row):
            counts[each] = counts.get(each) or count_of(each)
        ratio = counts[row] / counts[ROWS[row]]
        print(f"{row}: {counts[row]:,} instructions, {ratio:.2f} of {ROWS[row]}")


if __name__ == "__main__":
    main()
