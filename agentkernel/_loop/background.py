"""Tasks that belong to an agent and not to a turn of it: the ground of jobs.

They live in a nursery of the agent, opened when the first of them is started, and
end with the agent: its disposal cancels and joins them before the session closes. A
stop of a turn does not touch them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, final

import trio

from .dispatch import initiator
from .failure import cancelled_here, fatal_leaf, fault

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["Background"]


@final
class Background:
    """The tasks of one agent; used by its driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._nursery: trio.Nursery | None = None
        # Started before the nursery was open.
        self._waiting: list[tuple[Callable[[], Awaitable[object]], str]] = []
        self._host_started = False
        self._ended = trio.Event()
        self._gone = trio.Event()

    def start(self, fn: Callable[[], Awaitable[object]], name: str) -> None:
        """Start a task; it begins with a later pass of the scheduler."""
        if self._nursery is not None:
            self._spawn(self._nursery, fn, name)
            return
        self._waiting.append((fn, name))
        if not self._host_started:
            self._host_started = True
            self._driver.commons.start(
                self._host, name=f"tasks of agent {self._driver.log.id}"
            )

    async def end(self) -> None:
        """Cancel every task and wait for the last one.

        A checkpoint only if there are any.

        Cancellation:
          Shielded by its caller.

        """
        if not self._host_started:
            return  # noqa: ASYNC910  # waits only if it must
        self._ended.set()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        with self._driver.work.doing("job", "tasks of the agent"):
            await self._gone.wait()

    async def _host(self) -> None:
        """Own the nursery until the agent ends.

        Always a checkpoint.

        Cancellation:
          The end comes through `end`.

        """
        try:
            async with trio.open_nursery() as self._nursery:
                for fn, name in self._waiting:
                    self._spawn(self._nursery, fn, name)
                self._waiting.clear()
                await self._ended.wait()
                self._nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
            self._gone.set()

    def _spawn(
        self, nursery: trio.Nursery, fn: Callable[[], Awaitable[object]], name: str
    ) -> None:
        """Start a task in the kernel's context: who asks for it lends it nothing."""
        self._driver.commons.start(partial(self._run, fn, name), name, nursery)

    async def _run(self, fn: Callable[[], Awaitable[object]], name: str) -> None:  # noqa: ASYNC910  # waits only if it must
        """Run one task; what it raises is reported and harms no other.

        A checkpoint only if the task passes one.

        Cancellation:
          Passes through.

        """
        initiator.set(self._driver.agent)
        try:
            await fn()
        except BaseException as error:  # noqa: ASYNC103  # reported, and raised if it is what stops the task
            driver = self._driver
            fatal = fatal_leaf(error)
            if fatal is not None:
                driver.commons.crash(fatal)
            found = fault(error, stopped=cancelled_here())
            if found is not None:
                driver.dispatch.report(found, f"task {name}")
            if cancelled_here() and not isinstance(error, Exception):
                raise
