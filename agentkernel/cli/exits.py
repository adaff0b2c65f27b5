"""How the command line ends: its exit codes, and the complaints that lead to one.

The numbers are documented in `docs/cli.md` and do not change their meaning.
"""

from __future__ import annotations

import enum
import signal

from agentkernel import Outcome

__all__ = ["Complaint", "Exit", "code_of", "code_of_signal"]


class Exit(enum.IntEnum):
    """An exit code."""

    COMPLETED = 0
    ERROR = 1
    USAGE = 2
    BLOCKED = 3
    MAX_STEPS = 4
    MAX_TOKENS = 5
    STORAGE = 6
    HANGUP = 129
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    TERMINATED = 143


class Complaint(Exception):
    """If the command cannot be done as it was given; the message is for the user."""

    def __init__(self, message: str, code: Exit = Exit.USAGE) -> None:
        self.code = code
        super().__init__(message)


_OF_OUTCOME = {
    "completed": Exit.COMPLETED,
    "blocked": Exit.BLOCKED,
    "max-steps": Exit.MAX_STEPS,
    "max-tokens": Exit.MAX_TOKENS,
    "aborted": Exit.INTERRUPTED,
    "discarded": Exit.INTERRUPTED,
}


def code_of(outcome: Outcome) -> Exit:
    """Find the exit code that says what became of a message."""
    return _OF_OUTCOME.get(outcome.kind, Exit.ERROR)


def code_of_signal(number: int) -> int:
    """Find the exit code of a program that a signal has ended."""
    return 128 + signal.Signals(number)
