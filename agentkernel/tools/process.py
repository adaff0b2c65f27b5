"""The one way this project runs commands: each in a process group of its own.

`run_command` runs one command to its end. `open_process_group` (of the module
`group`, offered here too) owns a child that is talked to over pipes. Both start a new
session, so there is never a terminal to ask on, and both end alike: SIGTERM to the
whole family, a grace, SIGKILL, and the leader is reaped, all of it before the call
returns, whatever made it return.

Invariants. The leader's exit decides, never the end of a pipe: a grandchild that holds
one open is waited for by nobody. Nothing that is found outlives the call except what the
operating system refuses to kill, and that is named in the result. What cannot be found
(see `family`) lives on and is not named.

These are real processes on real time: under Trio's mock clock a grace is over at once.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import msgspec
import outcome
import trio
from trio.lowlevel import enable_ki_protection

from .attended import attended
from .group import (
    DEFAULT_LIMITS,
    ProcessGroup,
    ProcessLimits,
    Stderr,
    Survivor,
    open_process_group,
)
from .output import BoundedOutput, Captured

__all__ = [
    "Captured",
    "CommandResult",
    "ProcessGroup",
    "ProcessLimits",
    "Stderr",
    "Survivor",
    "open_process_group",
    "run_command",
]

_CHUNK = 65536


class CommandResult(msgspec.Struct, frozen=True):
    """What became of a command.

    Attributes:
      exit_code: the leader's exit code, negative for a signal; None if it could not
        be reaped, or was not started in time.
      stderr: empty if it was merged into `stdout`.
      timed_out: whether `max_seconds` ended it.
      forced: whether SIGKILL was needed.
      survivors: processes that were found, and ended, after the leader.

    """

    exit_code: int | None
    stdout: Captured
    stderr: Captured
    timed_out: bool = False
    forced: bool = False
    survivors: tuple[Survivor, ...] = ()


async def run_command(
    argv: Sequence[str] | str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    merge_stderr: bool = False,
    limits: ProcessLimits = DEFAULT_LIMITS,
) -> CommandResult:
    """Run a command until its leader exits, then end what it has left behind.

    Output is read all the time and kept within `limits.max_bytes`, so no command
    stalls on a full pipe. A command that a deadline or a background process ends is
    no error: the result says so. The command's own exit code is not judged.

    Always a checkpoint.

    Cancellation:
      Passes through once the family is ended and reaped (SIGTERM, grace, SIGKILL).
      What the command has done until then stays done.

    Args:
      argv: program and arguments; a string is run by `/bin/sh -c`.
      cwd: where to run; None for this process's folder.
      env: the whole environment; None for `scrubbed_environment()`. The variable
        that marks the family is added.
      stdin: what to write to standard input, closed after it; None for an empty
        one. A command that does not read it is fine.
      merge_stderr: whether standard error goes into `stdout`, in order.
      limits: how long and how much.

    Raises:
      OSError: if the program cannot be started.
      ValueError: if a word or a variable holds a NUL character.
      NotImplementedError: if this is not a POSIX system.

    """
    deadline = trio.current_time() + _or_inf(limits.max_seconds)
    # To start a process takes one of Trio's threads, which may all be taken.
    with trio.CancelScope(deadline=deadline) as starting:
        async with open_process_group(
            argv,
            cwd=cwd,
            env=env,
            stdin="null" if stdin is None else "pipe",
            stderr="stdout" if merge_stderr else "pipe",
            limits=limits,
        ) as group:
            starting.deadline = math.inf
            return await _run_out(group, stdin, deadline, limits)
    nothing = Captured()
    return CommandResult(None, nothing, nothing, timed_out=True)


async def _run_out(
    group: ProcessGroup, stdin: bytes | None, deadline: float, limits: ProcessLimits
) -> CommandResult:
    """Carry a group to its end, which comes with the deadline at the latest.

    Always a checkpoint.

    Cancellation:
      Passes through once the family is ended and reaped.

    """
    pump = _Pump(group, limits.max_bytes)

    async def wait() -> bool:
        with trio.CancelScope(deadline=deadline) as scope:
            await group.wait()
        return scope.cancelled_caught

    async def end(waited: outcome.Outcome[bool]) -> None:
        if isinstance(waited, outcome.Value) and not waited.value:
            await pump.wait_drained(limits.drain)
        await group.end()
        await pump.wait_drained(limits.drain)

    pumping = functools.partial(pump.run, stdin)
    waited = await attended(wait, attendant=pumping, end=end)
    timed_out = waited.unwrap()
    return CommandResult(
        exit_code=group.exit_code,
        stdout=pump.out.captured(),
        stderr=pump.err.captured(),
        timed_out=timed_out,
        forced=group.forced,
        survivors=group.survivors,
    )


@final
class _Pump:
    """Feeds a group's standard input and keeps what it says.

    It is the attendant of a command: a family that is being ended may still have
    something to say, and would die of SIGPIPE if nobody read it.
    """

    def __init__(self, group: ProcessGroup, max_bytes: int) -> None:
        self.out = BoundedOutput(max_bytes)
        self.err = BoundedOutput(max_bytes)
        self._group = group
        self._drained = trio.Event()

    async def run(self, stdin: bytes | None) -> None:
        """Carry bytes until every output has ended.

        Always a checkpoint.

        Cancellation:
          Passes through; what was read is kept.

        """
        async with trio.open_nursery() as nursery:
            if stdin is not None:
                nursery.start_soon(self._feed, stdin)
            async with trio.open_nursery() as readers:
                readers.start_soon(self._read, self._group.stdout, self.out)
                if self._group.stderr is not None:
                    readers.start_soon(self._read, self._group.stderr, self.err)
            self._drained.set()

    async def wait_drained(self, seconds: float) -> None:
        """Wait until every output has ended, but not longer than `seconds`.

        Always a checkpoint.

        Cancellation:
          Passes through; nothing has changed.

        """
        with trio.move_on_after(seconds):
            await self._drained.wait()

    @enable_ki_protection
    async def _feed(self, data: bytes) -> None:
        assert self._group.stdin is not None
        # The command may end, or close its input, without having read it all.
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._group.stdin.send_all(data)
        await self._group.stdin.aclose()

    @enable_ki_protection
    async def _read(self, stream: trio.abc.ReceiveStream, sink: BoundedOutput) -> None:
        await trio.lowlevel.checkpoint()
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await stream.receive_some(_CHUNK):
                sink.write(data)


def _or_inf(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds
