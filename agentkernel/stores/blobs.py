"""Content that left its events, in files named after its SHA-256.

A file that has its name is whole and durable: it is written under another name
first. Sessions share blobs, forks for one; nothing removes them.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from .files import Files

__all__ = ["Blobs", "make_dirs"]


def make_dirs(files: Files, folder: Path) -> None:
    """Make a folder and what is missing above it, durably."""
    if files.exists(folder):
        return
    make_dirs(files, folder.parent)
    files.make_dir(folder)
    files.sync_dir(folder.parent)


class Blobs:
    """The blobs of one store."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self._files = files

    def put(self, blobs: Mapping[str, bytes]) -> None:
        """Return when all of this content is durable under its name."""
        for folder in {self._put(digest, content) for digest, content in blobs.items()}:
            self._files.sync_dir(folder)

    def _put(self, digest: str, content: bytes) -> Path:
        path = self._path(digest)
        make_dirs(self._files, path.parent)
        if not self._files.exists(path):
            draft = self.folder / f"{digest}.{secrets.token_hex(4)}.draft"
            file = self._files.create(draft)
            try:
                file.append(content)
                file.sync()
                self._files.rename(draft, path)
            finally:
                file.close()
                self._files.remove(draft)
        return path.parent

    def load(self, digest: str) -> bytes:
        """Give a blob's content.

        Raises:
          KeyError: if it is not there.

        """
        try:
            return self._files.read(self._path(digest))
        except FileNotFoundError:
            raise KeyError(digest) from None

    def _path(self, digest: str) -> Path:
        # A digest comes from a log, which is no reason to leave this folder.
        if len(digest) != 64 or not digest.isalnum():
            raise KeyError(digest)
        return self.folder / digest[:2] / digest
