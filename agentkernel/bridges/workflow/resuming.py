"""Which record a call goes on from: an agent's own, by its name or as the latest one."""

from __future__ import annotations

from typing import Final

import agentkernel as ak

from .opening import read_all
from .record import Record
from .values import WorkflowRecordError

__all__ = ["LATEST", "META", "find_record", "record_of"]

LATEST: Final = "latest"
# What a result says in its meta of the record behind it.
META: Final = "workflow"


def record_of(call: ak.ToolInvocation) -> str:
    """Name the record of a call that begins a workflow."""
    return f"{_prefix(call)}{call.call_id}"


async def find_record(call: ak.ToolInvocation, wanted: str) -> str:
    """Find the record that a call wants to go on from.

    The record's own header says whose it is, never its name. Always a checkpoint.

    Cancellation:
      Nothing happened.

    Args:
      call: of the tool whose record it is.
      wanted: a record, the call that began it, or `latest`: that record of the tool
        and the agent which was written to last, of those that nobody holds and that
        are not done with: their workflow has completed, and the agent was given its
        result.

    Raises:
      WorkflowRecordError: if there is none.
      StorageError: if the agent's log cannot be made durable, or not be read.

    """
    prefix = _prefix(call)
    if wanted != LATEST:
        found = wanted if wanted.startswith(prefix) else f"{prefix}{wanted}"
        if (await _read(call, found)).is_record:
            return found
        raise WorkflowRecordError(wanted, f"is no record of agent {call.agent.id!r}")
    given: set[str] | None = None
    for info in await call.agent.kernel.store.sessions():
        if info.claimed or not info.session_id.startswith(prefix):
            continue
        record = await _read(call, info.session_id)
        if not record.is_record:
            continue
        if record.ending == "completed":
            # A stop or a crash may have taken the result of the call that ran it.
            given = await _given(call.agent) if given is None else given
            if info.session_id in given:
                continue
        return info.session_id
    raise WorkflowRecordError(
        wanted, f"is none: agent {call.agent.id!r} has no record to go on from"
    )


def _prefix(call: ak.ToolInvocation) -> str:
    return f"{call.agent.id}-"


async def _given(agent: ak.Agent) -> set[str]:
    """List the records whose workflow's result an agent was given.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      StorageError: if its log cannot be made durable, or not be read.

    """
    await agent.session.flush()
    given: set[str] = set()
    for event in await read_all(agent.kernel.store, agent.id):
        fact = event.data
        if isinstance(fact, ak.ToolReturned) and fact.error is None:
            given.add(str(fact.meta.get(META, "")))
    return given


async def _read(call: ak.ToolInvocation, session_id: str) -> Record:
    """Read a record; an empty one if it is another agent's, or another tool's.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    events = await read_all(call.agent.kernel.store, session_id)
    record = Record()
    record.take(events)
    if record.parent == call.agent.id and record.name == call.name:
        return record
    return Record()
