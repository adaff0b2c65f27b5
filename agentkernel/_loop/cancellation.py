"""One turn's authority to be stopped: a scope, a signal, and the first cause.

A `TurnCancellation` is made for each prospective turn, before the agent says that it
is running, and is thrown away with it. Nobody outside the loop ever holds one: what
takes part in the turn is given its signal, which can only be looked at.

The scope is the one that Trio gives the turn's nursery anyway: a second one around it
would add nothing but a fifth to the cost of a bare turn. Before the nursery is open
nothing is awaited, and a stop needs no scope.
"""

from __future__ import annotations

from typing import final

import trio

from .._signal import SignalSource, StopKind, StopReason, TurnSignal

__all__ = ["TurnCancellation"]


@final
class TurnCancellation:
    """The holder: owns the scope of one turn and fires its signal.

    Attributes:
      source: what is behind the signal; it knows the reason.
      scope: everything that the turn awaits runs inside it; None until `own`.
      signal: what the turn's participants are handed.
      stopped_at: when it was stopped, on Trio's clock; None if it was not.

    """

    __slots__ = ("scope", "signal", "source", "stopped_at")

    def __init__(self) -> None:
        self.source: SignalSource = SignalSource()
        self.signal: TurnSignal = TurnSignal(self.source)
        self.scope: trio.CancelScope | None = None
        self.stopped_at: float | None = None

    @property
    def reason(self) -> StopReason | None:
        """Who stopped it first, None if nobody did."""
        return self.source.reason

    def own(self, scope: trio.CancelScope) -> trio.CancelScope:
        """Take over the scope of what runs from here on, and return it.

        A holder that was stopped before cancels it at once. Not a checkpoint.
        """
        self.scope = scope
        if self.source.reason is not None:
            scope.cancel(reason="the turn was stopped before it began")
        return scope

    def stop(self, kind: StopKind) -> bool:
        """Stop the turn, unless that has been done: the first reason stays.

        In this order: the reason is set, waiters of the signal are released, the
        scope is cancelled. The signal's observers are the caller's to call, since
        what they raise is reported elsewhere. Not a checkpoint.

        Returns:
          Whether this call stopped it.

        """
        source = self.source
        if source.reason is not None:
            return False
        self.stopped_at = trio.current_time()
        source.fire(StopReason(kind))
        if self.scope is not None:
            self.scope.cancel(reason=f"the turn was stopped: {kind}")
        return True

    def take_observers(self) -> tuple[SignalSource.Observer, ...]:
        """Hand over the signal's observers, each to be called once."""
        return self.source.take_observers()
