"""Finds tasks that spin: they take every cancellation and go on waiting.

Who is cancelled and waits again is cancelled again at once, so that a loop which
swallows that takes the processor for ever. A task that merely cannot be cancelled for
a while, in a joined thread or a shielded section, looks the same from outside. The
difference is in what wakes it: one that spins is woken time after time by itself, or
by a task that it has started, in a place which a cancellation reaches.

`Spins` listens to the scheduler for that, and only between `begin` and `end`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final, final

import trio
from trio.lowlevel import Task

__all__ = ["Spins", "lineage"]

# So many rounds in a row are no clean-up any more.
_MANY: Final = 100


def lineage(task: Task) -> Iterator[Task]:
    """Walk from a task to the one that started it, and so on."""
    above: Task | None = task
    while above is not None:
        yield above
        nursery = above.parent_nursery
        above = None if nursery is None else nursery.parent_task


@final
class Spins(trio.abc.Instrument):
    """Counts the rounds that cancelled tasks make, and tells of those with many."""

    def __init__(self, found: Callable[[Task], None]) -> None:
        self._found = found
        self._on = False
        self._stepping: Task | None = None
        # Woken by themselves or by a descendant, and not run since.
        self._self_woken: set[Task] = set()
        self._rounds: dict[Task, int] = {}

    def begin(self) -> None:
        """Listen from now on. Not a checkpoint."""
        if not self._on:
            self._on = True
            trio.lowlevel.add_instrument(self)

    def end(self) -> None:
        """Listen no more, and forget what was counted. Not a checkpoint."""
        if self._on:
            self._on = False
            trio.lowlevel.remove_instrument(self)
            self._stepping = None
            self._self_woken.clear()
            self._rounds.clear()

    def task_scheduled(self, task: Task) -> None:
        """Note who woke it; a part of `trio.abc.Instrument`."""
        if self._stepping is not None and task in lineage(self._stepping):
            self._self_woken.add(task)

    def before_task_step(self, task: Task) -> None:
        """Count a round, or see that it is none; a part of `trio.abc.Instrument`."""
        self._stepping = task
        own = task in self._self_woken
        self._self_woken.discard(task)
        if own and trio.current_effective_deadline() == -math.inf:
            rounds = self._rounds[task] = self._rounds.get(task, 0) + 1
            if rounds >= _MANY:
                self._found(task)
        else:
            self._rounds.pop(task, None)

    def after_task_step(self, task: Task) -> None:
        """Note that none runs; a part of `trio.abc.Instrument`."""
        self._stepping = None

    def task_exited(self, task: Task) -> None:
        """Forget it; a part of `trio.abc.Instrument`."""
        self._rounds.pop(task, None)
