"""Whether code runs inside a turn of an agent: decided by the tree of tasks.

Children have tasks of their own, beside those of their parents. What joins the two is
a task that waits: a turn that waits for its child waits for whatever the child does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from .._errors import OwnTurnError

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["inside_own_turn", "refuse_own_turn"]


def inside_own_turn(driver: Driver) -> bool:
    """Whether the current task works in a turn of an agent, or for one.

    It does if it is the driver in a turn, or below it; or if it works in a turn of a
    child, and a task that does so waits for that child. Maintenance counts as a turn;
    a task that the agent started for itself does not.
    """
    if not driver.busy_inside:
        return False
    todo = [trio.lowlevel.current_task()]
    seen: set[trio.lowlevel.Task] = set()
    below: dict[trio.lowlevel.Task | None, Driver] | None = None
    while todo:
        task: trio.lowlevel.Task | None = todo.pop()
        while task is not None and task not in seen:
            if task is driver.task:
                return True
            seen.add(task)
            if driver.children:
                if below is None:
                    below = {one.task: one for one in _descendants(driver)}
                if task in below:
                    todo += below[task].work.waiting
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
    return False


def _descendants(driver: Driver) -> list[Driver]:
    found = [*driver.children]
    for one in found:
        found += one.children
    return found


def refuse_own_turn(driver: Driver, verb: str) -> None:
    """Refuse to wait for the end of a turn that waits for who asks.

    Raises:
      OwnTurnError: if the current task works inside a turn of the agent, or of a child
        that such a turn waits for.

    """
    if inside_own_turn(driver):
        raise OwnTurnError(driver.log.id, verb)
