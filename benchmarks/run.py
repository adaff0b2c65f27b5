"""Prints what the kernel costs, each figure beside what it is held against.

python -m benchmarks.run [--tiny] [ROW ...]
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio

from .crowd import crowd
from .durable import durable_turn
from .length import length
from .measure import TINY, Row, Sizes, machine, show
from .startup import importing
from .turns import cancelling, chunk, late_turn, tool_turn, turn
from .weight import weight

ROWS: Mapping[str, Callable[[Sizes], Awaitable[Sequence[Row]]]] = {
    "turn": turn,
    "tool": tool_turn,
    "chunk": chunk,
    "durable": durable_turn,
    "late": late_turn,
    "crowd": crowd,
    "weight": weight,
    "cancel": cancelling,
    "import": importing,
    "length": length,
}


async def main(names: Sequence[str], sizes: Sizes) -> None:
    print(machine())
    print("CPU time of the process; median (lowest to highest)\n", flush=True)
    for name in names:
        for row in await ROWS[name](sizes):
            show(row)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tiny", action="store_true", help="show that it runs")
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    settings = parser.parse_args()
    if unknown := set(settings.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    trio.run(main, settings.rows or tuple(ROWS), TINY if settings.tiny else Sizes())
