"""Whether code runs inside a turn of an agent: decided by the tree of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .._errors import OwnTurnError

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["inside_own_turn", "refuse_own_turn"]


def inside_own_turn(driver: Driver) -> bool:
    """Whether the current task is the driver in a turn, or below it.

    Maintenance counts as a turn; a task that the agent started for itself does not.
    """
    if not driver.busy_inside:
        return False
    task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
    while task is not None:
        if task is driver.task:
            return True
        nursery = task.parent_nursery
        task = None if nursery is None else nursery.parent_task
    return False


def refuse_own_turn(driver: Driver, verb: str) -> None:
    """Refuse to wait, inside a turn of an agent, for that turn's end.

    Raises:
      OwnTurnError: if the current task works inside a turn of the agent.

    """
    if inside_own_turn(driver):
        raise OwnTurnError(driver.log.id, verb)
