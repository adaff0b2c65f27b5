"""Who lives in a kernel: its agents and drivers, the task that hosts them, their end."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import StorageError
from .._session.log import Log
from .agent import Agent
from .commons import Commons
from .driver import Driver
from .failure import fatal_leaf

__all__ = ["Roster"]


@final
class Roster:
    """The agents of one kernel, from the first to the last.

    Attributes:
      agents, drivers: those that live, in the order in which they were opened.
      opening: the sessions that are being opened.
      ending: whether the end of the kernel has begun: nobody is added any more.
      hosted: set when drivers can be started.
      left: set when the nursery of the drivers has been left.

    """

    def __init__(self, commons: Commons) -> None:
        self._commons = commons
        self.agents: dict[str, Agent] = {}
        self.drivers: dict[Agent, Driver] = {}
        self.opening: set[str] = set()
        self.ending: bool = False
        self.hosted: trio.Event = trio.Event()
        self.left: trio.Event = trio.Event()
        self._failed: list[Driver] = []
        self._ended = trio.Event()

    def add(self, agent: Agent, driver: Driver) -> None:
        """Add an agent and start its driver."""
        driver.on_gone = lambda: self._forget(agent)
        self.agents[agent.id] = agent
        self.drivers[agent] = driver
        self._commons.start(driver.run, name=f"agent {agent.id}")

    def is_live(self, session_id: str) -> bool:
        """Whether an agent has this session open and is not about to end."""
        agent = self.agents.get(session_id)
        return agent is not None and self.drivers[agent].lifecycle == "live"

    @enable_ki_protection
    async def host(  # noqa: ASYNC910  # waits only if it must
        self,
        context: contextvars.Context,
        on_crash: Callable[[], None],
    ) -> None:
        """Run drivers, writer and watchdog until the kernel has ended.

        Always a checkpoint.

        Cancellation:
          Shielded: the end comes through `end`.

        """
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    self._commons.open(nursery, context, on_crash)
                    nursery.start_soon(self._commons.writer.run)
                    nursery.start_soon(self._commons.watchdog.run)
                    self._commons.writer.on_failure = self._storage_failed
                    self._commons.writer.on_write = self._write_began
                    self._commons.writer.on_fatal = self._commons.crash
                    self.hosted.set()
                    await self._ended.wait()
                    nursery.cancel_scope.cancel()
        except BaseException as error:  # noqa: ASYNC103, BLE001  # a fault of the kernel's own tasks leaves the block as itself
            self._commons.crash(fatal_leaf(error) or error)
        finally:
            self.left.set()

    @enable_ki_protection
    async def watch_for_cancellation(self) -> None:
        """Turn a cancellation of the block into the disposal of every agent.

        Always a checkpoint.

        Cancellation:
          That is what it waits for; it passes through.

        """
        try:
            await trio.sleep_forever()
        finally:
            self.begin_end()

    async def see_to_the_end(self, error: BaseException | None) -> BaseException | None:
        """End the kernel, whatever comes; return what the block has to raise.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        while not self.left.is_set():
            try:
                await self.end()
            except KeyboardInterrupt as interrupt:
                # It reaches the main task wherever it waits; the end goes on.
                error = error or interrupt
        return error  # noqa: ASYNC910  # waits only if it must

    async def end(self) -> None:
        """Dispose of every agent and wait until all have gone.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        self.begin_end()
        while self.drivers:
            driver = next(iter(self.drivers.values()))
            await driver.gone.wait()
            self.drivers.pop(driver.agent, None)
        self._ended.set()
        await self.left.wait()

    def _forget(self, agent: Agent) -> None:
        """Let an agent leave; its driver calls this when it is gone."""
        driver = self.drivers[agent]
        if driver.close_failure is not None:
            self._failed.append(driver)
        self.agents.pop(agent.id, None)
        if not self.ending:
            self.drivers.pop(agent, None)

    def begin_end(self) -> None:
        self.ending = True
        for driver in tuple(self.drivers.values()):
            driver.begin_disposal()

    @property
    def close_failures(self) -> dict[str, StorageError]:
        """What could not be written when agents left, and nobody was told of."""
        return {
            driver.log.id: driver.close_failure
            for driver in self._failed
            if driver.close_failure is not None and not driver.failure_told
        }

    def _driver_of(self, log: Log) -> Driver | None:
        agent = self.agents.get(log.id)
        return None if agent is None else self.drivers.get(agent)

    def _storage_failed(self, log: Log, error: StorageError) -> None:
        """Report a failed write to the agent; one that was displaced ends."""
        driver = self._driver_of(log)
        if driver is not None:
            driver.dispatch.report(error, "writing the session")
            if log.displaced:
                driver.begin_disposal()

    def _write_began(self) -> None:
        """Have a write watched, for every agent that waits for one."""
        for driver in self.drivers.values():
            if driver.log.last_seq > driver.log.durable_seq:
                self._commons.watchdog.watch(driver)
