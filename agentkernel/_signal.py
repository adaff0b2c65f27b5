"""The signal of a turn, and the closed vocabulary of who stops one.

A `TurnSignal` is handed to everything that takes part in a turn. It can be looked
at, waited for and observed; it cannot be fired from here: that is the loop's
business. It says that the turn is over and, coarsely, why; it does not outlive the
turn it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias, final

import msgspec
import trio

from ._errors import TurnCancelled

__all__ = [
    "PARENT",
    "USER",
    "CancelCause",
    "SignalSource",
    "StopKind",
    "StopReason",
    "TurnSignal",
]

StopKind: TypeAlias = Literal["user", "parent", "disposed"]


class CancelCause(msgspec.Struct, frozen=True):
    """On whose behalf a turn is cancelled: `USER` or `PARENT`, nobody else."""

    kind: Literal["user", "parent"]


USER: Final = CancelCause("user")
PARENT: Final = CancelCause("parent")


class StopReason(msgspec.Struct, frozen=True):
    """Why a signal fired; `disposed` is the runtime's own and never a cause."""

    kind: StopKind


@final
class SignalSource:
    """What is behind a signal: set once, by whoever owns the turn."""

    __slots__ = ("_event", "_observers", "reason")

    Observer: TypeAlias = Callable[[StopReason], object]

    def __init__(self) -> None:
        # Set once, by fire(); from then on nothing changes.
        self.reason: StopReason | None = None
        # Made when somebody first waits: most signals are never waited for.
        self._event: trio.Event | None = None
        self._observers: dict[object, SignalSource.Observer] = {}

    def fire(self, reason: StopReason) -> None:
        """Set the reason and release those who wait; the first call wins."""
        if self.reason is None:
            self.reason = reason
            if self._event is not None:
                self._event.set()

    @property
    def fired(self) -> trio.Event:
        """The event to wait for."""
        if self._event is None:
            self._event = trio.Event()
            if self.reason is not None:
                self._event.set()
        return self._event

    def observe(self, fn: Observer) -> Callable[[], None]:
        """Keep an observer until it is taken or unregistered."""
        key = object()
        self._observers[key] = fn

        def unregister() -> None:
            self._observers.pop(key, None)

        return unregister

    def take_observers(self) -> tuple[Observer, ...]:
        """Hand over the observers, each to be called once."""
        observers = tuple(self._observers.values())
        self._observers.clear()
        return observers


@final
class TurnSignal:
    """Says whether the turn it belongs to has been stopped.

    One object for a whole turn; the next turn has another one. The loop makes it. A
    signal made without a source never fires: for a test of a tool or a model.
    """

    __slots__ = ("_source",)

    def __init__(self, source: SignalSource | None = None) -> None:
        self._source = source or SignalSource()

    @property
    def cancelled(self) -> bool:
        """Whether the turn has been stopped."""
        return self._source.reason is not None

    @property
    def reason(self) -> StopReason | None:
        """Why the turn was stopped, None as long as it was not."""
        return self._source.reason

    async def wait(self) -> StopReason:
        """Wait until the turn is stopped.

        Always a checkpoint.

        Cancellation:
          The signal is unchanged. Inside the turn a stop also cancels this wait,
          so what comes after it runs only in a shielded scope.

        Returns:
          Why the turn was stopped.

        """
        await self._source.fired.wait()
        assert self._source.reason is not None
        return self._source.reason

    def raise_if_cancelled(self) -> None:
        """Raise `TurnCancelled` if the turn has been stopped.

        For code of the turn that runs long without a checkpoint, in a task or in a
        worker thread. The kernel takes that exception for the cancellation itself.
        Not a checkpoint.

        Raises:
          TurnCancelled: if the turn was stopped.

        """
        if self._source.reason is not None:
            raise TurnCancelled

    def on_cancel(self, fn: SignalSource.Observer, /) -> Callable[[], None]:
        """Call `fn(reason)` synchronously when the turn is stopped.

        At once if that has happened already, and what it raises is then its
        caller's. Else it is contained and reported: it cannot veto the stop. Not a
        checkpoint.

        Returns:
          A function that unregisters `fn`; harmless when called again.

        """
        if self._source.reason is not None:
            fn(self._source.reason)
            return lambda: None
        return self._source.observe(fn)
