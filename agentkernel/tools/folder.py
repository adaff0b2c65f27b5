"""One folder that nothing leads out of: how the workspace tools touch files.

A path is first resolved as the operating system would (`..`, symbolic links) and
refused if it ends outside. Then it is walked again from the folder, one descriptor at a
time and without following any link, so that a link put there in between is refused
instead of followed. Only regular files are opened: a named pipe or a device would hold
the thread.

Everything here is synchronous and runs in joined worker threads, which ask for a stop
between two steps. POSIX only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import msgspec
import trio

from agentkernel import AgentKernelError

__all__ = ["Entry", "FileVersion", "Folder", "WorkspaceError"]

_CHUNK = 65536
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class WorkspaceError(AgentKernelError):
    """If a file operation of a workspace tool cannot be done; it says why."""


class FileVersion(msgspec.Struct, frozen=True):
    """What tells that a file is still the one that was read."""

    device: int
    inode: int
    size: int
    changed_ns: int


class Entry(msgspec.Struct, frozen=True):
    """One name in the folder, with its path from the root."""

    path: str
    is_directory: bool
    is_link: bool
    size: int


@final
class Folder:
    """A root folder and the files in it. Immutable; made by `workspace_tools`.

    Attributes:
      root: the folder, resolved when this was made.

    """

    def __init__(
        self,
        root: str | Path,
        *,
        check_cancelled: Callable[[], object] = trio.from_thread.check_cancelled,
    ) -> None:
        # Called between two steps; raises if the work should be given up.
        self._check = check_cancelled
        self.root: Path = Path(root).resolve(strict=True)
        if not self.root.is_dir():
            raise NotADirectoryError(f"{self.root} is not a folder")

    def resolve(self, path: str) -> tuple[str, ...]:
        """Return the names that lead from the root to `path`, links resolved.

        Raises:
          WorkspaceError: if it is outside, or no path at all.

        """
        if "\0" in path:
            raise WorkspaceError("a path cannot hold a NUL character")
        try:
            real = Path(os.path.realpath(self.root / path))
        except (OSError, UnicodeError) as exc:
            raise WorkspaceError(f"{path!r}: {exc}") from None
        if not real.is_relative_to(self.root):
            raise WorkspaceError(f"{path!r} is outside of the workspace")
        return real.relative_to(self.root).parts

    def read(self, path: str, max_bytes: int) -> tuple[bytes, FileVersion]:
        """Read a whole file.

        Raises:
          WorkspaceError: if it is larger, no regular file, or cannot be read.

        """
        with self.open(path) as (handle, version):
            if version.size > max_bytes:
                raise WorkspaceError(
                    f"{path!r} has {version.size} bytes; the limit is {max_bytes}"
                )
            pieces: list[bytes] = []
            left = max_bytes + 1
            while left > 0 and (piece := os.read(handle, min(_CHUNK, left))):
                self._check()
                pieces.append(piece)
                left -= len(piece)
        return b"".join(pieces), version

    @contextmanager
    def open(self, path: str) -> Generator[tuple[int, FileVersion]]:
        """Open a regular file for reading, as a descriptor.

        Raises:
          WorkspaceError: if it is outside, no regular file, or cannot be opened.

        """
        with self.open_at(path, self.resolve(path)) as opened:
            yield opened

    @contextmanager
    def open_at(
        self, path: str, names: tuple[str, ...]
    ) -> Generator[tuple[int, FileVersion]]:
        """Open what `resolve` has found; `path` is only for messages.

        Raises:
          WorkspaceError: as `open` does, and if a name has become a link since.

        """
        if not names:
            raise WorkspaceError(f"{path!r} is a folder")
        with _explain(path), self.walk(names[:-1]) as parent:
            handle = os.open(names[-1], _READ, dir_fd=parent)
            try:
                status = os.fstat(handle)
                if not stat.S_ISREG(status.st_mode):
                    kind = "folder" if stat.S_ISDIR(status.st_mode) else "special file"
                    raise WorkspaceError(f"{path!r} is a {kind}")
                yield handle, _version(status)
            finally:
                os.close(handle)

    @contextmanager
    def walk(self, names: tuple[str, ...], *, create: bool = False) -> Generator[int]:
        """Open a folder below the root, step by step and through no link.

        Raises:
          OSError: if a name is missing, no folder, or a link.

        """
        current = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in names:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, dir_fd=current)
                below = os.open(name, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = below
            yield current
        finally:
            os.close(current)

    def write(
        self, path: str, data: bytes, *, expect: FileVersion | None = None
    ) -> bool:
        """Put a file in place, whole or not at all; folders are made as needed.

        It is written beside its place, synced, and renamed. A file that was there
        keeps its permissions. A link to a file inside is followed: the file changes.

        Args:
          path: where.
          data: what.
          expect: refuse if the file there is not this version of it any more.

        Returns:
          Whether there was no such file before.

        Raises:
          WorkspaceError: if it cannot be done; the file is as it was then.

        """
        names = self.resolve(path)
        if not names:
            raise WorkspaceError(f"{path!r} is a folder")
        with _explain(path), self.walk(names[:-1], create=True) as parent:
            old = _status(names[-1], parent)
            if old is not None and not stat.S_ISREG(old.st_mode):
                raise WorkspaceError(f"{path!r} is not a regular file")
            if old is not None and not os.access(names[-1], os.W_OK, dir_fd=parent):
                raise WorkspaceError(f"{path!r} is read-only")
            temporary = f".{secrets.token_hex(8)}.tmp"
            try:
                _write_synced(temporary, data, old, parent)
                self._check()  # the last moment to turn back
                now = _status(names[-1], parent)
                _check_version(path, now, expect)
                os.rename(temporary, names[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise
            os.fsync(parent)
        return old is None

    def iterate(self, path: str, skip: frozenset[str]) -> Iterator[Entry]:
        """Yield what is below a folder in order of names, links not followed.

        A folder that cannot be read is passed over; the names in `skip` are not
        entered.

        Raises:
          WorkspaceError: if `path` itself is outside or no folder.

        """
        start = self.resolve(path)
        with _explain(path), self.walk(start):
            pass
        todo = [start]
        while todo:
            self._check()
            names = todo.pop()
            below: list[tuple[str, ...]] = []
            for entry in self._entries(names):
                yield entry
                last = entry.path.rpartition("/")[2]
                if entry.is_directory and last not in skip:
                    below.append((*names, last))
            todo += reversed(below)

    def _entries(self, names: tuple[str, ...]) -> list[Entry]:
        found: list[Entry] = []
        # It may have been removed, or replaced by a link, since its name was read.
        with contextlib.suppress(OSError), self.walk(names) as handle:
            with os.scandir(handle) as entries:
                for entry in entries:
                    is_directory = entry.is_dir(follow_symlinks=False)
                    size = 0
                    with contextlib.suppress(OSError):
                        size = entry.stat(follow_symlinks=False).st_size
                    path = "/".join((*names, entry.name))
                    found.append(Entry(path, is_directory, entry.is_symlink(), size))
        return sorted(found, key=lambda entry: entry.path)


def _status(name: str, parent: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _write_synced(
    name: str, data: bytes, old: os.stat_result | None, parent: int
) -> None:
    handle = os.open(name, _CREATE, 0o666, dir_fd=parent)
    with os.fdopen(handle, "wb") as stream:
        stream.write(data)
        stream.flush()
        if old is not None:
            os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode))
        os.fsync(stream.fileno())


def _check_version(
    path: str, now: os.stat_result | None, expect: FileVersion | None
) -> None:
    if expect is not None and (now is None or _version(now) != expect):
        raise WorkspaceError(f"{path!r} has been changed meanwhile")


def _version(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@contextmanager
def _explain(path: str) -> Generator[None]:
    """Turn an error of the operating system into one that names the path as given."""
    try:
        yield
    except OSError as exc:
        reason = exc.strerror or str(exc)
        raise WorkspaceError(f"{path!r}: {reason}") from None
