"""The handle of an agent's owner."""

from __future__ import annotations

from types import TracebackType
from typing import final

import trio

from .agent import Agent
from .driver import Driver
from .own_turn import inside_own_turn, refuse_own_turn

__all__ = ["AgentHandle"]


@final
class AgentHandle:
    """The ownership of one agent: who holds it decides when the agent ends.

    As an async context manager it is the agent's life: leaving disposes of it.
    """

    def __init__(self, agent: Agent, driver: Driver) -> None:
        self.agent = agent
        self._driver = driver

    async def __aenter__(self) -> Agent:
        """Enter the agent's life; not a checkpoint, and nothing to cancel."""
        return self.agent

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Dispose of the agent and wait for it, also when cancelled.

        Always a checkpoint.

        Cancellation:
          Shielded: when this returns, nothing of the agent runs any more.

        """
        with trio.CancelScope(shield=True):
            await self.dispose()

    async def dispose(self) -> None:
        """End the agent: interrupt it, wait for quiescence, close its session.

        May be called by anybody, any number of times; all wait for the same end.
        Always a checkpoint.

        Cancellation:
          The wait ends; the disposal goes on. Inside a turn of the agent itself the
          disposal cancels the caller, which is raised here.

        Raises:
          OwnTurnError: inside a turn of the agent, in a scope that is shielded from
            the turn's; the disposal goes on all the same.
          StorageError: if the last events could not be written; everything else has
            been done.

        """
        driver = self._driver
        driver.commons.check_thread("dispose")
        driver.begin_disposal()
        if inside_own_turn(driver):
            await trio.lowlevel.checkpoint_if_cancelled()
            refuse_own_turn(driver, "dispose")
        await driver.gone.wait()
        if driver.close_failure is not None:
            driver.failure_told = True
            raise driver.close_failure
