"""The keyboard: a terminal whose keys come one by one, read in the Trio thread.

Signals stay the terminal's business: Ctrl-C is SIGINT and Ctrl-Z suspends, also when
the event loop is busy. Only line editing and the echo are taken over.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final, final

import trio

from .editor import Key, KeyDecoder

__all__ = ["Keyboard"]

# How long an Esc may be the beginning of something else.
_ESCAPE_SECONDS: Final = 0.05
_PASTE_ON: Final = "\x1b[?2004h"
_PASTE_OFF: Final = "\x1b[?2004l"


@final
class Keyboard:
    """Standard input as a keyboard; one for a process, used by one task.

    Attributes:
      resumed: is set when the program goes on after it was suspended.

    """

    def __init__(self) -> None:
        self._descriptor = sys.stdin.fileno()
        self._before: list[int | list[bytes | int]] | None = None
        self._decoder = KeyDecoder()
        self.resumed: trio.Event = trio.Event()

    @contextmanager
    def taken(self) -> Generator[None]:
        """Take the terminal over for the length of a block."""
        token = trio.lowlevel.current_trio_token()

        def on_continue(number: int, frame: FrameType | None) -> None:
            self._take()
            token.run_sync_soon(self.resumed.set)

        self._before = termios.tcgetattr(self._descriptor)
        handler = signal.signal(signal.SIGCONT, on_continue)
        try:
            self._take()
            yield
        finally:
            signal.signal(signal.SIGCONT, handler)
            self.restore()

    def restore(self) -> None:
        """Give the terminal back as it was; harmless when called again."""
        before, self._before = self._before, None
        if before is not None:
            with suppress(OSError, termios.error):
                termios.tcsetattr(self._descriptor, termios.TCSANOW, before)
                os.write(sys.stdout.fileno(), _PASTE_OFF.encode())

    async def read(self) -> list[Key]:
        """Wait for keys.

        Always a checkpoint.

        Cancellation:
          No key is lost.

        Returns:
          At least one key; none when the terminal is gone.

        """
        while True:
            if self._decoder.waits:
                with trio.move_on_after(_ESCAPE_SECONDS) as scope:
                    await trio.lowlevel.wait_readable(self._descriptor)
                if scope.cancelled_caught:
                    return self._decoder.expire()
            else:
                await trio.lowlevel.wait_readable(self._descriptor)
            try:
                data = os.read(self._descriptor, 4096)
            except OSError:
                return []
            if not data:
                return []
            keys = self._decoder.feed(data)
            if keys:
                return keys

    def _take(self) -> None:
        if self._before is None:
            return
        with suppress(OSError, termios.error):
            mode = termios.tcgetattr(self._descriptor)
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self._descriptor, termios.TCSANOW, mode)
            os.write(sys.stdout.fileno(), _PASTE_ON.encode())
