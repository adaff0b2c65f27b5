"""The files of a session in the JSONL store: how they are named, chained and read.

A session is a folder. In it, each claim has one *segment*: a first line that says
whose it is and how much of the segment before it counts, then one line for each
event. Nothing is ever changed in place: what a dead or displaced owner left behind
the counted length stays there, unread.

An event's line is the event as encoded, with one more field unless the event is the
first of the group that was written at once: `batch`, that group's first number. The
next group is written only when this one is durable. So an unreadable stretch with a
later group behind it is damage to durable events, and one without is what a power
loss leaves of an unfinished write.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentkernel import SessionFormatError

from .files import Files

__all__ = [
    "Header",
    "Part",
    "Scan",
    "chain",
    "event_line",
    "folder_name",
    "header_line",
    "last_event",
    "open_part",
    "refuse_damage",
    "scan",
    "segment_path",
    "split_glued",
]

_LAYOUT = 1
_HEADER_BYTES = 4096
_TAIL_BYTES = 1 << 14
_SEGMENT = re.compile(r"(\d{6,})\.jsonl", re.ASCII)
_UNSAFE = re.compile(r"[^a-z0-9_-]", re.ASCII)
_START = b'{"seq":'


class Header(msgspec.Struct, frozen=True):
    """The first line of a segment.

    Attributes:
      segment: the number of the layout of these files.
      session: the session's id: its folder's name may be too short for it.
      base_seq: the last event that was durable when the claim was made.
      sealed: the segment before this one, 0 for none, and how many of its bytes
        count.

    """

    segment: int
    session: str
    token: str
    epoch: int
    base_seq: int
    sealed: tuple[int, int]


class Part(msgspec.Struct):
    """A segment as a part of its session.

    Attributes:
      start: the offset of its first event.
      limit: how many of its bytes count, None if it is not sealed.
      last_seq: its last event, None if it is not sealed.

    """

    number: int
    path: Path
    header: Header
    start: int
    limit: int | None = None
    last_seq: int | None = None


class Scan(msgspec.Struct, frozen=True):
    """How far the events of a segment count.

    Attributes:
      last_seq: the last event.
      end: the offset behind it.

    """

    last_seq: int
    end: int


class _Stub(msgspec.Struct):
    seq: int
    time: float
    type: str
    data: msgspec.Raw
    batch: int = 0


_decode_stub = msgspec.json.Decoder(_Stub).decode
_decode_header = msgspec.json.Decoder(Header).decode


def folder_name(session_id: str) -> str:
    """Name the folder of a session.

    Safe on every file system, also on one that does not tell `A` from `a`. Where the
    id would be too long, its hash stands for it: each segment holds the id itself.
    """
    name = _UNSAFE.sub(
        lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), session_id
    )
    if len(name) <= 200:
        return name
    digest = hashlib.sha256(session_id.encode()).hexdigest()
    return f"~{digest}"


def segment_path(folder: Path, number: int) -> Path:
    """Name a segment."""
    return folder / f"{number:06}.jsonl"


def header_line(
    session_id: str, token: str, epoch: int, scanned: Scan, sealed: int
) -> tuple[Header, bytes]:
    """Make the first line of a segment, its newline included."""
    end = scanned.end if sealed else 0
    header = Header(_LAYOUT, session_id, token, epoch, scanned.last_seq, (sealed, end))
    return header, msgspec.json.encode(header) + b"\n"


def event_line(line: bytes, seq: int, first: int) -> bytes:
    """Finish an encoded event's line, for the group that begins with `first`."""
    if seq == first:
        return line + b"\n"
    return b'%b,"batch":%d}\n' % (line[:-1], first)


def chain(files: Files, folder: Path, *, after: int = 0) -> list[Part]:
    """Find the segments of a session that hold what is behind `after`, in order.

    All of them, empty ones too, if `after` is negative.

    Raises:
      FileNotFoundError: if there is no such folder.
      SessionFormatError: if one is missing, or is of a newer layout.

    """
    numbers = sorted(
        (
            int(found[1])
            for name in files.list_dir(folder)
            if (found := _SEGMENT.fullmatch(name))
        ),
        reverse=True,
    )
    parts: list[Part] = []
    wanted = None
    for number in numbers:
        if wanted is not None and number > wanted:
            continue  # a claim that was never finished
        part = open_part(files, folder, number)
        if part is None:
            continue
        if parts:
            part.limit = parts[-1].header.sealed[1]
            part.last_seq = parts[-1].header.base_seq
        parts.append(part)
        wanted = part.header.sealed[0]
        if part.header.base_seq <= after or wanted == 0:
            break
    if wanted and parts[-1].header.base_seq > max(after, 0):
        raise SessionFormatError(
            f"segment {wanted} of {folder.name} is missing",
            seq=parts[-1].header.base_seq,
        )
    parts.reverse()
    return parts


def open_part(files: Files, folder: Path, number: int) -> Part | None:
    """Look at a segment; None if there is none whose claim was finished."""
    path = segment_path(folder, number)
    try:
        head = files.read(path, 0, _HEADER_BYTES)
    except FileNotFoundError:
        return None
    line, newline, _ = head.partition(b"\n")
    if not newline:
        return None
    try:
        header = _decode_header(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if header.segment != _LAYOUT:
        raise SessionFormatError(
            f"{path.name} is of layout {header.segment}; this version reads {_LAYOUT}"
        )
    return Part(number, path, header, len(line) + 1)


def scan(data: bytes, offset: int, last_seq: int, where: str) -> Scan:
    """Find how far the events at the end of an unsealed segment count.

    Args:
      data: the segment from `offset` on.
      offset: where its first event begins.
      last_seq: the event before it.
      where: what to call the file in an error.

    Raises:
      SessionFormatError: if durable events are damaged; it names the offset.

    """
    at = 0
    while at < len(data):
        newline = data.find(b"\n", at)
        end = len(data) if newline < 0 else newline
        line = data[at:end]
        for piece in [line] if _stub(line) is not None else split_glued(line):
            stub = _stub(piece)
            if stub is None or stub.seq != last_seq + 1:
                break
            last_seq += 1
            at += len(piece)
        if at < end or not line:
            break
        at = min(end + 1, len(data))
    refuse_damage(data, at, offset, last_seq, where)
    return Scan(last_seq, offset + at)


def refuse_damage(data: bytes, at: int, offset: int, last_seq: int, where: str) -> None:
    """Raise if what cannot be read at `at` is more than an unfinished write.

    Of such a write, a later event may be left though an earlier one is not: both are
    of the group that follows the last event.
    """
    found = data.find(_START, at)
    while found >= 0:
        newline = data.find(b"\n", found)
        pieces = split_glued(data[found : newline if newline >= 0 else len(data)])
        stub = _stub(pieces[0]) if pieces else None
        if stub is not None:
            unfinished = (stub.batch or stub.seq) <= last_seq + 1 < stub.seq
            if not unfinished:
                raise SessionFormatError(
                    f"{where} is damaged at byte {offset + at}; event {stub.seq} "
                    "can be read behind it",
                    seq=last_seq + 1,
                )
        found = data.find(_START, found + 1)


def _stub(line: bytes) -> _Stub | None:
    try:
        return _decode_stub(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def last_event(files: Files, part: Part) -> tuple[int, float] | None:
    """Find the number and the time of a segment's last whole event, None without."""
    end = files.size(part.path) if part.limit is None else part.limit
    size = _TAIL_BYTES
    while end > part.start:
        start = max(part.start, end - size)
        for line in reversed(files.read(part.path, start, end - start).split(b"\n")):
            if (stub := _stub(line)) is not None:
                return stub.seq, stub.time
        if start == part.start:
            break
        size *= 8
    return None


def split_glued(line: bytes) -> Sequence[bytes]:
    """Split a line that holds several events; stops at what is none."""
    try:
        text = line.decode()
    except UnicodeDecodeError as exc:
        text = line[: exc.start].decode()
    pieces: list[bytes] = []
    at = 0
    while at < len(text):
        try:
            _, end = _plain_decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        piece = text[at:end].encode()
        if _stub(piece) is None:
            break
        pieces.append(piece)
        at = end
    return pieces


_plain_decoder = json.JSONDecoder()
