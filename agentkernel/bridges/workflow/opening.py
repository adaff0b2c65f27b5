"""How a record comes to be open: made anew, or read and gone on with.

A session is a record if it says so, however much else is in it: whoever talks to every
agent of a kernel talks to the record's as well. One that holds nothing but a header, and
messages that wait, is what a crash leaves of a record, and becomes one. So does any that
is made here, whatever its agent has been sent by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Report
from agentkernel.bridges.subagents.values import failure_of

from .record import DONE, ENDED, Record, done
from .values import WorkflowRecordError

__all__ = ["close_left", "open_record", "read_all", "read_record"]

_PAGE = 500


async def open_record(
    kernel: ak.Kernel,
    session_id: str,
    *,
    tools: tuple[ak.Tool, ...],
    options: ak.AgentOptions,
    parent: ak.Agent | None,
) -> tuple[ak.AgentHandle, bool]:
    """Resume a session, or create it; of two who want it the first one gets it.

    Always a checkpoint.

    Cancellation:
      There is no agent.

    Returns:
      Its handle, and whether it is new: then nothing of it has been waited for yet.

    Raises:
      SessionBusyError: if somebody has it open.

    """
    resume = partial(
        kernel.resume, session_id, tools=tools, options=options, parent=parent
    )
    try:
        return await resume(), False
    except ak.SessionNotFoundError:
        pass
    try:
        handle = await kernel.create(
            session_id, tools=tools, options=options, parent=parent
        )
    except ak.SessionExistsError:
        return await resume(), False
    return handle, True


async def read_record(session: ak.Session) -> Record:
    """Read what a record knows from the store.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      WorkflowRecordError: if the session is something else.

    """
    # What comes from here on is none of an earlier run's.
    end = session.last_seq
    await session.flush(end)
    record = Record()
    after = 0
    while after < end:
        page = await session.read(after=after, limit=min(_PAGE, end - after))
        record.take(page)
        after = page[-1].seq
    if record.used and not record.is_record:
        raise WorkflowRecordError(session.id)
    return record


async def close_left(agent: ak.Agent, record: Record) -> None:
    """Say in a record how the agents and the run ended that a crash cut off.

    An agent that may have done its task keeps its place: its result is taken from its
    session when it is asked for. The others are closed here. Always a checkpoint.

    Cancellation:
      Some of it was said; the next run says the rest.

    """
    session = agent.session
    ended: dict[str, ak.Ending] = {}
    for child in set(record.open.values()):
        ended[child] = _ending(await read_all(agent.kernel.store, child))
    for key, child in tuple(record.open.items()):
        ending = ended[child]
        if ending.kind != "completed":
            failure = failure_of(ending.kind, ending.message)
            report = Report(child, ending.kind, failure=failure)
            session.append(ak.Extension(DONE, done(key, report)))
            del record.open[key]
    if record.ending == "interrupted":
        session.append(ak.Extension(ENDED, {"ending": "interrupted"}))
    await trio.lowlevel.checkpoint()


def _ending(events: Iterable[ak.SessionEvent]) -> ak.Ending:
    """Say how an agent ended that nothing runs in any more.

    `completed` if any turn of its own did: which of them was its task's is known to
    who asks for its result. Else as its last turn.
    """
    copied = 0
    ending = ak.Ending("interrupted")
    for event in events:
        fact = event.data
        if isinstance(fact, ak.SessionHeader):
            copied = fact.lineage.forked_at or 0
        elif event.seq <= copied:
            continue
        elif isinstance(fact, ak.TurnEnded):
            ending = fact.reason
            if ending.kind == "completed":
                return ending
        elif isinstance(fact, ak.TurnStarted):
            ending = ak.Ending("interrupted")
    return ending


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
