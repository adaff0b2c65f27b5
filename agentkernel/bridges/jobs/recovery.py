"""What a log knows of jobs: read from the store, and made good after a restart."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import lost_children

from .facts import ended_fact, notice_id, notice_of, records_of
from .job import JobResult

__all__ = ["read_concerns", "recover"]

_PAGE: Final = 500
_CONCERN: Final = (ak.SessionHeader, ak.Extension, ak.SubagentDescribed)
_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 5.0


async def recover(agent: ak.Agent, end: int) -> None:
    """Close what a restart cut off, and see that each job has its notice.

    While the store cannot be read it is tried again: the failure is told once, by
    being raised, and another task of the agent goes on.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Args:
      agent: whose session has just been resumed.
      end: the last event of its earlier lives.

    Raises:
      StorageError: if the first try failed.

    """
    try:
        await _recover(agent, end)
    except ak.SessionDisplacedError:
        raise
    except ak.StorageError:
        with suppress(ak.AgentDisposedError):
            agent.start_soon(partial(_try_again, agent, end), name="lost jobs")
        raise


async def _try_again(agent: ak.Agent, end: int) -> None:
    """Try until it is done, or the agent ends.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    delay = _FIRST_DELAY
    done = False
    while not done:
        await trio.sleep(delay)
        delay = min(2 * delay, _MAX_DELAY)
        with suppress(ak.StorageError):
            await _recover(agent, end)
            done = True


async def _recover(agent: ak.Agent, end: int) -> None:
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
    for child in lost_children(events):
        agent.session.append(child)


async def read_concerns(session: ak.Session, end: int) -> list[ak.SessionEvent]:
    """Read the events up to `end` that concern jobs and children, from the store.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      StorageError: if they cannot be made durable, or not be read.

    """
    await session.flush(end)
    found: list[ak.SessionEvent] = []
    after = 0
    while after < end:
        page = await session.read(after=after, limit=min(_PAGE, end - after))
        found += [event for event in page if isinstance(event.data, _CONCERN)]
        after = page[-1].seq
    return found
