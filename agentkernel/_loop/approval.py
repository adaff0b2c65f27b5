"""Asking for an approval: whether a call may run, and for what its body wants to do.

Whether a call has to be approved is for listeners to say; a call that they say nothing
about is decided by the mark of its tool, and an approval that nobody gives is a denial.

A call that talks to another agent gets questions on the way. They go to the same
listeners as the question whether the call may run at all. That one is put without
the call's slot, so that an answer that takes long holds back no call that needs none.

A question lives no longer than the turn of its call: what a call has started may run on
in a job, and what that asks then could be stopped by nobody.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import trio

from .._session.events import TurnEnded
from ..abc import Tool, ToolInvocation
from .payload import Allow, Appended, Approve, Ask, Deny, PreExecute

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["ask_approval", "ask_without_slot", "by_mark", "undecided"]


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
    if scope.cancelled_caught or driver.holder is not holder:
        raise _too_late(driver, call)
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
    if slots is not None:
        await slots.acquire()
        frame.slots = slots
    return decision


def by_mark(tool: Tool) -> Allow | Ask:
    """Decide as a tool is marked: what holds if no listener says otherwise.

    The mark is `needs_approval`, an attribute that a tool may have. The question may be
    waived, by whoever vouches for the call.
    """
    if getattr(tool, "needs_approval", False):
        return Ask("its tool is marked as needing an approval", waivable=True)
    return Allow()


def undecided(tool: Tool) -> Callable[[PreExecute], Awaitable[Allow | Ask]]:
    """Make what stands behind all listeners of `tools/pre-execute`."""

    async def decide(_payload: PreExecute) -> Allow | Ask:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
        return by_mark(tool)  # noqa: ASYNC910  # waits only if it must

    return decide


async def nobody_to_ask(payload: Approve) -> Deny:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Deny what needs an approval that nobody here can give."""
    del payload
    return Deny("it needs an approval, and there is nobody to give one")  # noqa: ASYNC910  # waits only if it must
