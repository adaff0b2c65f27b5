"""Finds and signals the processes that a command has started, on POSIX.

A command's family is everything that its leader has brought into the world: members
of its process group, of its session, their descendants, and processes that carry the
command's mark in their environment (those that left the session and were adopted by
init). Elsewhere than on Linux there is no `/proc` to search: only the process group
is known there.

Everything here is synchronous and meant for a worker thread. A process that cleans
its environment, forks twice and starts a session of its own is not found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

__all__ = [
    "MARK",
    "Relative",
    "extend_mark",
    "find_family",
    "signal_each",
    "signal_group",
]

# The variable that marks a family. Its value is a path of ids: a command run inside
# a command carries the outer mark too.
MARK = "AGENTKERNEL_PROCESS"

_PROC = Path("/proc")
_COMMAND_LENGTH = 200
# No file descriptor is free: then nothing can be said about a process.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE})


class Relative(msgspec.Struct, frozen=True):
    """A live process of a family (zombies are not live).

    Attributes:
      started: its start in the kernel's own ticks; with the pid it identifies the
        process. 0 if it is unknown.

    """

    pid: int
    parent: int
    group: int
    session: int
    started: int
    command: str = ""

    @property
    def identity(self) -> tuple[int, int]:
        """What stays the same however the process changes."""
        return self.pid, self.started


def extend_mark(outer: str | None, own: str) -> str:
    """Make the value of `MARK` for a family inside another one."""
    return f"{outer}/{own}" if outer else own


def find_family(
    leader: int, sessions: Collection[int], mark: str
) -> tuple[Relative, ...]:
    """List the live processes of a family, the leader included while it lives.

    Args:
      leader: the pid of the leader, which is its group and session too.
      sessions: every session that a relative has been seen in: nobody gets into one
        but by birth, so whoever is in it is a relative.
      mark: the own part of the family's mark.

    Raises:
      OSError: if there is no file descriptor to look with.

    """
    if not (_PROC / "self" / "stat").exists():
        return _find_group(leader)
    table = {entry.pid: entry for entry in _read_table()}
    family = {
        pid
        for pid, entry in table.items()
        if entry.session in sessions or _is_marked(pid, mark)
    }
    children: dict[int, list[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    todo = list(family)
    while todo:
        new = [pid for pid in children.get(todo.pop(), ()) if pid not in family]
        family.update(new)
        todo += new
    family.discard(os.getpid())
    return tuple(
        msgspec.structs.replace(table[pid], command=_read_command(pid))
        for pid in sorted(family)
    )


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to the leader's process group; nothing happens if it is gone.

    The leader must not have been reaped: else its number may be somebody else's.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def signal_each(
    family: Iterable[Relative], number: signal.Signals
) -> Iterator[Relative]:
    """Send a signal to each process, unless its pid is another one's by now.

    Who is gone, or may not be signalled, is passed over. Yields all but those for
    which there was no file descriptor.
    """
    for relative in family:
        try:
            _signal(relative, number)
        except (ProcessLookupError, PermissionError):
            pass
        except OSError as error:
            if error.errno in _SCARCE:
                continue
            raise
        yield relative


def _signal(relative: Relative, number: signal.Signals) -> None:
    handle = os.pidfd_open(relative.pid)
    try:
        entry = _read_entry(relative.pid)
        if entry is not None and entry.started == relative.started:
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _find_group(leader: int) -> tuple[Relative, ...]:
    """Without `/proc`: the group as one entry, if anybody is in it."""
    try:
        os.killpg(leader, 0)
    except (ProcessLookupError, PermissionError):
        return ()
    return (Relative(leader, 0, leader, leader, 0, "(process group)"),)


def _read_table() -> Iterable[Relative]:
    for name in os.listdir(_PROC):
        if name.isdigit():
            entry = _read_entry(int(name))
            if entry is not None:
                yield entry


def _read_entry(pid: int) -> Relative | None:
    """Read `/proc/<pid>/stat`; None for a process that is dead or not to be seen."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return None
    # The name stands in parentheses and may hold any character, these too.
    fields = text.rpartition(b")")[2].split()
    if not fields or fields[0] in {b"Z", b"X", b"x"}:
        return None
    parent, group, session = (int(field) for field in fields[1:4])
    return Relative(pid, parent, group, session, int(fields[19]))


def _is_marked(pid: int, mark: str) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError as error:
        if error.errno in _SCARCE:
            raise
        return False
    if mark.encode() not in environment:
        return False
    prefix = f"{MARK}=".encode()
    return any(
        mark.encode() in entry[len(prefix) :].split(b"/")
        for entry in environment.split(b"\0")
        if entry.startswith(prefix)
    )


def _read_command(pid: int) -> str:
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0")
        if not words:
            words = (_PROC / str(pid) / "comm").read_bytes().strip()
    except OSError:
        return ""
    text = words.replace(b"\0", b" ").decode(errors="replace")
    return text[:_COMMAND_LENGTH]
