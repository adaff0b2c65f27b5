"""The task that carries logs to the store, and what a failed write does.

One writer serves all sessions of a kernel. It has no timer: it writes when it is
kicked (by a `flush`, an accepted message, a tool result, or enough streamed chunks),
and takes everything that is there at that moment, of all sessions, in one `write` of
the store. Kicks that come while it writes form the next group.

A write that fails leaves the events where they are. The failure is reported, every
flush that waits raises it, and the same events are written again with backoff, or at
once if somebody flushes. A store that never waits for the world outside (`waits` is
False) is written to from the flush itself; the task is then needed only after a
failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, final

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import SessionDisplacedError, StorageError
from ..abc import Append, Claim, SessionStore
from .log import Log

__all__ = ["Writer"]

logger = logging.getLogger(__name__)

P = ParamSpec("P")

_FIRST_DELAY: Final = 0.1
_MAX_DELAY: Final = 5.0
_GATHER_PASSES: Final = 3
# How many events may be in memory alone before a kick of their own.
_KICK_EVENTS: Final = 64


@final
class Writer:
    """Moves committed events into the store; made and run by the kernel.

    Attributes:
      store: the kernel's store.
      writing_since: when the write that is going on began, on Trio's clock; None
        when there is none.

    """

    def __init__(self, store: SessionStore) -> None:
        self.store = store
        self.writing_since: float | None = None
        # Told once per outage and log, and once for a session taken over.
        self.on_failure: Callable[[Log, StorageError], None] | None = None
        self.on_write: Callable[[], None] | None = None
        # Told of what a store, or who was told of a write, raised and is no Exception.
        self.on_fatal: Callable[[BaseException], None] | None = None
        # Sessions that may have events to write, in the order of their first kick.
        self._dirty: dict[Log, None] = {}
        self._kicked = trio.Event()
        # Whether somebody waits for the next write.
        self._urgent = False
        # Replaced whenever a write has ended: what flushes wait for.
        self._settled = trio.Event()
        # Sessions whose last write failed, with the failure.
        self._failed: dict[Log, StorageError] = {}
        self._failures = 0

    def kick(self, log: Log) -> None:
        """Ask for a session's events to be written soon. Not a checkpoint."""
        self._dirty[log] = None
        if self.store.waits:
            self._kicked.set()

    def nudge(self, log: Log) -> None:
        """Kick if many events wait. Not a checkpoint."""
        if log.last_seq - log.durable_seq >= _KICK_EVENTS:
            self.kick(log)

    def failure(self, log: Log) -> StorageError | None:
        """The failure that keeps a session from being written, if there is one."""
        return self._failed.get(log)

    async def flush(self, log: Log, seq: int) -> None:
        """Wait until an event is durable; see `Session.flush`.

        Always a checkpoint.

        Cancellation:
          The wait ends; the write goes on.

        Raises:
          StorageError: if a write that this call waited for failed.

        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if log.durable_seq >= seq:
            await trio.lowlevel.cancel_shielded_checkpoint()
        elif self.immediate:
            await self.write_now(log)
            await trio.lowlevel.cancel_shielded_checkpoint()
        else:
            await self._wait_durable(log, seq)
            if log.durable_seq < seq:
                raise self._reason(log)

    @property
    def immediate(self) -> bool:
        """Whether a write needs no waiting: the store never does, and has not failed."""
        return not self.store.waits and not self._failed

    async def write_now(self, log: Log) -> None:  # noqa: ASYNC910  # waits only if it must
        """Write a log's events to a store that never waits.

        Not a checkpoint.

        Cancellation:
          Cannot be cancelled: it never waits.

        Raises:
          StorageError: if the store failed.

        """
        if log.durable_seq < log.last_seq and not log.displaced:
            failure = await self._try([Append(log.claim, log.unflushed())], [log])
            if failure is not None:
                self._fail(log, failure)
        if log.durable_seq < log.last_seq:
            raise self._reason(log)

    @enable_ki_protection
    async def run(self) -> None:
        """Write whenever kicked, for ever; the kernel cancels it when all is closed.

        Always a checkpoint.

        Cancellation:
          Passes through between writes; a write that has begun is finished.

        """
        delay = _FIRST_DELAY
        while True:
            if self._failed:
                with trio.move_on_after(delay):
                    await self._kicked.wait()
                delay = min(2 * delay, _MAX_DELAY)
            else:
                delay = _FIRST_DELAY
                await self._kicked.wait()
            await self._gather()
            self._kicked = trio.Event()
            self._urgent = False
            logs = dict.fromkeys([*self._failed, *self._dirty])
            self._dirty.clear()
            await self._write([*logs])

    async def _gather(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Let a few passes of the scheduler go by, unless somebody waits.

        What a task appends without waiting for anything then joins one write.

        A checkpoint unless somebody waits.

        Cancellation:
          Passes through.

        """
        for _ in range(_GATHER_PASSES):
            if self._urgent:
                return  # noqa: ASYNC910  # waits only if it must
            await trio.lowlevel.checkpoint()

    async def _wait_durable(self, log: Log, seq: int) -> None:  # noqa: ASYNC910  # waits only if it must
        """Wait for writes until `seq` is durable or one that had it has failed."""
        while log.durable_seq < seq and not log.displaced:
            self._urgent = True
            self._dirty[log] = None
            self._kicked.set()
            joined = self.writing_since is None
            settled, failures = self._settled, self._failures
            await settled.wait()
            if joined and self._failures > failures and log in self._failed:
                return

    async def _write(self, logs: Sequence[Log]) -> None:
        """Write what the sessions have; a failing session does not hold the others."""
        batch: list[Append] = []
        owners: list[Log] = []
        for log in logs:
            if not log.displaced and (events := log.unflushed()):
                batch.append(Append(log.claim, events))
                owners.append(log)
            else:
                self._failed.pop(log, None)
        if not batch:
            self._settle()
            return  # noqa: ASYNC910  # waits only if it must
        if self.store.waits:
            self.writing_since = trio.current_time()
            self._tell(self.on_write)
        try:
            failure = await self._try(batch, owners)
            if failure is not None:
                for append, log in zip(batch, owners, strict=True):
                    if len(batch) > 1:
                        failure = await self._try([append], [log])
                    if failure is not None:
                        self._fail(log, failure)
        finally:
            self.writing_since = None
            self._settle()

    async def _try(self, batch: list[Append], owners: list[Log]) -> StorageError | None:
        """Write one batch; on success mark its events durable."""
        displaced: Sequence[Claim] = ()
        try:
            if self.store.waits:
                displaced = await self._shielded(batch)
            else:
                displaced = await self.store.write(batch)
        except StorageError as error:
            return error  # noqa: ASYNC910  # waits only if it must
        except Exception as error:  # a store may be anybody's
            logger.debug("the store raised", exc_info=True)
            return StorageError(f"{type(error).__name__}: {error}")  # noqa: ASYNC910  # waits only if it must
        except trio.Cancelled:
            raise
        except BaseException as error:  # noqa: ASYNC103  # it leaves the kernel; the writer is needed for the end
            if self.on_fatal is None:
                raise
            self.on_fatal(error)
            return StorageError(type(error).__name__)  # noqa: ASYNC910  # waits only if it must
        self._written(batch, owners, displaced)
        return None

    def _written(
        self, batch: list[Append], owners: list[Log], displaced: Sequence[Claim]
    ) -> None:
        """Mark what was written durable, but for the sessions that others own now."""
        lost = {claim.session_id for claim in displaced} if displaced else ()
        for append, log in zip(batch, owners, strict=True):
            if log.id in lost:
                self._displace(log)
                continue
            log.mark_durable(append.events[-1].seq)
            if self._failed and self._failed.pop(log, None) is not None:
                logger.warning("session %s can be written again", log.id)
                self._tell(log.on_recovered)

    async def _shielded(self, batch: list[Append]) -> Sequence[Claim]:
        """Have a store that waits write, whatever becomes of who asked for it.

        Always a checkpoint.

        Cancellation:
          Shielded: a write that has begun is finished.

        """
        displaced: Sequence[Claim] = ()
        with trio.CancelScope(shield=True):
            displaced = await self.store.write(batch)
        return displaced  # noqa: RET504  # a scope could swallow, say the checkers

    def _fail(self, log: Log, failure: StorageError) -> None:
        """Note a failure; the first of an outage is reported."""
        self._failures += 1
        known = log in self._failed
        self._failed[log] = StorageError(failure.message, durable_seq=log.durable_seq)
        if not known:
            logger.error("session %s cannot be written: %s", log.id, failure)
            self._tell(self.on_failure, log, self._failed[log])

    def _displace(self, log: Log) -> None:
        """Give a session up that another kernel has taken over."""
        log.displaced = True
        self._failed.pop(log, None)
        logger.error("session %s was taken over by another kernel", log.id)
        self._tell(self.on_failure, log, self._reason(log))

    def _tell(
        self, told: Callable[P, object] | None, *args: P.args, **named: P.kwargs
    ) -> None:
        """Call who is to know; an exit that comes of it leaves the kernel.

        The writer goes on: it is needed for the end.
        """
        if told is None:
            return
        try:
            told(*args, **named)
        except BaseException as error:  # noqa: ASYNC103  # it leaves the kernel
            if self.on_fatal is None:
                raise
            self.on_fatal(error)

    def _reason(self, log: Log) -> StorageError:
        """Say why a session's events are not durable."""
        if log.displaced:
            return SessionDisplacedError(log.id, durable_seq=log.durable_seq)
        failure = self._failed.get(log)
        return failure or StorageError(
            "the store accepted the events and kept none",
            durable_seq=log.durable_seq,
        )

    def _settle(self) -> None:
        """Release every flush that waits, to look again."""
        self._settled.set()
        self._settled = trio.Event()

    def forget(self, log: Log) -> None:
        """Write no more of a session that is given back. Not a checkpoint."""
        self._dirty.pop(log, None)
        self._failed.pop(log, None)

    async def close(self, log: Log) -> None:
        """Write what is left of a session and give its claim back.

        Always a checkpoint.

        Cancellation:
          The kernel shields this call.

        Raises:
          StorageError: if the rest could not be written; the claim is given back.

        """
        try:
            await self.flush(log, log.last_seq)
            while log.durable_seq < log.last_seq:
                # Accepted during the checkpoint that a flush ends with.
                await self.flush(log, log.last_seq)
        finally:
            with trio.CancelScope(shield=True):
                log.close()
                self.forget(log)
                await self._release(log.claim)

    async def _release(self, claim: Claim) -> None:
        """Give a claim back; whatever a store raises is a failure of the store.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        try:
            await self.store.release(claim)
        except StorageError:
            raise
        except Exception as error:  # a store may be anybody's
            raise StorageError(f"{type(error).__name__}: {error}") from error
