"""What the log of a session knows of jobs, read from the store as far as it is new."""

from __future__ import annotations

from typing import Final, final

import agentkernel as ak

from .facts import JobRecord, records_of

__all__ = ["Ledger", "read_concerns"]

_PAGE: Final = 500
_CONCERN: Final = (ak.SessionHeader, ak.Extension)


@final
class Ledger:
    """The records of one agent's jobs, those of earlier lives of its session included.

    Kept as long as the agent lives; each event is read once.
    """

    def __init__(self, session: ak.Session) -> None:
        self._session = session
        self._end = 0
        self._records: dict[str, JobRecord] = {}

    async def read(self) -> dict[str, JobRecord]:
        """Read what is new; give all records by their ids, the oldest first.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          StorageError: if the log cannot be made durable, or not be read.

        """
        known, end = self._records, self._session.last_seq
        events = await read_concerns(self._session, end, after=self._end)
        found = records_of(events, self._session.id, known)
        if end > self._end:
            # Another reader may have been faster, and have read more.
            self._end, self._records = end, found
        return dict(found)


async def read_concerns(
    session: ak.Session, end: int, *, after: int = 0
) -> list[ak.SessionEvent]:
    """Read the events up to `end` that concern jobs, from the store.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      StorageError: if they cannot be made durable, or not be read.

    """
    await session.flush(end)
    found: list[ak.SessionEvent] = []
    while after < end:
        page = await session.read(after=after, limit=min(_PAGE, end - after))
        found += [event for event in page if isinstance(event.data, _CONCERN)]
        after = page[-1].seq
    return found
