"""Asking for an approval: whether a call may run, and for what its body wants to do.

A call that talks to another agent gets questions on the way. They go to the same
listeners as the question whether the call may run at all. That one is put without
the call's slot, so that an answer that takes long holds back no call that needs none.

A question lives no longer than the turn of its call: what a call has started may run on
in a job, and what that asks then could be stopped by nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import trio

from .._session.events import TurnEnded
from ..abc import ToolInvocation
from .dispatch import expect
from .payload import Allow, Appended, Approve, Deny, PreExecute

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
      ValueError: if the call's turn is not the live one, or ends before the answer.

    """
    call.signal.raise_if_cancelled()
    holder = driver.holder
    if holder is None or holder.signal is not call.signal:
        raise _too_late(driver, call)
    question = Approve(driver.agent, call.signal, call, reason)
    decision: Allow | Deny | None = None
    with trio.CancelScope() as scope:

        def look(payload: Appended) -> None:
            if isinstance(payload.event.data, TurnEnded):
                scope.cancel(reason="the turn of the call is over")

        unregister = driver.dispatch.own.add(Appended, look)
        try:
            with driver.work.doing("approval", call.name):
                decision = await driver.dispatch.waterfall(question, nobody_to_ask)
        finally:
            unregister()
    call.signal.raise_if_cancelled()
    if scope.cancelled_caught:
        raise _too_late(driver, call)
    expect(decision, Allow, Deny)
    assert decision is not None
    return decision


def _too_late(driver: Driver, call: ToolInvocation) -> ValueError:
    return ValueError(
        f"call {call.call_id!r} of turn {call.turn} asks agent {driver.agent.id!r} for "
        "an approval, and that turn is not live: ask while it runs"
    )


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
