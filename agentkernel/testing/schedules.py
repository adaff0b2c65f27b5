"""The same scenario under many task orders, each of which can be had again.

Trio runs the tasks of one scheduling pass in a random order. Here that order comes
from a seed: one seed is one order, and many seeds are many orders. Trio offers this
to its own test tools only, by two private names (`_ALLOW_DETERMINISTIC_SCHEDULING`
and `_r` in `trio._core._run`); this module is the one place that knows them, and
`check_schedules` proves that they still do what is said here.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from random import Random
from typing import Final, Generic, TypeVar, final

import trio
import trio.testing
from trio.abc import Clock, Instrument

__all__ = [
    "Runs",
    "check_schedules",
    "mark",
    "run_seeded",
    "run_under_schedules",
]

T = TypeVar("T")

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"
_RANDOM: Final = "_r"
_run = importlib.import_module("trio._core._run")
_marks: ContextVar[list[str] | None] = ContextVar("agentkernel.marks", default=None)


@final
class Runs(Generic[T]):
    """What came of the same scenario under several seeds.

    Attributes:
      outcomes: what each run returned, by its seed.
      orders: the marks of each run in their order, by its seed.

    """

    def __init__(self) -> None:
        self.outcomes: dict[int, T] = {}
        self.orders: dict[int, tuple[str, ...]] = {}

    @property
    def distinct_orders(self) -> int:
        """How many different orders of marks there were."""
        return len(set(self.orders.values()))

    def count(self) -> Counter[T]:
        """Count the outcomes, which must be hashable: did the race go both ways?"""
        return Counter(self.outcomes.values())

    def __repr__(self) -> str:
        return f"<Runs: {len(self.outcomes)} seeds, {self.distinct_orders} orders of marks>"


def run_under_schedules(
    async_fn: Callable[[], Awaitable[T]],
    *,
    seeds: Iterable[int] = range(20),
    clock: Callable[[], Clock] | None = None,
) -> Runs[T]:
    """Run a scenario once for each seed, each in a Trio run of its own.

    Call it from a plain function: it starts Trio itself, under a virtual clock that
    jumps ahead when all tasks wait. Whatever the scenario marks (`mark`) becomes the
    order of that run, so that a test can tell whether the tasks really raced.

    Args:
      async_fn: the scenario; it makes everything that it uses.
      seeds: one run for each.
      clock: makes the clock of a run; `MockClock(autojump_threshold=0)` by default.

    Returns:
      What the runs returned, and in which orders things happened.

    Raises:
      BaseException: what a run raised, with a note that names its seed; the seeds
        after it do not run.

    """
    runs: Runs[T] = Runs()
    for seed in seeds:
        try:
            outcome, order = run_seeded(async_fn, seed, clock=clock)
        except BaseException as error:
            error.add_note(
                f"under the task order of seed {seed}; "
                f"run_under_schedules(..., seeds=[{seed}]) does it again"
            )
            raise
        runs.outcomes[seed] = outcome
        runs.orders[seed] = order
    return runs


def mark(label: str) -> None:
    """Note that something happens now, for the order of the run; else do nothing.

    Not a checkpoint.
    """
    marks = _marks.get()
    if marks is not None:
        marks.append(label)


def run_seeded(
    async_fn: Callable[[], Awaitable[T]],
    seed: int,
    *,
    clock: Callable[[], Clock] | None = None,
    instruments: Sequence[Instrument] = (),
) -> tuple[T, tuple[str, ...]]:
    """Run an async function with Trio, its task order drawn from a seed.

    Returns:
      What it returned, and what was marked, in order.

    """
    run_clock = (
        trio.testing.MockClock(autojump_threshold=0) if clock is None else clock()
    )
    marks: list[str] = []
    token = _marks.set(marks)
    try:
        with _seeded(seed):
            value = trio.run(async_fn, clock=run_clock, instruments=instruments)
    finally:
        _marks.reset(token)
    return value, tuple(marks)


def check_schedules() -> None:
    """Prove that a seed decides Trio's task order: for a test of these tools.

    Raises:
      AssertionError: if one seed gives two orders, or several seeds only one: this
        version of Trio is then not supported by `run_under_schedules`.

    """
    orders = [run_seeded(_race, seed)[0] for seed in (0, 1, 2, 3, 0, 1, 2, 3)]
    if orders[:4] != orders[4:]:
        raise AssertionError("the same seed gave two task orders")
    if len(set(orders)) < 2:
        raise AssertionError("different seeds gave one task order")


@contextmanager
def _seeded(seed: int) -> Generator[None, None, None]:
    """Have the scheduler draw from this seed, for the length of a block."""
    random = getattr(_run, _RANDOM, None)
    if not hasattr(_run, _FLAG) or not isinstance(random, Random):  # noqa: S311 - a seed, not a secret
        raise RuntimeError(
            "this version of Trio has no seeded scheduler where it is known to be"
        )
    before, state = getattr(_run, _FLAG), random.getstate()
    setattr(_run, _FLAG, True)
    random.seed(seed)
    try:
        yield
    finally:
        setattr(_run, _FLAG, before)
        random.setstate(state)


async def _race() -> str:
    """Let eight tasks pass a few checkpoints and say in which order they did."""
    order: list[str] = []

    async def passing(name: str) -> None:
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            order.append(name)

    async with trio.open_nursery() as nursery:
        for name in "abcdefgh":
            nursery.start_soon(passing, name)
    return "".join(order)
