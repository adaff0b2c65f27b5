"""Standard output and standard error, written without ever blocking the event loop.

`put` is synchronous, so that observers can use it; one task (`run`) carries what was
put to the two files, in order. A reader of events awaits `room` between two pieces:
a slow terminal slows the display and nothing else. When the other side is gone the
console is `broken`: from then on everything is dropped.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, TextIO, final

import trio

__all__ = ["Console", "Streams"]

_BACKLOG: Final = 65536
# Where `poll` says that a pipe or a terminal takes output, it takes this much.
_SLICE: Final = 512


@final
class Console:
    """The two output files of this process.

    Attributes:
      broken: the error that ended the output, None as long as it works.
      on_broken: called once when that happens.

    """

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self._files = (out or sys.stdout, err or sys.stderr)
        self.on_broken: Callable[[], object] = _nothing
        self.broken: OSError | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._arrived = trio.Event()
        # Replaced whenever something was written: what `room` and `drained` wait for.
        self._written = trio.Event()

    @property
    def colours(self) -> bool:
        """Whether standard error is a terminal that shows colours."""
        return (
            self._files[1].isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )

    def put(self, text: str, *, error: bool = False) -> None:
        """Queue text for standard output, or standard error. Not a checkpoint."""
        if self.broken is not None or not text:
            return
        file = self._files[error]
        data = text.encode(file.encoding or "utf-8", "replace")
        self._waiting.append((file.fileno(), data))
        self._size += len(data)
        self._arrived.set()

    def notice(self, text: str) -> None:
        """Queue a line about what is going on, for standard error."""
        line = f"\x1b[2m{text}\x1b[0m" if self.colours else text
        self.put(f"{line}\n", error=True)

    async def room(self) -> None:
        """Wait until the backlog is small. Always a checkpoint.

        Cancellation:
          The wait ends; what was put is still written.

        """
        await trio.lowlevel.checkpoint()
        while self._size > _BACKLOG:
            await self._written.wait()

    async def drained(self) -> None:
        """Wait until everything is written or the output is broken.

        Always a checkpoint.

        Cancellation:
          The wait ends; what was put is still written.

        """
        await trio.lowlevel.checkpoint()
        while self._size:
            await self._written.wait()

    async def run(self) -> None:
        """Write what is put, for ever.

        Always a checkpoint.

        Cancellation:
          Passes through; what was not written is lost.

        """
        while True:
            await trio.lowlevel.checkpoint()
            while not self._waiting:
                self._arrived = trio.Event()
                await self._arrived.wait()
            descriptor, data = self._waiting[0]
            try:
                written = await _write_some(descriptor, data)
            except OSError as error:
                self._break(error)
                continue
            self._size -= written
            if written == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = (descriptor, data[written:])
            self._tell()

    def _break(self, error: OSError) -> None:
        self._waiting.clear()
        self._size = 0
        self.broken = error
        self._tell()
        self.on_broken()

    def _tell(self) -> None:
        self._written.set()
        self._written = trio.Event()


async def _write_some(descriptor: int, data: bytes) -> int:
    """Write a slice once the file takes it; regular files always do.

    Always a checkpoint.

    Cancellation:
      Nothing was written.

    """
    try:
        await trio.lowlevel.wait_writable(descriptor)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        await trio.lowlevel.checkpoint()
    return os.write(descriptor, data[:_SLICE])


@final
class Streams:
    """A display (see `transcript`): text and notices each have a file of their own."""

    def __init__(self, console: Console, *, notices_to_output: bool = False) -> None:
        self._console = console
        self._one_file = notices_to_output
        self._in_line = False

    def text(self, text: str) -> None:
        """Show text of the model. Not a checkpoint."""
        if text:
            self._console.put(text)
            self._in_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line, unless there is one. Not a checkpoint."""
        if self._in_line:
            self.text("\n")

    def notice(self, line: str) -> None:
        """Show a line about anything else. Not a checkpoint."""
        if self._one_file:
            self._console.put(f"{line}\n")
        else:
            self._console.notice(line)


def _nothing() -> None:
    """Tell nobody."""
