"""What every store does to a batch before it writes it."""

from __future__ import annotations

from collections.abc import Sequence

from agentkernel import SessionEvent, StorageError

__all__ = ["new_events"]


def new_events(
    session_id: str, events: Sequence[SessionEvent], last_seq: int
) -> Sequence[SessionEvent]:
    """Leave out what is stored already, and check that the rest follows it.

    A batch is handed in again after a failure, whether or not a part of it had been
    written. Not a checkpoint.

    Raises:
      StorageError: if an event is missing between what is stored and what is new, or
        inside the batch.

    """
    if not events:
        return events
    first = events[0].seq
    if first > last_seq + 1:
        raise StorageError(
            f"session {session_id!r}: event {last_seq + 1} is missing before {first}",
            durable_seq=last_seq,
        )
    for expected, event in enumerate(events, start=first):
        if event.seq != expected:
            raise StorageError(
                f"session {session_id!r}: event {event.seq} follows {expected - 1}",
                durable_seq=last_seq,
            )
    return events[last_seq + 1 - first :]
