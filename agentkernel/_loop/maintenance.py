"""Maintenance: a function that an idle agent runs as its only work, without a turn.

The caller hands the function to the driver, which runs it in its own task under a
holder of its own, and hands the result back. A stop reaches it like a turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

import outcome
import trio

from .._errors import AgentBusyError, MaintenanceCancelled
from .._signal import TurnSignal
from .cancellation import TurnCancellation
from .failure import fault
from .verbs import stop_holder

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["Maintenance", "maintain", "perform"]

T = TypeVar("T")


class Maintenance(Generic[T]):
    """A maintenance function on its way to the driver, and its result back."""

    __slots__ = ("done", "fn", "holder", "result")

    def __init__(
        self, fn: Callable[[TurnSignal], Awaitable[T]], holder: TurnCancellation
    ) -> None:
        self.fn: Callable[[TurnSignal], Awaitable[T]] = fn
        self.holder: TurnCancellation = holder
        self.result: outcome.Outcome[T] | None = None
        self.done: trio.Event = trio.Event()


async def maintain(driver: Driver, fn: Callable[[TurnSignal], Awaitable[T]]) -> T:
    """Run a function as the agent's only work; see `Agent.run_maintenance`."""
    driver.refuse_if_closed("run_maintenance")
    if driver.status != "idle" or driver.lifecycle != "live":
        raise AgentBusyError(driver.agent.id)
    holder = driver.holder = TurnCancellation()
    job = Maintenance(fn, holder)
    driver.maintenance = job  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # the driver only passes the result on
    driver.status = "running"
    driver.start()
    try:
        await job.done.wait()
    except trio.Cancelled:
        stop_holder(driver, holder, "user")
        with trio.CancelScope(shield=True):
            await job.done.wait()
        raise
    if job.result is None:
        raise MaintenanceCancelled(driver.agent.id)
    return job.result.unwrap()


async def perform(driver: Driver, job: Maintenance[object]) -> None:
    """Run the function in the driver's task, under its own holder.

    Always a checkpoint.

    Cancellation:
      The holder's scope ends here; what the function returned or raised after a
      stop is dropped, a fault among it is reported.

    """
    holder = job.holder
    result: outcome.Outcome[object] | None = None
    error: BaseException | None = None
    driver.busy_inside = True
    try:
        scope = holder.own(trio.CancelScope())
        with scope, driver.work.doing("maintenance", repr(job.fn)):
            if holder.reason is None:
                result = outcome.Value(await job.fn(holder.signal))
    except BaseException as caught:  # noqa: ASYNC103, BLE001  # it is the caller's, whatever it is
        error = caught
        result = outcome.Error(caught)
    finally:
        driver.busy_inside = False
    stopped = holder.reason is not None
    driver.holder = driver.maintenance = None
    if stopped:
        coincident = None if error is None else fault(error, stopped=True)
        if coincident is not None:
            driver.dispatch.report(coincident, "maintenance, while it was stopped")
        result = None
    job.result = result
    # What was wanted before a caller gave up is no reason to hold anything back.
    driver.converging = stopped and driver.lifecycle == "live" and not driver.wanted
    await driver.flush()
    job.done.set()
