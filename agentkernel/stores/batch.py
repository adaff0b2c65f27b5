"""What every store does to its input before it touches anything."""

from __future__ import annotations

from collections.abc import Sequence

from agentkernel import SessionEvent, StorageError

__all__ = ["MAX_ID_LENGTH", "check_page", "check_session_id", "new_events"]

MAX_ID_LENGTH = 200


def check_session_id(session_id: str) -> None:
    """Refuse what no store keeps as a session's id. Not a checkpoint.

    Raises:
      StorageError: if it is empty, longer than 200 characters, or not Unicode text.

    """
    try:
        session_id.encode()
    except UnicodeEncodeError:
        raise StorageError(f"session id {session_id!r} is not Unicode text") from None
    if not 1 <= len(session_id) <= MAX_ID_LENGTH:
        raise StorageError(
            f"a session id has 1 to {MAX_ID_LENGTH} characters, not {len(session_id)}"
        )


def check_page(after: int, limit: int) -> None:
    """Refuse what is no page of a session. Not a checkpoint.

    Raises:
      ValueError: if `after` is negative, or `limit` not positive.

    """
    if after < 0:
        raise ValueError(f"events are numbered from 1: after={after} is before them")
    if limit < 1:
        raise ValueError(f"a page has at least one event: limit={limit}")


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
