"""Searches the files of a folder; the part of the workspace that needs a process.

A regular expression that a model wrote can take for ever, and Python cannot interrupt
it: in a thread it would stop the whole program. So `search` is called in a process of
its own, which is killed at its limit and on a stop.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator

import msgspec

from .folder import Entry, Folder, WorkspaceError

__all__ = ["Query", "matches_name", "search"]

_MAX_FILE_BYTES = 16 * 1024 * 1024
_MAX_LINE = 300
_SNIFF = 8192
_CHUNK = 65536


class Query(msgspec.Struct, frozen=True):
    """What to look for, and where.

    Attributes:
      root: the workspace.
      path: a file or folder in it.
      pattern: a regular expression, or the text itself if `literal`.
      files: only files whose name or path fits this; empty for all.
      max_matches: where to stop.
      skip: names of folders that are not entered.

    """

    root: str
    path: str
    pattern: str
    files: str = ""
    literal: bool = False
    ignore_case: bool = False
    max_matches: int = 100
    skip: tuple[str, ...] = ()


def search(query: Query) -> str:
    """List the lines that match, as `path:line: text`, in order of paths.

    Binary files, and files of more than 16 MB, are passed over. Not a checkpoint.

    Raises:
      WorkspaceError: if the expression is none, or the path is outside or missing.

    """
    try:
        wanted = re.compile(
            re.escape(query.pattern) if query.literal else query.pattern,
            re.IGNORECASE if query.ignore_case else 0,
        )
    except (re.error, OverflowError, RecursionError) as exc:
        raise WorkspaceError(f"not a regular expression: {exc}") from None
    folder = Folder(query.root, check_cancelled=_never)
    found: list[str] = []
    for path, is_named in _paths(folder, query):
        try:
            lines = _read_lines(folder, path)
        except WorkspaceError:
            if is_named:
                raise
            continue  # it is gone, or may not be read
        for number, line in enumerate(lines, 1):
            if wanted.search(line):
                if len(found) == query.max_matches:
                    found.append(f"[more than {query.max_matches} matches: stopped]")
                    return "\n".join(found)
                found.append(f"{path}:{number}: {line[:_MAX_LINE]}")
    return "\n".join(found) if found else "[no match]"


def matches_name(entry: Entry, pattern: str) -> bool:
    """Whether an entry's name, or its path from the root, fits a shell pattern."""
    name = entry.path.rpartition("/")[2]
    return (
        not pattern
        or fnmatch.fnmatchcase(name, pattern)
        or fnmatch.fnmatchcase(entry.path, pattern)
    )


def _paths(folder: Folder, query: Query) -> Iterator[tuple[str, bool]]:
    """Yield the files to search, and whether the query itself named them."""
    names = folder.resolve(query.path)
    if not folder.root.joinpath(*names).is_dir():
        yield query.path, True
        return
    for entry in folder.iterate(query.path, frozenset(query.skip)):
        if not (entry.is_directory or entry.is_link) and matches_name(
            entry, query.files
        ):
            yield entry.path, False


def _read_lines(folder: Folder, path: str) -> list[str]:
    """Read the lines of a text file; none of one that is binary or too large."""
    with folder.open(path) as (handle, version):
        if version.size > _MAX_FILE_BYTES:
            return []
        data = os.read(handle, _SNIFF)
        if b"\0" in data:
            return []
        pieces = [data]
        while piece := os.read(handle, _CHUNK):
            pieces.append(piece)
    return b"".join(pieces).decode(errors="replace").split("\n")


def _never() -> None:
    """Nobody cancels this process: it is killed."""
