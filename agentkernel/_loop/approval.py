"""Asking for an approval outside the pipeline of a call: for what its body wants to do.

A call that talks to another agent gets questions on the way. They go to the same
listeners as the question whether the call may run at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..abc import ToolInvocation
from .payload import Allow, Approve, Deny

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["ask_approval", "nobody_to_ask"]


async def ask_approval(
    driver: Driver, call: ToolInvocation, reason: str
) -> Allow | Deny:
    """Put a question to the `Approve` listeners of an agent.

    A checkpoint only if a listener passes one.

    Cancellation:
      Passes through; that is no denial.

    Raises:
      TurnCancelled: if the turn was stopped, also while the answer was awaited.

    """
    question = Approve(driver.agent, call.signal, call, reason)
    call.signal.raise_if_cancelled()
    with driver.work.doing("approval", call.name):
        decision = await driver.dispatch.waterfall(question, nobody_to_ask)
    call.signal.raise_if_cancelled()
    return decision


async def nobody_to_ask(payload: Approve) -> Deny:  # noqa: RUF029  # a waterfall's base is awaited
    """Deny what needs an approval that nobody here can give."""
    del payload
    return Deny("it needs an approval, and there is nobody to give one")
