"""SIGINT, SIGTERM and SIGHUP: the first asks, the second explains, the third leaves.

The handler runs in the main thread between two steps of anything, the event loop
included, so it only counts and passes the news on. Leaving at the third time is its
own work: it has to do so when the loop itself is blocked.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final, final

import trio

from .exits import code_of_signal

__all__ = ["Interrupts"]

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PATIENCE: Final = 3


@final
class Interrupts:
    """Counts the signals that ask this process to stop. One for a process.

    Attributes:
      presses: how many came since the last `settled`.
      on_signal: is told the number of the signal and the count, in the Trio thread.
      last_words: gives what to print when leaving at once; called in a handler.

    """

    def __init__(self) -> None:
        self.presses: int = 0
        self.on_signal: Callable[[int, int], object] = _nothing
        self.last_words: Callable[[], str] = str
        self._token: trio.lowlevel.TrioToken | None = None

    def settled(self) -> None:
        """Begin to count anew: what was asked for has happened."""
        self.presses = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Handle signals in this block; entered in the Trio thread.

        Afterwards SIGINT is ignored: the exit code is decided, and one press too many
        must not replace it by a traceback while the interpreter shuts down.
        """
        self._token = trio.lowlevel.current_trio_token()
        before = {number: signal.signal(number, self._handle) for number in _HANDLED}
        try:
            yield
        finally:
            for number, handler in before.items():
                ignored = number == signal.SIGINT
                signal.signal(number, signal.SIG_IGN if ignored else handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses >= _PATIENCE:
            self._leave(number)
        assert self._token is not None
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.on_signal, number, self.presses)

    def _leave(self, number: int) -> None:
        with suppress(OSError):
            os.write(2, f"\n{self.last_words()}\n".encode(errors="replace"))
        _kill_descendants()
        os._exit(code_of_signal(number))


def _kill_descendants() -> None:
    """Kill every process below this one, each with its process group, on Linux."""
    own, own_group = os.getpid(), os.getpgrp()
    table = dict(_processes())
    below = {own}
    while new := {pid for pid, (up, _) in table.items() if up in below} - below:
        below |= new
    for pid in below - {own}:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        group = table[pid][1]
        if group != own_group:
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, tuple[int, int]]]:
    """List processes: pid, and then parent and process group."""
    with suppress(OSError):
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    # The name in parentheses may hold anything, parentheses too.
                    fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                    yield int(entry.name), (int(fields[1]), int(fields[2]))


def _nothing(number: int, presses: int) -> None:
    """Tell nobody."""
