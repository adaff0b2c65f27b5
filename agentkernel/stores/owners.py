"""Which open stores are alive, as far as a SQLite store can tell.

Each open store has a file of its own, an empty database that it keeps locked. The
operating system drops the lock with the process, and SQLite knows how to take one on
every system that it runs on. Whoever finds an owner's id in the main database asks
here whether that owner is still there.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import suppress
from pathlib import Path

__all__ = ["Owners"]


class Owners:
    """The owners of one main database, and this store as one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock: sqlite3.Connection | None = None
        # This store's id while it is open.
        self.id: str = ""

    def start(self) -> None:
        """Become an owner, under a new id."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self.id = secrets.token_hex(8)
        path = self._folder / self.id
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        lock = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        lock.execute("BEGIN EXCLUSIVE")
        self._lock = lock

    def stop(self) -> None:
        """Stop being an owner; harmless when called again."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            (self._folder / self.id).unlink(missing_ok=True)
            with suppress(OSError):
                self._folder.rmdir()

    def is_alive(self, owner: str) -> bool:
        """Whether another store, or this one, is still open."""
        if owner == self.id:
            return self._lock is not None
        path = self._folder / owner
        if not path.exists():
            return False
        # A read needs a lock that other such reads share and an owner does not.
        probe = sqlite3.connect(path, timeout=0, isolation_level=None)
        try:
            probe.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            return True
        finally:
            probe.close()
        path.unlink(missing_ok=True)
        return False
