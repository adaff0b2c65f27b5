"""Reading along: a subscription to the events of one session.

A subscription holds a position, not a queue: it reads the live tail that the session
keeps anyway, and the store for what is older. A reader that does nothing therefore
costs nothing, and the agent never waits for one.
"""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import TypeAlias, final

import msgspec
import trio

from .._errors import StorageError
from ..abc import SessionStore
from .events import ChunkStreamed, SessionEvent
from .log import Log

__all__ = ["Cursor", "Gap", "Reset", "Subscription", "SubscriptionItem"]

_PAGE = 256


class Cursor(msgspec.Struct, frozen=True, order=True):
    """A place in a session's log.

    A number alone is not enough: after a crash, numbers that were never durable are
    given again. The epoch says by whose claim the number was given.
    """

    epoch: int
    seq: int


class Gap(msgspec.Struct, frozen=True):
    """The reader was too slow: streamed chunks are left out between two numbers.

    All other events between them follow. `session.read(after=gap.after)` has them all.
    """

    after: int
    until: int


class Reset(msgspec.Struct, frozen=True):
    """The cursor lay beyond what had survived: what follows replaces it.

    The reader forgets what it saw behind `cursor.seq`; the replay starts there.
    """

    cursor: Cursor


SubscriptionItem: TypeAlias = SessionEvent | Gap | Reset


@final
class Subscription:
    """An async context manager and iterator over a session's events.

    Yields `SessionEvent`s in order from the cursor on, and marks: a `Gap` when the
    reader fell behind by more than its buffer, a `Reset` first if the cursor lay
    beyond what is there. Ends when the session has closed and all was read, with
    `follow=False` at the end as it was on entry. One task reads a subscription.
    Leaving it changes nothing for the agent.
    """

    def __init__(
        self,
        log: Log,
        store: SessionStore,
        *,
        after: int | Cursor,
        follow: bool,
        durable: bool,
        buffer: int | None,
    ) -> None:
        self._log = log
        self._store = store
        self._follow = follow
        self._durable = durable
        self._buffer = buffer
        self._ready: deque[SubscriptionItem] = deque()
        self._position = self._start(after)
        self._stop = self._end()
        # From the first time the reader has caught up it counts as live, and falling
        # behind becomes a gap.
        self._live = False
        # While above the position: chunks up to here are left out.
        self._lean_until = 0

    async def __aenter__(self) -> Subscription:
        """Enter; not a checkpoint, and nothing to cancel."""
        return self  # noqa: ASYNC910  # it has nothing to wait for

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave; not a checkpoint, and nothing to cancel."""

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> SubscriptionItem:
        """Return the next event or mark.

        Always a checkpoint.

        Cancellation:
          Nothing was consumed: the next call returns the same item.

        """
        waited = False
        while not self._ready:
            end = self._end()
            if self._position >= end:
                self._live = True
                if not self._follow or self._log.closed:
                    await trio.lowlevel.checkpoint()
                    raise StopAsyncIteration
                await self._log.wait_for_more()
                waited = True
                continue
            newest = self._only_new(end)
            if newest is None:
                await self._fill()
            else:
                self._ready.append(newest)
        if not waited:
            # Before the item is taken, so that a cancellation takes none.
            await trio.lowlevel.checkpoint()
        item = self._ready.popleft()
        if isinstance(item, SessionEvent):
            self._position = item.seq
        return item  # noqa: ASYNC910  # it has waited, or passed a checkpoint

    def _start(self, after: int | Cursor) -> int:
        """Find where to begin; a cursor that did not survive becomes a reset."""
        log = self._log
        end = log.durable_seq if self._durable else log.last_seq
        if isinstance(after, int):
            after = Cursor(log.claim.epoch, max(0, after))
        base = end
        for start in log.claim.epochs:
            if start.epoch > after.epoch:
                base = min(base, start.base_seq)
                break
        if after.epoch > log.claim.epoch:
            base = 0
        if after.seq <= base or (after.epoch == log.claim.epoch and after.seq <= end):
            return after.seq
        if after.epoch == log.claim.epoch:
            base = 0
        self._ready.append(Reset(Cursor(log.claim.epoch, base)))
        return base

    def _end(self) -> int:
        """The last event that may be shown now."""
        log = self._log
        end = log.durable_seq if self._durable else log.last_seq
        return end if self._follow else min(end, getattr(self, "_stop", end))

    def _only_new(self, end: int) -> SessionEvent | None:
        """Take the newest event if it is all that a reader who keeps up has to see."""
        log = self._log
        if self._position + 1 == end > self._lean_until and end >= log.tail_start:
            return log.tail[end - log.tail_start]
        return None

    async def _fill(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Fetch the next events, from the tail if it reaches back far enough."""
        log = self._log
        end = self._end()
        buffer = self._buffer
        if buffer is not None and self._live and self._lean_until <= self._position:
            behind = end - self._position
            if behind > buffer or self._position + 1 < log.tail_start:
                self._lean_until = max(log.tail_start - 1, end - buffer)
                self._ready.append(Gap(self._position, self._lean_until))
        start = log.tail_start
        if self._position + 1 >= start:
            first = self._position + 1 - start
            page = log.tail[first : min(first + _PAGE, end + 1 - start)]
        else:
            page = [*await self._store.read(log.id, after=self._position, limit=_PAGE)]
            if not page:
                raise StorageError(
                    f"the store of session {log.id!r} ends at event {self._position}",
                    durable_seq=self._position,
                )
        for event in page:
            if event.seq <= self._lean_until and isinstance(event.data, ChunkStreamed):
                continue
            self._ready.append(event)
        if page and not self._ready:
            self._position = page[-1].seq
