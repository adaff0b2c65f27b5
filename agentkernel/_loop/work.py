"""What an agent is waiting for right now, and who looks at that when a stop is slow.

Each piece of work that may take time is an entry while it lasts. `agent.blockers()`
reads the entries. The `Watchdog` reads them when a stop, or a write, has been going
on for long: it has one task and one deadline for the whole kernel, and no deadline
at all while nothing is being stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from types import TracebackType
from typing import Final, Protocol, final

import trio
from trio.lowlevel import Task, enable_ki_protection

from .payload import Blocker
from .spin import Spins, lineage

__all__ = ["Entry", "Watchdog", "Watched", "Work"]

# How long a stopped tool or task may spin before its scope is shielded, so that what
# swallows cancellations waits instead. One that is merely busy is never shielded.
_SPIN_SECONDS: Final = 0.5


@final
class Entry:
    """One piece of work; entered when it begins, left when it ends."""

    __slots__ = ("_work", "kind", "name", "scope", "since", "task")

    def __init__(
        self, work: Work, kind: str, name: str, scope: trio.CancelScope | None
    ) -> None:
        self._work = work
        self.kind: str = kind
        self.name: str = name
        # The work's own scope, if it has one that may be shielded.
        self.scope: trio.CancelScope | None = scope
        # Who does it; known if it has a scope.
        self.task: Task | None = None
        self.since: float = 0.0

    def __enter__(self) -> Entry:
        self.since = trio.current_time()
        if self.scope is not None:
            self.task = trio.lowlevel.current_task()
        self._work.entries[self] = None
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._work.entries.pop(self, None)


@final
class Work:
    """The entries of one agent, in the order in which they began.

    Attributes:
      waiting: the tasks that wait for the agent to be idle, or for an outcome. A turn
        that one of them works for is waiting, too: see `own_turn`.

    """

    __slots__ = ("entries", "waiting")

    def __init__(self) -> None:
        self.entries: dict[Entry, None] = {}
        self.waiting: set[trio.lowlevel.Task] = set()

    def doing(
        self, kind: str, name: str, scope: trio.CancelScope | None = None
    ) -> Entry:
        """Make an entry, to be entered."""
        return Entry(self, kind, name, scope)

    def shield(self, tasks: Container[Task]) -> None:
        """Shield what these tasks do in a scope of its own: it no longer spins."""
        for entry in self.entries:
            if entry.task is not None and entry.task in tasks:
                assert entry.scope is not None
                entry.scope.shield = True

    def blockers(self) -> tuple[Blocker, ...]:
        """Say what there is, with its age."""
        if not self.entries:
            return ()
        now = trio.current_time()
        return tuple(Blocker(e.kind, e.name, now - e.since) for e in self.entries)


class Watched(Protocol):
    """What a watchdog looks at."""

    work: Work

    @property
    def stopping_since(self) -> float | None:
        """When the stop that is going on began; None for none."""
        ...

    @property
    def writing_since(self) -> float | None:
        """When the write that it waits for began; None for none."""
        ...

    def report_stuck(self) -> None:
        """Publish `agent/stuck`."""
        ...


@final
class Watchdog:
    """Shields tools and tasks that spin when stopped; reports what takes too long."""

    def __init__(
        self, stuck_after: float, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._stuck_after = stuck_after
        # Told of what observers raised that nobody may contain.
        self._on_fatal = on_fatal
        self._shield_after = min(_SPIN_SECONDS, stuck_after)
        # When each is looked at next, and whether it was reported.
        self._due: dict[Watched, float] = {}
        # What has been told to stop for long enough to be shielded if it spins.
        self._late: set[Watched] = set()
        self._spins: Spins = Spins(self._shield)
        self._scope: trio.CancelScope | None = None

    def watch(self, watched: Watched) -> None:
        """Look at it from now on until its stop is over. Not a checkpoint."""
        due = trio.current_time() + self._shield_after
        if due < self._due.get(watched, math.inf):
            self._due[watched] = due
            self._set_deadline()

    def forget(self, watched: Watched) -> None:
        """Look no more: its stop is over. Not a checkpoint."""
        self._over(watched)
        if self._due.pop(watched, None) is not None:
            self._set_deadline()

    @enable_ki_protection
    async def run(self) -> None:
        """Sleep until something is due, for ever.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        try:
            while True:
                with trio.CancelScope() as self._scope:
                    self._set_deadline()
                    await trio.sleep_forever()
                now = trio.current_time()
                for watched in [w for w, due in self._due.items() if due <= now]:
                    self._look(watched, now)
        finally:
            self._spins.end()

    def _look(self, watched: Watched, now: float) -> None:
        del self._due[watched]
        stopped = watched.stopping_since
        if stopped is None:
            self._over(watched)
        since = watched.writing_since if stopped is None else stopped
        if since is None:
            return
        due = since + self._stuck_after
        if stopped is not None:
            shield_at = stopped + self._shield_after
            if now < shield_at:
                due = min(due, shield_at)
            else:
                self._late.add(watched)
                self._spins.begin()
        if now < due:
            self._due[watched] = due
        else:
            self._report(watched)

    def _report(self, watched: Watched) -> None:
        """Have it reported; an exit that comes of it leaves the kernel."""
        try:
            watched.report_stuck()
        except BaseException as error:  # noqa: ASYNC103, BLE001  # it leaves the kernel; the watchdog is needed for the end
            self._on_fatal(error)

    def _over(self, watched: Watched) -> None:
        """Note that it is not being stopped any more."""
        self._late.discard(watched)
        if not self._late:
            self._spins.end()

    def _shield(self, task: Task) -> None:
        """Shield the work that a task spins in, if its stop is late."""
        tasks = frozenset(lineage(task))
        for watched in self._late:
            watched.work.shield(tasks)

    def _set_deadline(self) -> None:
        if self._scope is not None:
            self._scope.deadline = min(self._due.values(), default=math.inf)
