"""The SQLite file itself: how it is made, opened, brought up to date and changed."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from agentkernel import SessionFormatError, StorageError

__all__ = ["connect", "make_file", "prepare", "storage_errors", "transaction"]

T = TypeVar("T")

# Each takes the file one version further; its place in the list is the version that
# it makes. An entry never changes once it is released.
_MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE session (
            key INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            last_seq INTEGER NOT NULL DEFAULT 0,
            updated_at REAL,
            epoch INTEGER NOT NULL DEFAULT 0,
            token TEXT,
            owner TEXT
        )
        """,
        """
        CREATE TABLE epoch (
            session INTEGER NOT NULL REFERENCES session ON DELETE CASCADE,
            epoch INTEGER NOT NULL,
            base_seq INTEGER NOT NULL,
            PRIMARY KEY (session, epoch)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE event (
            session INTEGER NOT NULL REFERENCES session ON DELETE CASCADE,
            seq INTEGER NOT NULL,
            line BLOB NOT NULL,
            PRIMARY KEY (session, seq)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE blob (
            sha256 TEXT PRIMARY KEY,
            content BLOB NOT NULL
        )
        """,
    ),
)


def make_file(path: Path) -> None:
    """Make the file, for its owner alone, unless it is there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        if os.name == "posix":
            # SQLite syncs the folder for its journals, not for the file itself.
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def connect(path: Path, busy_timeout: float) -> sqlite3.Connection:
    """Open a connection that any thread may use, one at a time."""
    return sqlite3.connect(
        path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
    )


def prepare(connection: sqlite3.Connection, path: Path, busy_timeout: float) -> None:
    """Set up the connection that writes, and bring the file up to date.

    Raises:
      StorageError: if the file is of a later version, or where WAL does not work.

    """
    (mode,) = _patiently(
        lambda: connection.execute("PRAGMA journal_mode=WAL").fetchone(), busy_timeout
    )
    if mode != "wal":
        raise StorageError(f"{path} is where SQLite cannot use WAL ({mode})")
    # Anything less loses commits with the power.
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    if _version(connection) == len(_MIGRATIONS):
        return  # without the lock that another program may hold
    with transaction(connection):
        version = _version(connection)
        if version > len(_MIGRATIONS):
            raise StorageError(
                f"{path} is of version {version}; this version of the library reads "
                f"up to {len(_MIGRATIONS)}"
            )
        for number in range(version, len(_MIGRATIONS)):
            for statement in _MIGRATIONS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number + 1}")


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _patiently(call: Callable[[], T], patience: float) -> T:
    """Wait for the lock where SQLite does not do it by itself."""
    end = time.monotonic() + patience
    while True:
        try:
            return call()
        except sqlite3.OperationalError as exc:
            if "locked" not in str(exc) or time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextmanager
def transaction(
    connection: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE"
) -> Generator[None]:
    """Run a block as one transaction, undone if the block raises."""
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some failures have rolled it back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def storage_errors() -> Generator[None]:
    """Turn what SQLite and the disk raise into errors of this library."""
    try:
        yield
    except sqlite3.Error as exc:
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise SessionFormatError(f"the database is damaged: {exc}") from exc
        raise StorageError(f"SQLite: {exc}") from exc
    except OSError as exc:
        raise StorageError(
            f"{exc.strerror or exc}: {exc.filename or 'a file'}"
        ) from exc
