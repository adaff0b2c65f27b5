"""What a restart has cut off, made good: jobs, their notices, and children."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio

import agentkernel as ak

from .facts import ended_fact, notice_id, notice_of, records_of
from .job import JobResult
from .ledger import read_concerns

__all__ = ["recover"]

_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 5.0


async def recover(agent: ak.Agent, end: int, done: trio.Event) -> None:
    """Close what a restart cut off, and see that each job has its notice.

    While the store cannot be read it is tried again: the failure is told once, by
    being raised, and another task of the agent goes on.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Args:
      agent: whose session has just been resumed.
      end: the last event of its earlier lives.
      done: set when all of it is in the log and the inbox.

    Raises:
      StorageError: if the first try failed.

    """
    try:
        await _recover(agent, end, done)
    except ak.SessionDisplacedError:
        raise
    except ak.StorageError:
        with suppress(ak.AgentDisposedError):
            again = partial(_try_again, agent, end, done)
            agent.start_soon(again, name="lost jobs")
        raise


async def _try_again(agent: ak.Agent, end: int, done: trio.Event) -> None:
    """Try until it is done, or the agent ends.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    delay = _FIRST_DELAY
    while True:
        await trio.sleep(delay)
        try:
            await _recover(agent, end, done)
        except ak.StorageError:
            delay = min(2 * delay, _MAX_DELAY)
        else:
            return


async def _recover(agent: ak.Agent, end: int, done: trio.Event) -> None:
    """Do it all in one act, once everything is read.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    events = await read_concerns(agent.session, end)
    for record in records_of(events, agent.id).values():
        known = record
        if known.ending is None:
            known = msgspec.structs.replace(known, ending="interrupted")
            lost = ended_fact(agent.id, known.id, "interrupted", JobResult())
            agent.session.append(lost)
        if agent.session.record(notice_id(known.id)) is None:
            # A resume starts nothing.
            agent.notice(notice_of(known), parked=True)
    done.set()
