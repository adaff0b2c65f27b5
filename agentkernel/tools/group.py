"""A child process and everything it starts, owned by one `async with` block.

Sits below `process`. The leader is started in a session of its own and is reaped only
after its family is gone, so the number of its group cannot have become somebody else's
when it is signalled.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal, TypeAlias, final

import msgspec
import trio
from trio.lowlevel import enable_ki_protection

from .attended import sheltered
from .environment import scrubbed_environment
from .family import MARK, Relative, extend_mark, find_family, signal_each, signal_group

__all__ = [
    "DEFAULT_LIMITS",
    "ProcessGroup",
    "ProcessLimits",
    "Stderr",
    "Survivor",
    "open_process_group",
]

Stderr: TypeAlias = Literal["pipe", "stdout", "null", "inherit"]

_log = logging.getLogger(__name__)
_STDERR = {
    "pipe": subprocess.PIPE,
    "stdout": subprocess.STDOUT,
    "null": subprocess.DEVNULL,
    "inherit": None,
}
# How long a family may take to be gone after SIGKILL; a process that the operating
# system holds in an uninterruptible wait would be waited for without end.
_KILL_SECONDS = 5.0
# How often a leader is looked at for which no file descriptor is free.
_LOOK_SECONDS = 0.05


class ProcessLimits(msgspec.Struct, frozen=True):
    """How long and how much. Durations are seconds.

    Attributes:
      max_seconds: how long the leader may take, its start included; None for as long
        as it likes. Only `run_command` looks at it.
      grace: what a family gets between SIGTERM and SIGKILL.
      drain: how long output is still awaited after the leader's exit, and again
        after its family's end. Usually the pipe ends at once.
      hangup: how long the leader may take to leave by itself after its standard
        input was closed, before SIGTERM. Only `open_process_group` looks at it.
      max_bytes: what is kept of each output stream. Only `run_command` looks at it.

    """

    max_seconds: float | None = None
    grace: float = 2.0
    drain: float = 0.25
    hangup: float = 0.0
    max_bytes: int = 256 * 1024


DEFAULT_LIMITS = ProcessLimits()


class Survivor(msgspec.Struct, frozen=True):
    """A process that outlived its leader, or that had left its process group.

    Attributes:
      ended: whether it is gone now. False is rare: it may not be signalled (another
        user's), or the operating system keeps it.

    """

    pid: int
    command: str
    ended: bool


@asynccontextmanager
@enable_ki_protection
async def open_process_group(
    argv: Sequence[str] | str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: Literal["pipe", "null"] = "pipe",
    stderr: Stderr = "pipe",
    limits: ProcessLimits = DEFAULT_LIMITS,
) -> AsyncGenerator[ProcessGroup]:
    """Start a child that is talked to over pipes, and own its whole family.

    Leaving the block closes its standard input, gives the leader `limits.hangup`
    seconds to go, ends the family as `ProcessGroup.end` does, and closes the pipes.
    A process that has cleaned its environment, left the session and lost its parent
    belongs to no family that can be seen: it is neither ended nor named.
    Whoever asks for `stderr="pipe"` reads it, or the child stalls.

    Always a checkpoint, at both ends.

    Cancellation:
      Passes through, of the entry and of the body. The exit is shielded, from Ctrl-C
      too, and bounded by `hangup`, `grace` and a few seconds more.

    Args:
      argv: program and arguments; a string is run by `/bin/sh -c`.
      cwd: where to run; None for this process's folder.
      env: the whole environment; None for `scrubbed_environment()`. The variable
        that marks the family is added.
      stdin: whether there is a pipe to the child's standard input.
      stderr: a pipe of its own, the same as standard output, nowhere, or this
        process's own.
      limits: `grace` and `hangup` count here.

    Raises:
      OSError: if the program cannot be started.
      ValueError: if a word or a variable holds a NUL character.
      NotImplementedError: if this is not a POSIX system.

    """
    if os.name != "posix":
        raise NotImplementedError("commands are run in process groups: POSIX only")
    mark = secrets.token_hex(8)
    environment = dict(scrubbed_environment() if env is None else env)
    outer = environment.get(MARK) or os.environ.get(MARK)
    environment[MARK] = extend_mark(outer, mark)
    process = await trio.lowlevel.open_process(
        ["/bin/sh", "-c", argv] if isinstance(argv, str) else list(argv),
        stdin=subprocess.PIPE if stdin == "pipe" else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=_STDERR[stderr],
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )
    group = ProcessGroup(process, mark, limits)
    try:
        yield group
    finally:
        with trio.CancelScope(shield=True):
            await sheltered(group.aclose)


@final
class ProcessGroup:
    """A running child and its family. Made by `open_process_group`.

    Attributes:
      pid: of the leader; the number of its group and session too.
      stdin: the pipe to the leader, None if it has none.
      stdout: the pipe from it.
      stderr: the other pipe from it, None if it has none.
      exit_code: the leader's exit code once it has been reaped, negative for a
        signal.
      forced: whether SIGKILL was needed.
      survivors: what was found that outlived the leader or had left its group; known
        after `end`.

    """

    def __init__(self, process: trio.Process, mark: str, limits: ProcessLimits) -> None:
        assert process.stdout is not None
        self.pid: int = process.pid
        self.stdin: trio.abc.SendStream | None = process.stdin
        self.stdout: trio.abc.ReceiveStream = process.stdout
        self.stderr: trio.abc.ReceiveStream | None = process.stderr
        self.exit_code: int | None = None
        self.forced: bool = False
        self.survivors: tuple[Survivor, ...] = ()
        self._process = process
        self._mark = mark
        self._limits = limits
        # Where relatives have been seen. A child that is born to one of them while
        # the family is looked up is found here by the next look.
        self._sessions = {self.pid}
        # Held by whoever ends the family: a second caller waits for the first.
        self._ending = trio.Lock()
        self._ended = False

    async def wait(self) -> int:
        """Wait until the leader exits, without reaping it.

        Several tasks may wait. Output may still be under way.

        Always a checkpoint.

        Cancellation:
          Passes through; nothing has changed.

        Returns:
          Its exit code, negative for a signal.

        """
        await trio.lowlevel.checkpoint()
        if self.exit_code is not None:
            return self.exit_code
        if not hasattr(os, "pidfd_open"):
            self.exit_code = await self._process.wait()
            return self.exit_code
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            # None is free. A leader that is not reaped can be asked without one.
            while not self._has_exited():  # noqa: ASYNC110  # nothing tells of it
                await trio.sleep(_LOOK_SECONDS)
            return self._peek_exit_code()
        try:
            await trio.lowlevel.wait_readable(handle)
        finally:
            os.close(handle)
        return self._peek_exit_code()

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process group. Not a checkpoint.

        Harmless after the end.
        """
        if not self._ended:
            signal_group(self.pid, number)

    async def end(self) -> None:
        """End the family: SIGTERM, grace, SIGKILL; then reap the leader.

        The pipes stay open, so that what was said last can be read. Harmless when
        called again.

        Always a checkpoint.

        Cancellation:
          The end is shielded, and bounded by the grace and a few seconds more.

        """
        with trio.CancelScope(shield=True):
            async with self._ending:
                if not self._ended:
                    await self._end()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def aclose(self) -> None:
        """Close standard input, end the family, close the other pipes.

        Harmless when called again.

        Always a checkpoint.

        Cancellation:
          Shielded and bounded, as `end` is.

        """
        with trio.CancelScope(shield=True):
            if self.stdin is not None:
                await self.stdin.aclose()
            if self._limits.hangup > 0 and not self._ended:
                with trio.move_on_after(self._limits.hangup):
                    await self.wait()
            await self.end()
            await self.stdout.aclose()
            if self.stderr is not None:
                await self.stderr.aclose()
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _end(self) -> None:
        """Do what `end` promises, once. Always a checkpoint, shielded by `end`."""
        found = first = await self._find()
        plan = (
            (signal.SIGTERM, self._limits.grace),
            (signal.SIGKILL, _KILL_SECONDS),
        )
        for number, seconds in plan:
            if not found:
                break
            self.forced = number == signal.SIGKILL
            found = await self._press(number, found, seconds)
        if self.forced:
            _log.warning("process group %d had to be killed", self.pid)
        left = {relative.pid for relative in found}
        if self.pid not in left and self.exit_code is None:
            self.exit_code = await self._process.wait()
        self._ended = True
        outlived = all(relative.pid != self.pid for relative in first)
        listed = {
            relative.pid: relative
            for relative in (*first, *found)
            if outlived or relative.group != self.pid or relative.pid in left
        }
        listed.pop(self.pid, None)
        self.survivors = tuple(
            Survivor(pid, relative.command, ended=pid not in left)
            for pid, relative in sorted(listed.items())
        )

    def _unseen(self) -> tuple[Relative, ...]:
        """Name the group while no file descriptor is free to look who is in it.

        It is taken to live until its leader has gone and everybody has been killed.
        """
        if self.forced and self._has_exited():
            return ()
        return (Relative(self.pid, 0, self.pid, self.pid, 0, "(process group)"),)

    def _has_exited(self) -> bool:
        """Whether the leader has exited; it is left unreaped."""
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        return (
            self.exit_code is not None
            or os.waitid(os.P_PID, self.pid, options) is not None
        )

    def _peek_exit_code(self) -> int:
        """Read the exit code of a leader that has exited, and leave it unreaped."""
        if self.exit_code is not None:
            return self.exit_code
        status = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        if status.si_code == os.CLD_EXITED:
            return status.si_status
        return -status.si_status

    async def _press(
        self, number: signal.Signals, family: tuple[Relative, ...], seconds: float
    ) -> tuple[Relative, ...]:
        """Signal the family and wait until it is gone; return who is left.

        Always a checkpoint, shielded by its caller.

        Cancellation:
          None reaches it.

        """
        deadline = trio.current_time() + seconds
        signal_group(self.pid, number)
        reached = {r.identity for r in family if r.group == self.pid}
        await trio.lowlevel.checkpoint()
        pause = 0.002
        while family and trio.current_time() < deadline:
            # Some have left the group, or were born while it was being signalled.
            late = (r for r in family if r.identity not in reached)
            reached.update([r.identity for r in signal_each(late, number)])
            # They are not our children: there is nothing to wait on but time.
            await trio.sleep(pause)
            pause = min(2 * pause, 0.05)
            family = await self._find()
        return family

    async def _find(self) -> tuple[Relative, ...]:
        # A limiter of its own: blocked threads elsewhere must not delay an end.
        try:
            family = await trio.to_thread.run_sync(
                find_family,
                self.pid,
                frozenset(self._sessions),
                self._mark,
                limiter=trio.CapacityLimiter(1),
            )
        except OSError:
            return self._unseen()  # noqa: ASYNC910  # the thread was waited for
        self._sessions.update(relative.session for relative in family)
        return family
