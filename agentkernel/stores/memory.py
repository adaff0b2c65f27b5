"""Sessions in memory: for tests, and for agents that nobody resumes.

The store keeps the events themselves, not their encoding. It keeps the same rules as
the durable stores: claims are exclusive and fenced, and a claim begins an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

import trio

from agentkernel import (
    Append,
    Claim,
    EpochStart,
    SessionBusyError,
    SessionEvent,
    SessionExistsError,
    SessionInfo,
    SessionNotFoundError,
)

from .batch import check_page, new_events

__all__ = ["MemoryStore"]


class _Kept:
    """One session."""

    __slots__ = ("claim", "epochs", "events")

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.epochs: list[EpochStart] = []
        self.claim: Claim | None = None

    @property
    def exists(self) -> bool:
        """Whether there is anything to resume, or somebody at work."""
        return bool(self.events) or self.claim is not None

    def is_held_by(self, claim: Claim) -> bool:
        """Whether a claim is the live one."""
        return self.claim is not None and _key(self.claim) == _key(claim)


@final
class MemoryStore:
    """A store whose sessions live as long as the object does.

    May be entered by several kernels, one after the other or at the same time;
    claims that are still held are released when the last one leaves.

    Args:
      shared_with: another handle, whose sessions this one shows as well.

    """

    def __init__(self, shared_with: MemoryStore | None = None) -> None:
        # Recency is the order of the dict: a session that changes moves to its end.
        self._sessions: dict[str, _Kept] = {}
        if shared_with is not None:
            self._sessions = shared_with._sessions  # noqa: SLF001  # the same class
        self._held: dict[tuple[str, str, int], Claim] = {}
        self._entered = 0

    @property
    def waits(self) -> bool:
        """False: everything happens in this process, at once."""
        return False

    async def __aenter__(self) -> Self:
        """Open the store. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        self._entered += 1
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the store; claims still held are released. Always a checkpoint."""
        self._entered -= 1
        if self._entered == 0:
            for claim in list(self._held.values()):
                self._release(claim)
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> Claim:
        """Become the one writer of a session; see `SessionStore.claim`.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          SessionExistsError: if `create` and there is such a session.
          SessionNotFoundError: if not `create` and there is none.
          SessionBusyError: if it is claimed, and not `takeover`.

        """
        await trio.lowlevel.checkpoint()
        kept = self._sessions.get(session_id) or _Kept()
        if create and kept.exists:
            raise SessionExistsError(session_id)
        if not create and not kept.exists:
            raise SessionNotFoundError(session_id)
        if kept.claim is not None and not takeover:
            raise SessionBusyError(session_id, "another kernel of this process")
        self._sessions[session_id] = kept
        last_seq = len(kept.events)
        epoch = len(kept.epochs) + 1
        kept.epochs.append(EpochStart(epoch, last_seq))
        claim = Claim(session_id, token, epoch, last_seq, tuple(kept.epochs))
        kept.claim = self._held[_key(claim)] = claim
        return claim

    async def release(self, claim: Claim, /) -> None:
        """Give a claim back; harmless if it is gone. Always a checkpoint.

        Cancellation:
          The claim is given back all the same.

        """
        self._release(claim)
        await trio.lowlevel.checkpoint()

    def _release(self, claim: Claim) -> None:
        self._held.pop(_key(claim), None)
        kept = self._sessions.get(claim.session_id)
        if kept is None or not kept.is_held_by(claim):
            return
        kept.claim = None
        if not kept.events:
            del self._sessions[claim.session_id]

    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[SessionEvent]:
        """Read events in order, from the one behind `after`. Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          SessionNotFoundError: if there is no such session.
          ValueError: if `after` is negative, or `limit` not positive.

        """
        check_page(after, limit)
        await trio.lowlevel.checkpoint()
        kept = self._sessions.get(session_id) or _Kept()
        if not kept.exists:
            raise SessionNotFoundError(session_id)
        return tuple(kept.events[after : after + limit])

    async def write(self, batch: Sequence[Append], /) -> Sequence[Claim]:
        """Keep a batch; see `SessionStore.write`. Not a checkpoint.

        Returns:
          The claims that have been taken over by somebody else.

        Raises:
          StorageError: if events are missing between what is kept and the batch.

        """
        displaced: list[Claim] = []
        for append in batch:
            claim = append.claim
            kept = self._sessions.get(claim.session_id)
            if kept is None or not kept.is_held_by(claim):
                displaced.append(claim)
                continue
            kept.events += new_events(claim.session_id, append.events, len(kept.events))
            self._sessions[claim.session_id] = self._sessions.pop(claim.session_id)
        return displaced  # noqa: ASYNC910  # writes of a store that never waits must not interleave

    async def sessions(self) -> Sequence[SessionInfo]:
        """List the sessions, the last changed first. Always a checkpoint."""
        await trio.lowlevel.checkpoint()
        return tuple(
            SessionInfo(
                session_id,
                last_seq=len(kept.events),
                updated_at=kept.events[-1].time if kept.events else None,
                claimed=kept.claim is not None,
            )
            for session_id, kept in reversed(self._sessions.items())
        )


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.session_id, claim.token, claim.epoch
