"""Output of a process, bounded in memory: its beginning and its end are kept.

A `BoundedOutput` takes bytes as they come and never refuses any, so that whoever
writes them is not held up; what does not fit is counted and forgotten. `Captured` is
what is left: a frozen value whose text never shows half a character where bytes were
left out.
"""

from __future__ import annotations

from collections import deque
from typing import final

import msgspec

__all__ = ["BoundedOutput", "Captured"]


class Captured(msgspec.Struct, frozen=True):
    """What was kept of an output.

    Attributes:
      head: the beginning, or everything if nothing was dropped.
      tail: the end, empty if nothing was dropped.
      dropped: how many bytes between the two were left out.

    """

    head: bytes = b""
    tail: bytes = b""
    dropped: int = 0

    @property
    def size(self) -> int:
        """How many bytes were written, the dropped ones included."""
        return len(self.head) + self.dropped + len(self.tail)

    @property
    def text(self) -> str:
        """The output as text: UTF-8, U+FFFD for what is not, a line for the gap."""
        head = self.head.decode(errors="replace")
        if not self.dropped:
            return head + self.tail.decode(errors="replace")
        gap = f"\n[... {self.dropped} bytes left out ...]\n"
        return head + gap + self.tail.decode(errors="replace")


@final
class BoundedOutput:
    """Takes any number of bytes and keeps at most `max_bytes` of them.

    Made by whoever reads a pipe; one task at a time writes to it.
    """

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_limit", "_tail_size", "_total")

    def __init__(self, max_bytes: int) -> None:
        self._head_limit = max_bytes // 2
        self._tail_limit = max_bytes - self._head_limit
        self._head = bytearray()
        # Pieces of the end; without its first piece it is shorter than the limit.
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._total = 0

    def write(self, data: bytes | bytearray) -> None:
        """Take more output. Not a checkpoint."""
        self._total += len(data)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if len(data) > self._tail_limit:
            data = data[len(data) - self._tail_limit :]
        if data:
            self._tail.append(bytes(data))
            self._tail_size += len(data)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._tail_limit:
            self._tail_size -= len(self._tail.popleft())

    def captured(self) -> Captured:
        """Return what has been kept so far. Not a checkpoint."""
        head = bytes(self._head)
        tail = b"".join(self._tail)
        if len(tail) > self._tail_limit:
            tail = tail[len(tail) - self._tail_limit :]
        if len(head) + len(tail) == self._total:
            return Captured(head + tail)
        head = head[: len(head) - _unfinished(head)]
        tail = tail[_orphaned(tail) :]
        return Captured(head, tail, self._total - len(head) - len(tail))


def _unfinished(data: bytes) -> int:
    """Count the bytes at the end that begin a UTF-8 character and do not end it."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed else 0
    return 0


def _orphaned(data: bytes) -> int:
    """Count the bytes at the start that go on a UTF-8 character begun before."""
    count = 0
    while count < min(3, len(data)) and 0x80 <= data[count] < 0xC0:
        count += 1
    return count
