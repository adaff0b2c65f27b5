"""Reads events from a segment, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentkernel import SessionEvent, SessionFormatError, decode_event

from .files import Files
from .segment import Part, refuse_damage, split_glued

__all__ = ["Page", "read_page"]

_CHUNK_BYTES = 1 << 18


class Page:
    """Events of one segment, and where the next page begins."""

    def __init__(self, offset: int, last_seq: int) -> None:
        self.events: list[SessionEvent] = []
        # Where reading stopped: behind `last_seq`, which is the last event passed.
        self.offset: int = offset
        self.last_seq: int = last_seq

    def take(self, event: SessionEvent | None, after: int, lines: _Lines) -> None:
        """Take the event of the line given last, None for one to skip."""
        seq = self.last_seq + 1
        if event is not None:
            if event.seq != seq:
                raise SessionFormatError(
                    f"event {event.seq} is in its place, at byte {lines.offset}",
                    seq=seq,
                )
            if seq > after:
                self.events.append(event)
        self.last_seq = seq
        self.offset = lines.end


class _Lines:
    """The lines of a segment from an offset on, up to what counts of it."""

    def __init__(self, files: Files, part: Part, offset: int) -> None:
        self._files = files
        self._part = part
        self._data = b""
        self._at = 0
        self._more = True
        # The offset of the line that `next` gave last, and of the one behind it.
        self.offset: int = offset
        self.end: int = offset

    def next(self) -> bytes | None:
        """Give the next line without its newline, None at the end."""
        self.offset = self.end
        while True:
            newline = self._data.find(b"\n", self._at)
            if newline >= 0:
                line = self._data[self._at : newline]
                self._at = newline + 1
                self.end += len(line) + 1
                return line
            if not self._more:
                break
            self._fill()
        line = self._data[self._at :]
        self._at = len(self._data)
        self.end += len(line)
        return line or None

    def rest(self) -> bytes:
        """Give everything from the line given last on."""
        return self._files.read(self._part.path, self.offset)

    def _fill(self) -> None:
        kept = self._data[self._at :]
        start, size = self.end + len(kept), _CHUNK_BYTES
        if self._part.limit is not None:
            size = min(size, self._part.limit - start)
        chunk = self._files.read(self._part.path, start, size) if size > 0 else b""
        self._data, self._at = kept + chunk, 0
        self._more = bool(chunk)


def read_page(
    files: Files,
    part: Part,
    page: Page,
    *,
    after: int,
    limit: int,
    load_blob: Callable[[str], bytes],
) -> None:
    """Read on from where a page stopped, until it has `limit` events.

    Raises:
      SessionFormatError: if an event cannot be read, or is not the one that follows.

    """
    lines = _Lines(files, part, page.offset)
    events = page.events
    while len(events) < limit:
        line = lines.next()
        if line is None:
            break
        try:
            event = decode_event(line, load_blob)
        except SessionFormatError as exc:
            if exc.seq is not None:
                raise
            pieces = _glued(part, page, lines, line)
            if not pieces:
                return
            for piece in pieces:
                page.take(decode_event(piece, load_blob), after, lines)
        else:
            page.take(event, after, lines)
    else:
        return
    if part.last_seq is not None and page.last_seq != part.last_seq:
        raise SessionFormatError(
            f"{_name(part)} ends before event {part.last_seq}", seq=page.last_seq + 1
        )


def _glued(part: Part, page: Page, lines: _Lines, line: bytes) -> Sequence[bytes]:
    """Take apart a line that is no event; nothing if it is an unfinished write.

    Raises:
      SessionFormatError: if it is damage.

    """
    pieces = split_glued(line)
    if pieces and sum(map(len, pieces)) == len(line):
        return pieces
    if part.limit is not None:
        raise SessionFormatError(
            f"{_name(part)} is damaged at byte {lines.offset}", seq=page.last_seq + 1
        )
    refuse_damage(lines.rest(), 0, lines.offset, page.last_seq, _name(part))
    return ()


def _name(part: Part) -> str:
    return f"{part.path.parent.name}/{part.path.name}"
