"""All that the JSONL store does to a disk, as a port of its own.

A test replaces it to record each step and to replay what a power loss leaves of them.
The steps are those that POSIX gives a meaning to: what a file holds is durable after
`File.sync`, that it is there under its name only after `sync_dir` of its folder.

Every call blocks; the store makes them in its worker threads.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None  # type: ignore[assignment]  # `supported` tells

__all__ = ["File", "Files"]

_LOCK_PAUSE = 0.01


class File:
    """A file that is open for appending, and for being locked.

    The lock belongs to this open file: a second open in the same process is refused
    like one of another process, and it ends with the process.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor: int = descriptor

    def append(self, data: bytes) -> None:
        """Write at the end; on an error any part may have been written."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def truncate(self, length: int) -> None:
        """Cut what is behind `length` bytes."""
        os.ftruncate(self.descriptor, length)

    def sync(self) -> None:
        """Return when all that the file holds survives a power loss."""
        os.fsync(self.descriptor)

    def lock(self) -> bool:
        """Try to get the file's lock; false if somebody else has it."""
        assert fcntl is not None
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_at(self, path: Path) -> bool:
        """Whether this is still what one finds under a path."""
        try:
            there = path.stat()
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self.descriptor), there)

    def close(self) -> None:
        """Close the file and give up its lock; harmless when called again."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Files:
    """The disk. Files are made for their owner alone."""

    @property
    def supported(self) -> bool:
        """Whether this system has the locks that the store needs."""
        return fcntl is not None

    def create(self, path: Path) -> File:
        """Make a new file.

        Raises:
          FileExistsError: if there is one.

        """
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC
        return File(path, os.open(path, flags, 0o600))

    def open(self, path: Path) -> File:
        """Open a file that exists."""
        return File(path, os.open(path, os.O_APPEND | os.O_RDWR | os.O_CLOEXEC))

    def lock_dir(self, path: Path, *, patience: float) -> File | None:
        """Open a folder and wait for its lock, None if that took too long.

        The folder may have been removed, and made anew, by the time the lock is
        granted: see `File.is_at`.
        """
        folder = File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        end = time.monotonic() + patience
        try:
            while not folder.lock():
                if time.monotonic() > end:
                    folder.close()
                    return None
                time.sleep(_LOCK_PAUSE)
        except OSError:
            folder.close()
            raise
        return folder

    def read(self, path: Path, start: int = 0, size: int = -1) -> bytes:
        """Read a file, or `size` bytes of it; fewer at its end."""
        with path.open("rb", buffering=0) as source:
            if start:
                source.seek(start)
            if size < 0:
                return source.readall()
            return source.read(size) or b""

    def size(self, path: Path) -> int:
        """The length of a file."""
        return path.stat().st_size

    def list_dir(self, path: Path) -> list[str]:
        """The names in a folder."""
        return os.listdir(path)

    def exists(self, path: Path) -> bool:
        """Whether there is such a file or folder."""
        return os.path.lexists(path)

    def make_dir(self, path: Path) -> None:
        """Make a folder, unless it is there; its parent is not synced."""
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)

    def sync_dir(self, path: Path) -> None:
        """Return when the names in a folder survive a power loss."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name, in place of what has it."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_dir(self, path: Path) -> bool:
        """Remove a folder; false if it is not empty."""
        try:
            os.rmdir(path)
        except OSError:
            return False
        return True
