"""A session as its users see it: what has happened, and ways to read it.

A thin front of `Log` and `Writer`: applications read, subscribe and wait for
durability here; bridges append the facts that are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast, final

import msgspec
import trio

from .._errors import WrongThreadError
from .._json import JsonValue, clean_text, freeze, freeze_object
from .._util import thread_id
from .events import (
    BRIDGE_FACTS,
    ApprovalAsked,
    Extension,
    Fact,
    SessionEvent,
    SessionHeader,
)
from .fold import MessageRecord
from .history import MessageView
from .log import TAIL, Log
from .subscription import Cursor, Subscription
from .writer import Writer

__all__ = ["Session"]


@final
class Session:
    """The durable side of one agent; `agent.session` in an application.

    Made by the kernel. All methods belong to the kernel's Trio thread. Its life ends
    with its agent's: afterwards it can be read, and nothing can be appended.
    """

    def __init__(self, log: Log, writer: Writer) -> None:
        self._log = log
        self._writer = writer
        self._thread = thread_id()

    @property
    def id(self) -> str:
        """The session's name in its store."""
        return self._log.claim.session_id

    @property
    def epoch(self) -> int:
        """The number of this claim on the session; see `Cursor`."""
        return self._log.claim.epoch

    @property
    def header(self) -> SessionHeader:
        """The first fact: format, options, lineage."""
        assert self._log.fold.header is not None
        return self._log.fold.header

    @property
    def last_seq(self) -> int:
        """The number of the newest event."""
        return self._log.last_seq

    @property
    def durable_seq(self) -> int:
        """The number up to which events are known to survive a crash."""
        return self._log.durable_seq

    @property
    def cursor(self) -> Cursor:
        """Where the log ends now, for a later `subscribe(after=…)`."""
        return Cursor(self._log.claim.epoch, self._log.last_seq)

    @property
    def closed(self) -> bool:
        """Whether the session has ended; it can still be read."""
        return self._log.closed

    @property
    def events(self) -> Sequence[SessionEvent]:
        """The live tail: the newest events, a copy. Older ones: `read`."""
        return tuple(self._log.tail)

    @property
    def messages(self) -> MessageView:
        """The history as the next request would show it: immutable, not a copy."""
        return self._log.fold.history.view()

    def record(self, message_id: str) -> MessageRecord | None:
        """Look up what became of a message so far; None if it is not known."""
        return self._log.fold.messages.get(message_id)

    @property
    def open_approvals(self) -> tuple[ApprovalAsked, ...]:
        """The questions that nobody has decided yet, in the order of asking."""
        return tuple(self._log.fold.open_approvals.values())

    def append(self, fact: Fact) -> int:
        """Append a fact that belongs to a bridge, and deliver it.

        Not a checkpoint; the event is durable after `flush(seq)`.

        Returns:
          The event's number.

        Raises:
          TypeError: if the fact is one of the kernel's own, or holds what is not
            JSON.
          AgentDisposedError: if the session is closed.
          WrongThreadError: if this is not the kernel's thread.

        """
        if thread_id() != self._thread:
            raise WrongThreadError("session.append")
        if not isinstance(fact, BRIDGE_FACTS):
            raise TypeError(
                f"{type(fact).__name__} is appended by the kernel alone; "
                "use an approval, hook or subagent fact, or an Extension"
            )
        return self._log.append(_detached(fact))

    async def flush(self, seq: int | None = None) -> None:
        """Wait until an event is durable: by default, the newest one.

        Always a checkpoint.

        Cancellation:
          The wait ends; the write goes on.

        Raises:
          StorageError: if the store failed; it holds the last durable number. The
            events stay queued and are written again.
          SessionDisplacedError: if another kernel has taken the session over.
          ValueError: if there is no such event yet.

        """
        if seq is not None and seq > self._log.last_seq:
            raise ValueError(f"event {seq} does not exist yet")
        await self._writer.flush(self._log, self._log.last_seq if seq is None else seq)

    async def read(
        self, *, after: int = 0, limit: int = 1000
    ) -> Sequence[SessionEvent]:
        """Read durable events from the store, from the one behind `after`.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        Returns:
          At most `limit` events; fewer only at the durable end.

        Raises:
          ValueError: if `after` is negative, or `limit` not positive.

        """
        await trio.lowlevel.checkpoint_if_cancelled()
        events = await self._writer.store.read(self.id, after=after, limit=limit)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return events

    def subscribe(
        self,
        *,
        after: int | Cursor = 0,
        follow: bool = True,
        durable: bool = False,
        buffer: int | None = TAIL,
    ) -> Subscription:
        """Read along: replay from a cursor, then follow without a gap.

        Use it as `async with session.subscribe(after=…) as events:` and iterate.
        Not a checkpoint. See `Subscription` for what it yields.

        Args:
          after: the last event already seen; 0 for all of them.
          follow: whether to go on after the events that there are now.
          durable: whether to wait for each event until it is durable.
          buffer: how many events the reader may fall behind before it gets a
            `Gap`, at most 1,024; None for a reader that wants every chunk, which
            then come from the store.

        """
        return Subscription(
            self._log,
            self._writer.store,
            after=after,
            follow=follow,
            durable=durable,
            buffer=None if buffer is None else max(1, min(buffer, TAIL)),
        )


def _detached(fact: Fact) -> Fact:
    """Make what a bridge hands in immutable and clean, whoever still holds it."""
    if isinstance(fact, Extension):
        return Extension(clean_text(fact.name), freeze(fact.body, fact.name))
    changed: dict[str, object] = {}
    for name in fact.__struct_fields__:
        value: object = getattr(fact, name)
        if isinstance(value, str):
            changed[name] = clean_text(value)
        elif isinstance(value, Mapping):
            changed[name] = freeze_object(cast("Mapping[object, object]", value), name)
    plain: object = msgspec.to_builtins(msgspec.structs.replace(fact, **changed))
    try:
        return msgspec.convert(plain, type(fact), dec_hook=_frozen)
    except msgspec.ValidationError as error:
        raise TypeError(f"{type(fact).__name__}: {error}") from None


def _frozen(_kind: type, value: object) -> JsonValue:
    """Make the JSON objects of a fact the frozen ones they were."""
    return freeze(value)
