"""An incremental reader of server-sent events: bytes in, events out.

It knows nothing of HTTP or of providers and does no input or output, so that every
cut of a stream can be tested with plain values. Lines are split as bytes, at CR, LF
and CR LF and nowhere else, and decoded one at a time: a character that was cut in
two arrives whole, and bytes that are no UTF-8 become U+FFFD without ending the
stream. A lone CR ends its line at once, without waiting for what follows.

It departs from the specification where providers do. An event that has a name but
no `data` is an event (an `error` without a word is still an error), and a field
called `error` is an event of that name (some servers write theirs so). `id` and
`retry` are dropped: an answer is not something to reconnect to.
"""

from __future__ import annotations

import re

import msgspec

from agentkernel import ModelError

__all__ = ["MAX_EVENT_BYTES", "SseDecoder", "SseEvent"]

MAX_EVENT_BYTES = 8 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `name` is empty where the stream gave none."""

    name: str
    data: str


class SseDecoder:
    """Turns the bytes of one stream into events, however they are cut.

    Made by whoever reads the stream, used by one task. `max_event_bytes` bounds what
    is kept of an event that has not ended: its lines so far and its open line.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        # The line that has not ended yet, in pieces, without its line end.
        self._line: list[bytes] = []
        # How many bytes `_line` and the fields of the open event hold.
        self._held = 0
        self._in_line = 0
        # The last byte was a CR: a LF that comes first now belongs to it.
        self._after_cr = False
        self._at_start = True
        self._name: str | None = None
        self._data: list[str] = []

    @property
    def unfinished(self) -> bool:
        """Whether an event has begun that no blank line has ended."""
        return bool(self._in_line or self._data or self._name is not None)

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Take the next bytes and give the events that they complete.

        Not a checkpoint.

        Raises:
          ModelError: if an event grows beyond `max_event_bytes`. The events that
            the same bytes completed before it are lost with it.

        """
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        events: list[SseEvent] = []
        start = 0
        for end in _LINE_END.finditer(chunk):
            self._keep(chunk[start : end.start()])
            start = end.end()
            event = self._end_line()
            if event is not None:
                events.append(event)
        self._after_cr = chunk.endswith(b"\r")
        self._keep(chunk[start:])
        return events

    def _keep(self, piece: bytes) -> None:
        if not piece:
            return
        self._line.append(piece)
        self._held += len(piece)
        self._in_line += len(piece)
        if self._held > self._max_event_bytes:
            raise ModelError(
                "the provider sent an event of more than "
                f"{self._max_event_bytes} bytes",
                code="server",
            )

    def _end_line(self) -> SseEvent | None:
        line = b"".join(self._line)
        self._line.clear()
        size, self._in_line = self._in_line, 0
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        if not self._take(field, value.removeprefix(b" ")):
            self._held -= size
        return None

    def _take(self, field: bytes, value: bytes) -> bool:
        """Keep a field of the open event, if it is one that matters."""
        if field == b"data":
            self._data.append(value.decode("utf-8", "replace"))
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"error":
            self._name = "error"
            self._data.append(value.decode("utf-8", "replace"))
        else:
            return False
        return True

    def _end_event(self) -> SseEvent | None:
        name, lines = self._name, self._data
        self._name, self._data, self._held = None, [], 0
        if name is None and not lines:
            return None
        return SseEvent(name or "", "\n".join(lines))
