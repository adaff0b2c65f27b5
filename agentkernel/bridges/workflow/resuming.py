"""Which record a call goes on from: an agent's own, by its name or as the latest one."""

from __future__ import annotations

from typing import Final

import agentkernel as ak

from .opening import read_all
from .record import Record
from .values import WorkflowRecordError

__all__ = ["LATEST", "find_record", "record_of"]

LATEST: Final = "latest"


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
        and the agent which was written to last, of those whose workflow has not
        completed and that nobody holds.

    Raises:
      WorkflowRecordError: if there is none.

    """
    prefix = _prefix(call)
    if wanted != LATEST:
        found = wanted if wanted.startswith(prefix) else f"{prefix}{wanted}"
        if (await _read(call, found)).is_record:
            return found
        raise WorkflowRecordError(wanted, f"is no record of agent {call.agent.id!r}")
    for info in await call.agent.kernel.store.sessions():
        if info.claimed or not info.session_id.startswith(prefix):
            continue
        record = await _read(call, info.session_id)
        if record.is_record and record.ending != "completed":
            return info.session_id
    raise WorkflowRecordError(
        wanted, f"is none: agent {call.agent.id!r} has no record to go on from"
    )


def _prefix(call: ak.ToolInvocation) -> str:
    return f"{call.agent.id}-"


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
