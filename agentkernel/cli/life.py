"""What every command shares: one scope, one exit code, and what signals do to both.

A command runs in `Life.scope`. SIGTERM and SIGHUP cancel the scope, and with it the
kernel's block, which disposes of the agent. What SIGINT does is the command's own.
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Callable
from typing import final

import trio

from agentkernel import Agent, AgentStuck, ErrorReported, StorageError

from .console import Console
from .exits import Exit, code_of_signal
from .plain import one_line
from .signals import Interrupts

__all__ = ["Life"]


@final
class Life:
    """The life of one command. Used from the Trio thread alone.

    Attributes:
      console: where it prints.
      interrupts: counts the signals.
      scope: ends the command when cancelled.
      agent: the agent it works with, once there is one.
      ended_by: the exit code that somebody else than the command has decided.
      on_interrupt: what the first SIGINT does.
      on_again: what a later one does, after it was said what is being waited for.
      notice: prints a line about what goes on.
      restore: gives the terminal back; called before leaving at once.

    """

    def __init__(self, console: Console, interrupts: Interrupts) -> None:
        self.console = console
        self.interrupts = interrupts
        self.scope: trio.CancelScope = trio.CancelScope()
        self.agent: Agent | None = None
        self.ended_by: int | None = None
        self.on_interrupt: Callable[[], object] = self._end_by_interrupt
        self.on_again: Callable[[], object] = _nothing
        self.notice: Callable[[str], object] = console.notice
        self.restore: Callable[[], object] = _nothing
        interrupts.on_signal = self._on_signal
        interrupts.last_words = self._last_words
        console.on_broken = self._on_broken

    def end(self, code: int) -> None:
        """End the command with this exit code; the first call wins."""
        if self.ended_by is None:
            self.ended_by = code
        self.scope.cancel()

    def watch(self, agent: Agent) -> None:
        """Tell of what goes wrong without changing an outcome, and what is stuck."""
        self.agent = agent
        agent.on(ErrorReported, self._on_error)
        agent.on(AgentStuck, self._on_stuck)

    def explain(self) -> None:
        """Say what the agent is waiting for."""
        blockers = self.agent.blockers() if self.agent is not None else ()
        what = ", ".join(
            f"{b.kind} {one_line(b.name, 60)} ({b.age:.0f} s)" for b in blockers
        )
        self.notice(f"[waiting for {what or 'the end of the turn'}]")

    def _on_signal(self, number: int, presses: int) -> None:
        if presses > 1 or self.ended_by is not None:
            self.explain()
        if presses > 1:
            self.notice("[once more leaves at once]")
        if number != signal.SIGINT:
            self.end(code_of_signal(number))
        elif presses == 1:
            self.on_interrupt()
        else:
            self.on_again()

    def _end_by_interrupt(self) -> None:
        self.end(Exit.INTERRUPTED)

    def _on_broken(self) -> None:
        error = self.console.broken
        if isinstance(error, BrokenPipeError):
            self.end(Exit.BROKEN_PIPE)
        elif error is not None and error.errno in {errno.EIO, errno.ENXIO}:
            self.end(Exit.HANGUP)
        else:
            self.end(Exit.ERROR)

    def _on_error(self, payload: ErrorReported) -> None:
        kind = "" if isinstance(payload.error, StorageError) else f"{payload.where}: "
        self.notice(f"[error: {kind}{one_line(str(payload.error), 400)}]")

    def _on_stuck(self, payload: AgentStuck) -> None:
        self.explain()

    def _last_words(self) -> str:
        """Say, in a signal handler, what survives; and give the terminal back."""
        self.restore()
        if self.agent is None:
            return "left at once"
        session = self.agent.session
        return (
            f"left at once; the last durable event of session {session.id} "
            f"is number {session.durable_seq}"
        )


def _nothing() -> None:
    """Do nothing."""
