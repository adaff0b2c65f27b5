"""Take back the task of a child that has parked it: nobody is going to wake it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import agentkernel as ak

__all__ = ["look_after"]


def look_after(message_id: str, payload: ak.StatusChanged) -> None:
    """Have a message looked after with which its agent has gone idle."""
    child = payload.agent
    if payload.status == "idle" and _is_pending(child, message_id):
        # One that is ending gives up its input by itself.
        with suppress(ak.AgentDisposedError):
            child.start_soon(partial(_withdraw, child, message_id), name="parked task")


async def _withdraw(child: ak.Agent, message_id: str) -> None:
    """Take a message back that an agent has parked: nobody is going to wake it.

    Who parks input means to say later how it goes on. A child that somebody waits for
    has no later.

    Always a checkpoint.

    Cancellation:
      The message stays.

    """
    await child.when_idle()
    try:
        # An agent whose log cannot be written is idle too, and goes on by itself.
        await child.session.flush()
    except ak.StorageError:
        return
    await child.when_idle()
    if _is_pending(child, message_id):
        child.inbox.remove(message_id)


def _is_pending(child: ak.Agent, message_id: str) -> bool:
    waiting = (*child.inbox.next_step, *child.inbox.next_turn)
    return any(message.id == message_id for message in waiting)
