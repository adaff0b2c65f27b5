"""What the stores that wait for a disk have in common: whose thread does what.

Such a store is a `Backend` of blocking calls in a shell that makes each call in a
worker thread, one hop per call. Claims and writes share one thread at a time, reads
have another, so a write that waits does not hold up those who read; other work in
threads cannot starve either. Encoding and decoding happen in there as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar, TypeVarTuple

import trio

from agentkernel import Append, Claim, SessionEvent, SessionInfo

from .batch import check_page, check_session_id

__all__ = ["Backend", "ThreadedStore"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Backend(Protocol):
    """A store of blocking calls; each does what its namesake in the port does.

    `read` and `sessions` may run beside one of the others, never beside each other.
    """

    def open(self) -> None:
        """Open it; harmless when it is open."""
        ...

    def close(self) -> None:
        """Release what is held, and close it; harmless when it is closed."""
        ...

    def claim(
        self, session_id: str, token: str, *, create: bool, takeover: bool
    ) -> Claim:
        """Become the one writer of a session."""
        ...

    def release(self, claim: Claim) -> None:
        """Give a claim back."""
        ...

    def read(self, session_id: str, after: int, limit: int) -> Sequence[SessionEvent]:
        """Read events."""
        ...

    def write(self, batch: Sequence[Append]) -> Sequence[Claim]:
        """Make a batch durable."""
        ...

    def sessions(self) -> Sequence[SessionInfo]:
        """List the sessions."""
        ...


class ThreadedStore:
    """A store whose calls are made in worker threads, and joined.

    May be entered by several kernels, one after the other or at the same time; it is
    closed when the last one leaves.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._writing = trio.CapacityLimiter(1)
        self._reading = trio.CapacityLimiter(1)
        self._entered = 0

    @property
    def waits(self) -> bool:
        """True: a write waits for the disk."""
        return True

    async def __aenter__(self) -> Self:
        """Open the store. Always a checkpoint.

        Cancellation:
          The store is not open.

        Raises:
          StorageError: if it cannot be opened.

        """
        self._entered += 1
        try:
            await self._run(self._writing, self._backend.open)
        except BaseException:
            self._entered -= 1
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the store and join its thread; claims still held are released.

        Always a checkpoint.

        Cancellation:
          The store is closed all the same.

        """
        self._entered -= 1
        with trio.CancelScope(shield=True):
            if self._entered == 0:
                async with self._reading:
                    await self._run(self._writing, self._backend.close)
            await trio.lowlevel.checkpoint()

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> Claim:
        """Become the one writer of a session; see `SessionStore.claim`.

        Always a checkpoint.

        Cancellation:
          Nothing happened: a claim that is being made is made and returned.

        Raises:
          SessionExistsError: if `create` and there is such a session.
          SessionNotFoundError: if not `create` and there is none.
          SessionBusyError: if a live kernel holds it.
          SessionFormatError: if what is stored is damaged before its tail.
          StorageError: if the storage cannot be reached, or the id is not one.

        """
        check_session_id(session_id)

        def make() -> Claim:
            return self._backend.claim(
                session_id, token, create=create, takeover=takeover
            )

        return await self._run(self._writing, make)

    async def release(self, claim: Claim, /) -> None:
        """Give a claim back; harmless if it is gone. Always a checkpoint.

        Cancellation:
          The claim is given back all the same.

        Raises:
          StorageError: if the storage cannot be reached.

        """
        with trio.CancelScope(shield=True):
            await self._run(self._writing, self._backend.release, claim)

    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[SessionEvent]:
        """Read durable events in order, from the one behind `after`.

        Always a checkpoint.

        Cancellation:
          Nothing happened; it is noticed when the page has been read.

        Raises:
          SessionNotFoundError: if there is no such session.
          SessionFormatError: if an event cannot be read; it names the number.
          StorageError: if the storage cannot be reached.
          ValueError: if `after` is negative, or `limit` not positive.

        """
        check_page(after, limit)
        return await self._run(
            self._reading, self._backend.read, session_id, after, limit
        )

    async def write(self, batch: Sequence[Append], /) -> Sequence[Claim]:
        """Make a batch durable; see `SessionStore.write`. Always a checkpoint.

        Cancellation:
          Nothing happened: a write that is being made is made.

        Returns:
          The claims that have been taken over by somebody else.

        Raises:
          StorageError: if it cannot be written now.

        """
        return await self._run(self._writing, self._backend.write, batch)

    async def sessions(self) -> Sequence[SessionInfo]:
        """List the sessions, the last changed first. Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          StorageError: if the storage cannot be reached.

        """
        return await self._run(self._reading, self._backend.sessions)

    @staticmethod
    async def _run(
        limiter: trio.CapacityLimiter, fn: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        """Make one call in a thread that is joined whatever happens."""
        return await trio.to_thread.run_sync(fn, *args, limiter=limiter)
