"""Sessions in one SQLite file: the embedded default.

The file is in WAL mode and each commit is synced (`synchronous=FULL`): in this mode
anything less loses commits with the power. A claim is a token in the session's row,
which every write compares inside its own transaction; whether its owner lives is a
matter of `agentkernel.stores.owners`.

A write waits for other programs that hold the file's write lock, in its own thread,
up to `busy_timeout` seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import NamedTuple, final

from agentkernel import (
    Append,
    Claim,
    EpochStart,
    SessionBusyError,
    SessionEvent,
    SessionExistsError,
    SessionFormatError,
    SessionInfo,
    SessionNotFoundError,
    StorageError,
    decode_event,
    encode_event,
)

from .batch import new_events
from .database import connect, make_file, prepare, storage_errors, transaction
from .owners import Owners
from .threaded import ThreadedStore

__all__ = ["SqliteStore"]


@final
class SqliteStore(ThreadedStore):
    """A store in one SQLite file, with its `-wal`, `-shm` and `-owners` beside it.

    Args:
      path: the file; it is made, for its owner alone, if it is not there.
      busy_timeout: how long to wait for others that hold the file's lock, in
        seconds, before a call raises StorageError.

    """

    def __init__(
        self, path: str | PathLike[str], *, busy_timeout: float = 30.0
    ) -> None:
        super().__init__(_Database(Path(path), busy_timeout))


class _Database:
    """The blocking side of the store; see `Backend`."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._owners = Owners(path.with_name(f"{path.name}-owners"))
        self._held: set[tuple[str, str, int]] = set()
        # One connection for each of the two threads; None while closed.
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None

    def open(self) -> None:
        if self._writer is not None:
            return
        with storage_errors():
            make_file(self._path)
            connections: list[sqlite3.Connection] = []
            try:
                connections.append(writer := connect(self._path, self._busy_timeout))
                prepare(writer, self._path, self._busy_timeout)
                connections.append(reader := connect(self._path, self._busy_timeout))
                reader.execute("PRAGMA query_only=ON")
                self._owners.start()
            except BaseException:
                for connection in connections:
                    connection.close()
                raise
        self._writer, self._reader = writer, reader

    def close(self) -> None:
        if self._writer is None or self._reader is None:
            return
        try:
            for session_id, token, epoch in list(self._held):
                self.release(Claim(session_id, token, epoch, 0, ()))
        finally:
            # A claim that could not be released ends with its owner.
            self._owners.stop()
            self._reader.close()
            self._writer.close()
            self._writer = self._reader = None

    @contextmanager
    def _changing(self) -> Generator[sqlite3.Connection]:
        """Run a block as one durable transaction."""
        with storage_errors():
            if self._writer is None:
                raise StorageError(f"{self._path} is not open")
            with transaction(self._writer):
                yield self._writer

    def claim(
        self, session_id: str, token: str, *, create: bool, takeover: bool
    ) -> Claim:
        with self._changing() as connection:
            row = _find(connection, session_id)
            live = row is not None and row.owner and self._owners.is_alive(row.owner)
            exists = row is not None and (live or row.last_seq > 0)
            if create and exists:
                raise SessionExistsError(session_id)
            if not create and not exists:
                raise SessionNotFoundError(session_id)
            if live and not takeover:
                raise SessionBusyError(session_id, "another kernel")
            if row is None:
                connection.execute("INSERT INTO session (id) VALUES (?)", (session_id,))
                row = _find(connection, session_id)
                assert row is not None
            _check_end(connection, row)
            claim = self._begin_epoch(connection, session_id, row, token)
        self._held.add(_key(claim))
        return claim

    def _begin_epoch(
        self, connection: sqlite3.Connection, session_id: str, row: _Row, token: str
    ) -> Claim:
        connection.execute(
            "UPDATE session SET epoch = ?, token = ?, owner = ? WHERE key = ?",
            (row.epoch + 1, token, self._owners.id, row.key),
        )
        connection.execute(
            "INSERT INTO epoch VALUES (?, ?, ?)", (row.key, row.epoch + 1, row.last_seq)
        )
        epochs = connection.execute(
            "SELECT epoch, base_seq FROM epoch WHERE session = ? ORDER BY epoch",
            (row.key,),
        )
        starts = tuple(EpochStart(*start) for start in epochs)
        return Claim(session_id, token, row.epoch + 1, row.last_seq, starts)

    def release(self, claim: Claim) -> None:
        self._held.discard(_key(claim))
        with self._changing() as connection:
            row = _find(connection, claim.session_id)
            if row is None or not row.is_held_by(claim):
                return
            if row.last_seq == 0:
                connection.execute("DELETE FROM session WHERE key = ?", (row.key,))
            else:
                connection.execute(
                    "UPDATE session SET token = NULL, owner = NULL WHERE key = ?",
                    (row.key,),
                )

    def write(self, batch: Sequence[Append]) -> Sequence[Claim]:
        # Encoded before the lock is taken, which other programs may wait for.
        encoded = [[encode_event(event) for event in append.events] for append in batch]
        displaced: list[Claim] = []
        with self._changing() as connection:
            for append, lines in zip(batch, encoded, strict=True):
                claim = append.claim
                row = _find(connection, claim.session_id)
                if row is None or not row.is_held_by(claim):
                    displaced.append(claim)
                    continue
                events = new_events(claim.session_id, append.events, row.last_seq)
                if events:
                    _insert(connection, row, events, lines[-len(events) :])
        return displaced

    def read(self, session_id: str, after: int, limit: int) -> Sequence[SessionEvent]:
        events: list[SessionEvent] = []
        with storage_errors():
            if self._reader is None:
                raise StorageError(f"{self._path} is not open")
            with transaction(self._reader, "BEGIN"):
                row = _find(self._reader, session_id)
                if row is None:
                    raise SessionNotFoundError(session_id)
                while len(events) < limit and after < row.last_seq:
                    after = self._read(row, after, limit - len(events), events)
        return events

    def _read(
        self, row: _Row, after: int, limit: int, events: list[SessionEvent]
    ) -> int:
        """Read on, and return the last event that was passed."""
        assert self._reader is not None
        found = self._reader.execute(
            "SELECT seq, CAST(line AS BLOB) FROM event WHERE session = ? AND seq > ? "
            "ORDER BY seq LIMIT ?",
            (row.key, after, limit),
        ).fetchall()
        load_blob = self._load_blob
        for seq, line in found:
            after += 1
            if seq != after:
                raise SessionFormatError("it is missing", seq=after)
            event = _decode(seq, line, load_blob)
            if event is None:
                continue
            if event.seq != seq:
                raise SessionFormatError(f"event {event.seq} is in its place", seq=seq)
            events.append(event)
        if not found:
            raise SessionFormatError("it is missing", seq=after + 1)
        return after

    def _load_blob(self, digest: str) -> bytes:
        assert self._reader is not None
        row = self._reader.execute(
            "SELECT content FROM blob WHERE sha256 = ?", (digest,)
        ).fetchone()
        if row is None:
            raise KeyError(digest)
        (content,) = row
        return bytes(content)

    def sessions(self) -> Sequence[SessionInfo]:
        with storage_errors():
            if self._reader is None:
                raise StorageError(f"{self._path} is not open")
            rows = self._reader.execute(
                "SELECT id, last_seq, updated_at, owner FROM session "
                "ORDER BY updated_at DESC, key DESC"
            ).fetchall()
            owners = {owner for *_, owner in rows if owner is not None}
            live = {owner for owner in owners if self._owners.is_alive(owner)}
        return tuple(
            SessionInfo(session_id, last_seq, updated_at, owner in live)
            for session_id, last_seq, updated_at, owner in rows
            if last_seq or owner in live
        )


def _decode(
    seq: int, line: bytes, load_blob: Callable[[str], bytes]
) -> SessionEvent | None:
    try:
        return decode_event(line, load_blob)
    except SessionFormatError as exc:
        if exc.seq is not None:
            raise
        raise SessionFormatError(exc.problem, seq=seq) from exc


class _Row(NamedTuple):
    """A session's row."""

    key: int
    last_seq: int
    epoch: int
    token: str | None
    owner: str | None

    def is_held_by(self, claim: Claim) -> bool:
        """Whether a claim is the live one."""
        return (self.token, self.epoch) == (claim.token, claim.epoch)


def _find(connection: sqlite3.Connection, session_id: str) -> _Row | None:
    row = connection.execute(
        "SELECT key, last_seq, epoch, token, owner FROM session WHERE id = ?",
        (session_id,),
    ).fetchone()
    return None if row is None else _Row(*row)


def _check_end(connection: sqlite3.Connection, row: _Row) -> None:
    """Check that the last event is the one that the session's row names."""
    (last,) = connection.execute(
        "SELECT max(seq) FROM event WHERE session = ?", (row.key,)
    ).fetchone()
    if (last or 0) != row.last_seq:
        raise SessionFormatError(
            f"its row names event {row.last_seq} as the last", seq=last
        )


def _insert(
    connection: sqlite3.Connection,
    row: _Row,
    events: Sequence[SessionEvent],
    lines: Sequence[tuple[bytes, dict[str, bytes]]],
) -> None:
    # For `bytes` the driver first looks for an adapter, which takes longer than the
    # insertion; a `bytearray` is a BLOB to it as it stands.
    connection.executemany(
        "INSERT INTO event VALUES (?, ?, ?)",
        [
            (row.key, event.seq, bytearray(line))
            for event, (line, _) in zip(events, lines, strict=True)
        ],
    )
    blobs = [item for _, found in lines for item in found.items()]
    if blobs:
        connection.executemany("INSERT OR IGNORE INTO blob VALUES (?, ?)", blobs)
    connection.execute(
        "UPDATE session SET last_seq = ?, updated_at = ? WHERE key = ?",
        (events[-1].seq, events[-1].time, row.key),
    )


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.session_id, claim.token, claim.epoch
