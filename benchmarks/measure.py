"""How everything here is measured, and how it is printed.

CPU time of the process, threads included, since the machine may be shared. What is
compared takes turns: a round measures each side once, right after the other, and a
ratio is that of one round. Printed are medians, with the lowest and the highest.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

__all__ = [
    "TINY",
    "Figures",
    "Row",
    "Sizes",
    "against",
    "alternate",
    "machine",
    "show",
    "timed",
]

# Measures once; the result is what one unit of work took or weighs.
Section = Callable[[], Awaitable[float]]


class Sizes(NamedTuple):
    """How much of everything: `--tiny` only shows that the programs run."""

    rounds: int = 7
    turns: int = 400
    chunks: int = 2000
    durable_turns: int = 150
    late_turn: int = 5000
    agents: int = 1000
    cancels: int = 60
    imports: int = 9
    events: int = 100_000


TINY = Sizes(
    rounds=2,
    turns=3,
    chunks=5,
    durable_turns=2,
    late_turn=20,
    agents=3,
    cancels=2,
    imports=1,
    events=120,
)


class Figures(NamedTuple):
    """What the rounds gave for one side."""

    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        return f"{_short(self.median)} ({_short(low)} to {_short(high)})"


class Row(NamedTuple):
    """One line of the table: a piece of work, what it is held against, the goal."""

    work: str
    unit: str
    measured: Figures
    against: str = ""
    reference: Figures | None = None
    ratio: Figures | None = None
    reach: str = ""
    note: str = ""


async def timed(units: int, work: Callable[[], Awaitable[object]]) -> float:
    """Do the work; return the CPU time of one of its units, in microseconds."""
    start = time.process_time()
    await work()
    return (time.process_time() - start) / units * 1e6


async def alternate(rounds: int, *sections: Section) -> tuple[Figures, ...]:
    """Measure the sections in turn, `rounds` times, after one round that is lost."""
    taken: list[list[float]] = [[] for _ in sections]
    for number in range(rounds + 1):
        for section, values in zip(sections, taken, strict=True):
            value = await section()
            if number:
                values.append(value)
    return tuple(Figures(values) for values in taken)


def against(measured: Figures, reference: Figures) -> Figures:
    """Divide round by round."""
    return Figures(
        [m / r for m, r in zip(measured.values, reference.values, strict=True) if r]
        or [0.0]
    )


def show(row: Row) -> None:
    """Print one line of the table at once, since the next may take a while."""
    parts = [f"{row.work}: {row.measured} {row.unit}"]
    if row.reference is not None:
        parts.append(f"{row.against}: {row.reference} {row.unit}")
    if row.ratio is not None:
        parts.append(f"ratio {row.ratio}")
    if row.reach:
        parts.append(f"reach {row.reach}")
    if row.note:
        parts.append(row.note)
    print("\n    ".join(parts), flush=True)


def machine() -> str:
    """Say what all of it was measured on."""
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {_processor()}, {os.cpu_count()} cores, "
        f"load {load}, {platform.system()} {platform.release()}, "
        f"{sys.implementation.name} {platform.python_version()}"
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0].partition(":")[2].strip() if names else platform.machine()


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
