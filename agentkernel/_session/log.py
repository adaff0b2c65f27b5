"""The append-only log of one session, its fold, and its delivery.

`append` is where everything that lasts begins. It is synchronous: the fact gets its
number and its time, joins the log and the fold in one act, and is then delivered.
Delivery is first in, first out: an observer that causes further facts sees them
after its own, in order. Durability is the writer's business; reading along is the
subscriptions'. Users hold a `Session`, which shows a part of this.

Invariants: numbers are contiguous from 1; the fold is the fold of exactly the events
up to `last_seq`; `durable_seq` never runs ahead of `last_seq` and never goes back;
the events that are not durable yet are always in the tail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, final

from trio.lowlevel import ParkingLot, enable_ki_protection

from .._errors import AgentDisposedError, SessionFormatError
from ..abc import Claim
from .events import Ending, Extension, Fact, SessionEvent, TurnEnded
from .fold import Fold

__all__ = ["TAIL", "Log"]

# How many durable events stay in memory behind the newest one.
TAIL: Final = 1024


@final
class Log:
    """What has happened in one session, in memory and on its way to the store.

    Made by the kernel when it creates, resumes or forks; lives as long as the agent.
    All methods belong to the kernel's Trio thread; those that are not async are no
    checkpoints.
    """

    def __init__(self, claim: Claim, now: Callable[[], float]) -> None:
        self.claim = claim
        self.now = now
        self.fold: Fold = Fold()
        # The newest events; those up to `durable_seq` may leave at the front.
        self.tail: list[SessionEvent] = []
        self.tail_start: int = claim.last_seq + 1
        self.last_seq: int = claim.last_seq
        self.durable_seq: int = claim.last_seq
        self.closed: bool = False
        # Whether another kernel has taken the session over.
        self.displaced = False
        # Set by the agent: who is told of each event, whether anybody listens (an
        # event that is committed while nobody does is never delivered), and who is
        # told of a store that is back.
        self.publish: Callable[[SessionEvent], None] = _nobody
        self.audience: Callable[[], bool] = bool
        self.on_recovered: Callable[[], None] | None = None
        # Where subscriptions wait for something new, and whether any does.
        self.readers: ParkingLot = ParkingLot()
        self.has_readers: bool = False
        # While entered, facts are committed and their delivery waits.
        self.holding: _Holding = _Holding(self)
        self.hold_depth = 0
        # Facts that are committed and not yet delivered, in order.
        self.undelivered: deque[SessionEvent] = deque()
        self._delivering = False

    @property
    def id(self) -> str:
        """The session's name in its store."""
        return self.claim.session_id

    def append(self, fact: Fact) -> int:
        """Commit a fact and deliver what waits for delivery; return its number."""
        seq = self.commit(fact)
        if self.undelivered and not self.hold_depth:
            self.deliver()
        return seq

    @enable_ki_protection
    def commit(self, fact: Fact) -> int:
        """Number, date, keep and fold a fact: one act that nothing interrupts.

        Raises:
          AgentDisposedError: if the log is closed.

        """
        if self.closed:
            raise AgentDisposedError(self.claim.session_id)
        self.fold.apply(fact)
        seq = self.last_seq = self.last_seq + 1
        event = SessionEvent(seq, self.now(), fact, type(fact) is Extension)
        self.tail.append(event)
        if self.audience():
            self.undelivered.append(event)
        if self.has_readers:
            self.wake_readers()
        return seq

    def deliver(self) -> None:
        """Hand out events until none is left; a nested call leaves it to the outer."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self.undelivered and not self.hold_depth:
                event = self.undelivered.popleft()
                self.publish(event)
        finally:
            self._delivering = False

    def replay(self, events: Sequence[SessionEvent]) -> None:
        """Fold what the store holds already; nobody is told."""
        apply = self.fold.apply
        for event in events:
            fact = event.data
            if type(fact) is TurnEnded and fact.reason.kind == "aborted":
                _refuse_detail(event, fact)
            apply(fact)

    def skip_to(self, seq: int) -> None:
        """Go on behind `seq`: events up to there are in the store already."""
        self.last_seq = self.durable_seq = seq
        self.tail_start = seq + 1

    def unflushed(self) -> list[SessionEvent]:
        """List the events that are not durable yet, in order."""
        return self.tail[self.durable_seq + 1 - self.tail_start :]

    def mark_durable(self, seq: int) -> None:
        """Note that the store has everything up to `seq`; forget what is old."""
        self.durable_seq = max(self.durable_seq, seq)
        if self.has_readers:
            self.wake_readers()
        if len(self.tail) >= 2 * TAIL:
            surplus = min(len(self.tail) - TAIL, self.durable_seq + 1 - self.tail_start)
            del self.tail[:surplus]
            self.tail_start += surplus

    def close(self) -> None:
        """End the log: readers come to their end, appends are refused."""
        self.closed = True
        self.wake_readers()

    def wake_readers(self) -> None:
        """Have every subscription that waits look again."""
        if self.has_readers:
            self.has_readers = False
            self.readers.unpark_all()

    async def wait_for_more(self) -> None:
        """Wait, as a subscription does, until something has changed.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        self.has_readers = True
        await self.readers.park()


class _Holding:
    """A context manager for `Log.holding`; it nests."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._log.hold_depth += 1

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        log = self._log
        log.hold_depth -= 1
        if log.undelivered and not log.hold_depth:
            log.deliver()


def _nobody(event: SessionEvent) -> None:
    """Stand in for an audience until there is one."""


def _refuse_detail(event: SessionEvent, fact: TurnEnded) -> None:
    """Refuse an aborted ending that says more than its kind, whatever store kept it."""
    if fact.reason != Ending("aborted") or event.raw is not None:
        raise SessionFormatError(
            "an aborted ending holds its kind and nothing else", seq=event.seq
        )
