"""Tasks that belong to an agent and not to a turn of it: the ground of jobs.

They live in a nursery of the agent, opened when the first of them is started, and
end with the agent: its disposal cancels and joins them before the session closes. A
stop of a turn does not touch them. Each can be told to end alone.

A task that was told to end is something that quiescence may wait for: from then on it
is among the agent's blockers by its name, and the watchdog looks at it. One that
swallows its end for a while is shielded, it alone, so that it waits instead of
spinning; one that goes on for longer is reported as stuck.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, final

import trio

from .dispatch import initiator
from .failure import cancelled_here, cancelled_part, fatal_leaf, fault
from .work import Work

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["Background"]


@final
class Background:
    """The tasks of one agent; used by its driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._nursery: trio.Nursery | None = None
        self._tasks: dict[_Task, None] = {}
        # Started before the nursery was open.
        self._waiting: list[_Task] = []
        self._host_started = False
        self._ended = trio.Event()
        self._gone = trio.Event()

    def start(
        self, fn: Callable[[], Awaitable[object]], name: str
    ) -> Callable[[], None]:
        """Start a task; it begins with a later pass of the scheduler.

        Returns:
          A function that tells this task to end.

        """
        task = _Task(self, self._driver, fn, name)
        self._tasks[task] = None
        if self._nursery is not None:
            self._spawn(self._nursery, task)
            return task.cancel
        self._waiting.append(task)
        if not self._host_started:
            self._host_started = True
            self._driver.commons.start(
                self._host, name=f"tasks of agent {self._driver.log.id}"
            )
        return task.cancel

    async def end(self) -> None:
        """Cancel every task and wait for the last one.

        A checkpoint only if there are any.

        Cancellation:
          Shielded by its caller.

        """
        if not self._host_started:
            return  # noqa: ASYNC910  # waits only if it must
        for task in self._tasks:
            task.expect_end()
        self._ended.set()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        await self._gone.wait()

    def report_stuck(self, stuck: _Task) -> None:
        """Publish `agent/stuck`, once for all that are as late as this one."""
        assert stuck.stopping_since is not None
        if stuck.reported:
            return
        for task in self._tasks:
            since = task.stopping_since
            if since is not None and since <= stuck.stopping_since:
                task.reported = True
        self._driver.report_stuck()

    def forget(self, task: _Task) -> None:
        """Drop a task that has ended."""
        self._tasks.pop(task, None)

    async def _host(self) -> None:
        """Own the nursery until the agent ends.

        Always a checkpoint.

        Cancellation:
          The end comes through `end`.

        """
        try:
            async with trio.open_nursery() as self._nursery:
                for task in self._waiting:
                    self._spawn(self._nursery, task)
                self._waiting.clear()
                await self._ended.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._gone.set()

    def _spawn(self, nursery: trio.Nursery, task: _Task) -> None:
        """Start a task in the kernel's context: who asks for it lends it nothing."""
        self._driver.commons.start(task.run, task.name, nursery)


@final
class _Task:
    """One task, and what is known of its end; a watchdog looks at it (`Watched`).

    Attributes:
      work: the task alone, so that nothing else is shielded with it.
      stopping_since: when it was told to end, None if it was not.
      reported: whether `agent/stuck` has named it.

    """

    writing_since: None = None

    def __init__(
        self,
        background: Background,
        driver: Driver,
        fn: Callable[[], Awaitable[object]],
        name: str,
    ) -> None:
        self.name = name
        self.work: Work = Work()
        self.stopping_since: float | None = None
        self.reported: bool = False
        self._background = background
        self._driver = driver
        self._fn = fn
        self._since = trio.current_time()
        # The outer scope ends this task alone, the inner one may be shielded from it.
        self._scope = trio.CancelScope()
        self._own = trio.CancelScope()
        # Holds the entry among the agent's blockers, once there is one.
        self._listed = ExitStack()
        self._over = False

    def cancel(self) -> None:
        """Tell this task to end; harmless when called again, or after its end.

        Not a checkpoint.

        Raises:
          WrongThreadError: if this is not the kernel's thread.

        """
        self._driver.commons.check_thread("end", "task")
        if self.stopping_since is None and not self._over:
            self.expect_end()
            self._scope.cancel()

    def expect_end(self) -> None:
        """List it as a blocker and have it watched: it is being told to end."""
        self.stopping_since = trio.current_time()
        self.reported = False
        self._listed.close()
        entry = self._driver.work.doing("job", self.name)
        self._listed.enter_context(entry).since = self._since
        self._driver.commons.watchdog.watch(self)

    def report_stuck(self) -> None:
        """Publish `agent/stuck`."""
        self._background.report_stuck(self)

    async def run(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Run the task; what it raises is reported and harms no other.

        A checkpoint only if the task passes one.

        Cancellation:
          Passes through; one that is its own end alone stops here.

        """
        initiator.set(self._driver.agent)
        try:
            with self._scope, self._own, self.work.doing("job", self.name, self._own):
                await self._fn()
        except BaseException as error:  # noqa: ASYNC103, BLE001  # reported; the cancellation in it goes on
            driver = self._driver
            fatal = fatal_leaf(error)
            if fatal is not None:
                driver.commons.crash(fatal)
            found = fault(error, stopped=cancelled_here())
            if found is not None:
                driver.dispatch.report(found, f"task {self.name}")
            cancelled = cancelled_part(error)
            if cancelled is not None and cancelled_here():
                raise cancelled  # noqa: ASYNC104, B904  # it is what was caught, or a part of it
        finally:
            self._over = True
            self._listed.close()
            self._driver.commons.watchdog.forget(self)
            self._background.forget(self)
