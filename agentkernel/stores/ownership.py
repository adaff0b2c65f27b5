"""Claims on the sessions of the JSONL store: how one is made, lost and given back.

All of this happens under the lock of the session's folder, except that an owner
looks without it whether there is a newer segment.
"""

from __future__ import annotations

from pathlib import Path

from agentkernel import (
    Claim,
    EpochStart,
    SessionBusyError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)

from .blobs import make_dirs
from .files import File, Files
from .segment import Part, Scan, chain, header_line, open_part, scan, segment_path

__all__ = ["Held", "discard", "make_claim", "roll_back", "sealed_at"]

# How long to wait for another process that makes a claim on the same session.
_PATIENCE = 5.0


class Held:
    """A claim of this store, and the segment that it writes to."""

    def __init__(self, claim: Claim, part: Part, file: File) -> None:
        self.claim = claim
        self.part = part
        self.folder: Path = part.path.parent
        self.file = file
        # The length of the segment that is durable, and its last event: one value,
        # since reads in another thread look at it.
        self.durable: tuple[int, int] = (part.start, claim.last_seq)
        self.updated_at: float | None = None
        # Whether the file may hold more than is durable.
        self.dirty = False

    @property
    def last_seq(self) -> int:
        """The last durable event."""
        return self.durable[1]


def make_claim(
    files: Files, folder: Path, claim: Claim, *, create: bool, takeover: bool
) -> Held:
    """Make a claim, of which only the session and the token are known.

    Raises:
      SessionExistsError: if `create` and there is such a session.
      SessionNotFoundError: if not `create` and there is none.
      SessionBusyError: if a live kernel holds it.
      SessionFormatError: if what is stored is damaged before its tail.

    """
    while True:
        try:
            lock = files.lock_dir(folder, patience=_PATIENCE)
        except FileNotFoundError:
            if not create:
                raise SessionNotFoundError(claim.session_id) from None
            make_dirs(files, folder)
            continue
        if lock is None:
            raise SessionBusyError(claim.session_id, "a kernel that is claiming it")
        try:
            # It may have been removed, and made anew, while we waited.
            if lock.is_at(folder):
                return _claim(files, folder, claim, create=create, takeover=takeover)
        finally:
            lock.close()


def _claim(
    files: Files, folder: Path, claim: Claim, *, create: bool, takeover: bool
) -> Held:
    parts = chain(files, folder, after=-1)
    old = files.open(parts[-1].path) if parts else None
    try:
        live = old is not None and not old.lock()
        if live and create:
            raise SessionExistsError(claim.session_id)
        if live and not takeover:
            raise SessionBusyError(claim.session_id, "another kernel")
        path = segment_path(folder, parts[-1].number + 1 if parts else 1)
        # Under this lock, what is there already is a claim that was never finished.
        files.remove(path)
        fresh = files.create(path)
        finished = False
        try:
            fresh.lock()
            # The old segment is measured only now: what its owner writes from here on
            # does not count, and the owner can see it.
            scanned, notices = _measure(files, parts[-1] if parts else None)
            exists = live or scanned.last_seq > 0
            if create and exists:
                raise SessionExistsError(claim.session_id)
            if not create and not exists:
                raise SessionNotFoundError(claim.session_id)
            if old is not None:
                # A killed owner may not have come to it.
                old.sync()
            held = _begin(fresh, path, claim, parts, scanned, notices)
            files.sync_dir(folder)
            finished = True
        finally:
            if not finished:
                fresh.close()
                files.remove(path)
    finally:
        if old is not None:
            old.close()
    return held


def _measure(files: Files, part: Part | None) -> tuple[Scan, tuple[str, ...]]:
    """Find how much of a segment counts, and set the rest aside."""
    if part is None:
        return Scan(0, 0), ()
    data = files.read(part.path, part.start)
    where = f"{part.path.parent.name}/{part.path.name}"
    scanned = scan(data, part.start, part.header.base_seq, where)
    torn = data[scanned.end - part.start :]
    if not torn:
        return scanned, ()
    folder = part.path.parent / "torn"
    make_dirs(files, folder)
    path = folder / f"{part.number:06}-{scanned.end}"
    files.remove(path)
    file = files.create(path)
    try:
        file.append(torn)
        file.sync()
    finally:
        file.close()
    files.sync_dir(folder)
    notice = (
        f"{len(torn)} bytes behind event {scanned.last_seq} are no whole event; "
        f"they were set aside in {path}"
    )
    return scanned, (notice,)


def _begin(
    file: File,
    path: Path,
    claim: Claim,
    parts: list[Part],
    scanned: Scan,
    notices: tuple[str, ...],
) -> Held:
    """Write the first line of a claim's segment."""
    epochs = [EpochStart(p.header.epoch, p.header.base_seq) for p in parts]
    epoch = epochs[-1].epoch + 1 if epochs else 1
    header, line = header_line(
        claim.session_id,
        claim.token,
        epoch,
        scanned,
        parts[-1].number if parts else 0,
    )
    file.append(line)
    file.sync()
    part = Part(header.sealed[0] + 1, path, header, len(line))
    made = Claim(
        claim.session_id,
        claim.token,
        epoch,
        scanned.last_seq,
        (*epochs, EpochStart(epoch, scanned.last_seq)),
        notices,
    )
    return Held(made, part, file)


def sealed_at(files: Files, held: Held, *, locked: bool = False) -> int | None:
    """Look whether a claim was taken over.

    Returns:
      None if it was not; else how many bytes of its segment count.

    Raises:
      StorageError: if a claim is being made and takes too long.

    """
    path = segment_path(held.folder, held.part.number + 1)
    if not files.exists(path):
        return None if held.file.is_at(held.part.path) else 0
    lock = None
    if not locked:
        lock = files.lock_dir(held.folder, patience=_PATIENCE)
        if lock is None:
            raise StorageError("a claim on the session is being made elsewhere")
    try:
        following = open_part(files, held.folder, held.part.number + 1)
        if following is not None:
            return following.header.sealed[1]
        # Who made it did not finish, and is dead: this is not a claim.
        files.remove(path)
        return None
    finally:
        if lock is not None:
            lock.close()


def roll_back(files: Files, held: Held) -> bool:
    """Cut off what a failed write left; false if the claim was taken over."""
    lock = files.lock_dir(held.folder, patience=_PATIENCE)
    if lock is None:
        raise StorageError("a claim on the session is being made elsewhere")
    try:
        # Under the lock: a new owner may count what is about to be cut off.
        if sealed_at(files, held, locked=True) is not None:
            return False
        held.file.truncate(held.durable[0])
        held.dirty = False
        return True
    finally:
        lock.close()


def discard(files: Files, held: Held) -> None:
    """Remove a session that has no events, unless somebody has taken it over."""
    try:
        lock = files.lock_dir(held.folder, patience=_PATIENCE)
    except FileNotFoundError:
        return
    if lock is None:
        return
    try:
        if sealed_at(files, held, locked=True) is not None:
            return
        for name in files.list_dir(held.folder):
            if name.endswith(".jsonl"):
                files.remove(held.folder / name)
        if files.remove_dir(held.folder):
            files.sync_dir(held.folder.parent)
    finally:
        lock.close()
