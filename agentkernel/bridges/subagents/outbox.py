"""Lines on their way to a program: one task writes them, in order, each of them whole.

Sits beside `wire`, below `peer`. Whoever has something to say leaves it here and does
not wait for the pipe, so nobody is cancelled in the middle of a line.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final, final

import trio

__all__ = ["Line", "Outbox"]

# Above this many waiting lines no answer is taken that may be left out.
_MOST_WAITING: Final = 256


@final
class Line:
    """One line on its way.

    Attributes:
      data: its bytes.
      begun: whether some of it has been written.
      done: set when it was written, or never will be.

    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.begun = False
        self.done: trio.Event = trio.Event()

    def withdraw(self) -> None:
        """Take the line back, if none of it was written. Not a checkpoint."""
        self.done.set()


@final
class Outbox:
    """What waits to be written to one program; its owner runs `run` in one task."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self._stream = stream
        self._closed = False
        self._put, self._lines = trio.open_memory_channel[Line](math.inf)

    def put(self, data: bytes) -> Line:
        """Add a line. After the end it is done at once. Not a checkpoint."""
        line = Line(data)
        if self._closed:
            line.done.set()
        else:
            self._put.send_nowait(line)
        return line

    def offer(self, data: bytes) -> None:
        """Add a line that is left out if too many wait already. Not a checkpoint."""
        if self._put.statistics().current_buffer_used < _MOST_WAITING:
            self.put(data)

    async def run(self) -> None:
        """Write what is put until the program reads no more.

        Always a checkpoint.

        Cancellation:
          Passes through. The line that is being written stays cut, and no other is
          written after it.

        """
        line: Line | None = None
        try:
            async for line in self._lines:
                if not line.done.is_set():
                    line.begun = True
                    await self._stream.send_all(line.data)
                    line.done.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.lowlevel.checkpoint()
        finally:
            self._closed = True
            if line is not None:
                line.done.set()
            self._release()

    def _release(self) -> None:
        """Tell everybody whose line is not written that it never will be."""
        with suppress(trio.WouldBlock):
            while True:
                self._lines.receive_nowait().done.set()
