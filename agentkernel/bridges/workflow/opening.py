"""How a record comes to be open: made anew, or read and gone on with.

A session is a record if it says so, however much else is in it: whoever talks to every
agent of a kernel talks to the record's as well. One that holds nothing but a header, and
messages that wait, is what a crash leaves of a record, and becomes one.
"""

from __future__ import annotations

import trio

import agentkernel as ak

from .record import Record
from .values import WorkflowRecordError

__all__ = ["open_record", "read_all", "read_record"]

_PAGE = 500


async def open_record(
    kernel: ak.Kernel,
    session_id: str,
    *,
    tools: tuple[ak.Tool, ...],
    options: ak.AgentOptions,
    parent: ak.Agent | None,
) -> ak.AgentHandle:
    """Resume a session, or create it; whoever is the first of two gets it.

    Always a checkpoint.

    Cancellation:
      There is no agent.

    Raises:
      SessionBusyError: if somebody has it open.

    """
    try:
        return await kernel.resume(
            session_id, tools=tools, options=options, parent=parent
        )
    except ak.SessionNotFoundError:
        pass
    try:
        return await kernel.create(
            session_id, tools=tools, options=options, parent=parent
        )
    except ak.SessionExistsError:
        return await kernel.resume(
            session_id, tools=tools, options=options, parent=parent
        )


async def read_record(session: ak.Session) -> Record:
    """Read what a record knows from the store.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      WorkflowRecordError: if the session is something else.

    """
    await session.flush()
    record = Record()
    after = 0
    while page := await session.read(after=after, limit=_PAGE):
        record.take(page)
        after = page[-1].seq
    if record.used and not record.is_record:
        raise WorkflowRecordError(session.id)
    return record


async def read_all(store: ak.SessionStore, session_id: str) -> list[ak.SessionEvent]:
    """Read a whole session; nothing if there is none.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    found: list[ak.SessionEvent] = []
    try:
        while page := await store.read(session_id, after=len(found), limit=_PAGE):
            found += page
    except ak.SessionNotFoundError:
        await trio.lowlevel.checkpoint()
    return found
