"""Asking for an approval: whether a call may run, and for what its body wants to do.

A call that talks to another agent gets questions on the way. They go to the same
listeners as the question whether the call may run at all. That one is put without
the call's slot, so that an answer that takes long holds back no call that needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from ..abc import ToolInvocation
from .dispatch import expect
from .payload import Allow, Approve, Deny, PreExecute

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["allow", "ask_approval", "ask_without_slot", "nobody_to_ask"]


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
    expect(decision, Allow, Deny)
    return decision


class _Slotted(Protocol):
    """A call that may hold one of the slots of its step; None while it holds none."""

    slots: trio.Semaphore | None


async def ask_without_slot(
    driver: Driver, question: Approve, frame: _Slotted
) -> Allow | Deny:
    """Put the question of a call, and let others have its slot meanwhile.

    A checkpoint only if a listener passes one, or there was a slot.

    Cancellation:
      Passes through, and so does what a listener raises; the slot is gone then.

    """
    slots, frame.slots = frame.slots, None
    if slots is not None:
        slots.release()
    decision = await driver.dispatch.waterfall(question, nobody_to_ask)
    expect(decision, Allow, Deny)
    if slots is not None:
        await slots.acquire()
        frame.slots = slots
    return decision


async def allow(payload: PreExecute) -> Allow:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Allow the call: the default decision."""
    del payload
    return Allow()  # noqa: ASYNC910  # waits only if it must


async def nobody_to_ask(payload: Approve) -> Deny:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Deny what needs an approval that nobody here can give."""
    del payload
    return Deny("it needs an approval, and there is nobody to give one")  # noqa: ASYNC910  # waits only if it must
