"""Sessions as files of JSON lines, for people who want to read and copy them.

A store is a folder: `sessions/` has a folder for each session, `blobs/` the content
that left the events, `torn/` in a session's folder what a crash left unfinished.
`agentkernel.stores.segment` says what is in the files.

Who owns a session is decided by locks that the operating system drops with their
process. The owner holds its segment locked. Claims, and the rare changes of what is
there already, are made under the lock of the session's folder. An owner writes
without that lock, so it looks for a newer segment before and behind each write: a
claim that takes over first makes its segment and then measures the old one, so what
the owner wrote is counted, or the owner finds out.

POSIX only. Each session that is claimed keeps one file open.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import final

from agentkernel import (
    Append,
    Claim,
    SessionEvent,
    SessionFormatError,
    SessionInfo,
    SessionNotFoundError,
    StorageError,
    encode_event,
)

from .batch import new_events
from .blobs import Blobs, make_dirs
from .files import Files
from .ownership import Held, discard, make_claim, roll_back, sealed_at
from .reader import Page, read_page
from .segment import Part, chain, event_line, folder_name, last_event
from .threaded import ThreadedStore

__all__ = ["JsonlStore"]

_MAX_MARKS = 16
_NOW = 2**62  # behind every event


@final
class JsonlStore(ThreadedStore):
    """A store of JSON lines in a folder; POSIX only.

    Args:
      path: the folder; it is made, for its owner alone, if it is not there.
      files: the disk; a test may put another one in.

    """

    def __init__(
        self, path: str | PathLike[str], *, files: Files | None = None
    ) -> None:
        super().__init__(_Disk(Path(path), files or Files()))


class _Group:
    """Events of one session that are written at once."""

    def __init__(self, last_seq: int) -> None:
        self.first = last_seq + 1
        self.last_seq = last_seq
        self.updated_at: float | None = None
        self.data = bytearray()

    def add(self, events: Sequence[SessionEvent]) -> dict[str, bytes]:
        """Encode events; give back what leaves their lines."""
        left: dict[str, bytes] = {}
        for event in events:
            line, blobs = encode_event(event)
            left.update(blobs)
            self.data += event_line(line, event.seq, self.first)
            self.last_seq, self.updated_at = event.seq, event.time
        return left


class _Disk:
    """The blocking side of the store; see `Backend`."""

    def __init__(self, root: Path, files: Files) -> None:
        self._files = files
        self._sessions = root / "sessions"
        self._blobs = Blobs(root / "blobs", files)
        self._held: dict[tuple[str, str, int], Held] = {}
        # Where the last pages of a session ended: last event passed -> segment, offset.
        self._marks: dict[str, dict[int, tuple[int, int]]] = {}

    def open(self) -> None:
        if not self._files.supported:
            raise StorageError("JsonlStore needs POSIX file locks; use SqliteStore")
        with _storage_errors():
            make_dirs(self._files, self._sessions)
            make_dirs(self._files, self._blobs.folder)

    def close(self) -> None:
        for held in list(self._held.values()):
            self.release(held.claim)
        self._marks.clear()

    def claim(
        self, session_id: str, token: str, *, create: bool, takeover: bool
    ) -> Claim:
        wanted = Claim(session_id, token, 0, 0, ())
        with _storage_errors():
            held = make_claim(
                self._files,
                self._folder(session_id),
                wanted,
                create=create,
                takeover=takeover,
            )
        self._held[_key(held.claim)] = held
        return held.claim

    def release(self, claim: Claim) -> None:
        held = self._held.pop(_key(claim), None)
        if held is None:
            return
        with _storage_errors():
            try:
                if held.last_seq == 0:
                    discard(self._files, held)
            finally:
                held.file.close()

    def write(self, batch: Sequence[Append]) -> Sequence[Claim]:
        displaced: list[Claim] = []
        groups: dict[Held, _Group] = {}
        blobs: dict[str, bytes] = {}
        with _storage_errors():
            for append in batch:
                held = self._held.get(_key(append.claim))
                if held is None or not self._may_write(held):
                    displaced.append(append.claim)
                    continue
                group = groups.setdefault(held, _Group(held.last_seq))
                events = new_events(
                    append.claim.session_id, append.events, group.last_seq
                )
                blobs |= group.add(events)
            # Durable before the events that name it.
            self._blobs.put(blobs)
            for held, group in groups.items():
                held.dirty = True
                held.file.append(bytes(group.data))
            for held, group in groups.items():
                if not self._settle(held, group):
                    displaced.append(held.claim)
        return displaced

    def _may_write(self, held: Held) -> bool:
        """Look whether a claim still holds, and make its segment fit to go on."""
        holds = sealed_at(self._files, held) is None
        if holds and held.dirty:
            holds = roll_back(self._files, held)
        if not holds:
            self._drop(held)
        return holds

    def _settle(self, held: Held, group: _Group) -> bool:
        """Make a group durable; false if the claim was taken over before that."""
        held.file.sync()
        end = held.durable[0] + len(group.data)
        counted = sealed_at(self._files, held)
        if counted is not None and counted < end:
            self._drop(held)
            return False
        held.durable = (end, group.last_seq)
        held.updated_at = group.updated_at or held.updated_at
        held.dirty = False
        return True

    def _drop(self, held: Held) -> None:
        self._held.pop(_key(held.claim), None)
        held.file.close()

    def read(self, session_id: str, after: int, limit: int) -> Sequence[SessionEvent]:
        with _storage_errors():
            try:
                parts = chain(self._files, self._folder(session_id), after=after)
            except FileNotFoundError:
                raise SessionNotFoundError(session_id) from None
            if not parts:
                raise SessionNotFoundError(session_id)
            self._limit(parts[-1])
            events: list[SessionEvent] = []
            for part in parts:
                page = self._page(session_id, part, after)
                read_page(
                    self._files,
                    part,
                    page,
                    after=after,
                    limit=limit - len(events),
                    load_blob=self._blobs.load,
                )
                events += page.events
                if len(events) >= limit:
                    self._mark(session_id, part, page)
                    break
        return events

    def _limit(self, part: Part) -> None:
        """Keep readers of a session that is claimed here to what is durable."""
        for held in list(self._held.values()):
            if held.part.path == part.path:
                part.limit, part.last_seq = held.durable

    def _page(self, session_id: str, part: Part, after: int) -> Page:
        """Begin a page, where an earlier one ended if that is known."""
        number, offset = self._marks.get(session_id, {}).get(after, (0, 0))
        if number == part.number and (part.limit is None or offset <= part.limit):
            return Page(offset, after)
        return Page(part.start, part.header.base_seq)

    def _mark(self, session_id: str, part: Part, page: Page) -> None:
        marks = self._marks.setdefault(session_id, {})
        marks[page.last_seq] = (part.number, page.offset)
        while len(marks) > _MAX_MARKS:
            del marks[next(iter(marks))]

    def sessions(self) -> Sequence[SessionInfo]:
        with _storage_errors():
            found = [
                info
                for name in self._files.list_dir(self._sessions)
                if (info := self._info(self._sessions / name)) is not None
            ]
        return sorted(found, key=lambda info: info.updated_at or 0.0, reverse=True)

    def _info(self, folder: Path) -> SessionInfo | None:
        """Describe a session, None if there is nothing to describe."""
        try:
            parts = chain(self._files, folder, after=_NOW)
            if not parts:
                return None
            header = parts[-1].header
            self._limit(parts[-1])
            last = last_event(self._files, parts[-1])
            if last is None and header.base_seq:
                earlier = chain(self._files, folder, after=header.base_seq - 1)
                last = last_event(self._files, earlier[0])
            claimed = self._is_claimed(parts[-1])
        except (FileNotFoundError, SessionFormatError):
            # Just gone, or of a later version; who opens it is told.
            return None
        if last is None:
            return SessionInfo(header.session, 0, claimed=True) if claimed else None
        return SessionInfo(header.session, last[0], last[1], claimed)

    def _is_claimed(self, part: Part) -> bool:
        # Under the folder's lock, or a claim would take this look for an owner.
        lock = self._files.lock_dir(part.path.parent, patience=0)
        if lock is None:
            return True
        try:
            file = self._files.open(part.path)
            try:
                return not file.lock()
            finally:
                file.close()
        finally:
            lock.close()

    def _folder(self, session_id: str) -> Path:
        return self._sessions / folder_name(session_id)


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.session_id, claim.token, claim.epoch


@contextmanager
def _storage_errors() -> Generator[None]:
    try:
        yield
    except OSError as exc:
        raise StorageError(
            f"{exc.strerror or exc}: {exc.filename or 'a file'}"
        ) from exc
