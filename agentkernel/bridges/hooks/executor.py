"""Runs one hook: a command in a process group of its own, under a mandatory signal.

Everything about the process (no terminal, TERM and KILL for the whole group, reaping,
bounded output, the leader's exit decides) is that of `agentkernel.tools.process`.
What is added is the signal: a hook whose turn is stopped is ended at once, whichever
task runs it, and its run says `cancelled`, whatever it had printed by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, final

import trio

import agentkernel as ak
from agentkernel.tools.environment import scrubbed_environment
from agentkernel.tools.process import (
    CommandResult,
    ProcessLimits,
    Survivor,
    run_command,
)

from .hook import Hook
from .verdict import HookRun

__all__ = ["CommandExecutor", "HookExecutor"]


class HookExecutor(Protocol):
    """Runs hooks; `CommandExecutor` runs them as commands."""

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        """Run one hook to its end.

        Always a checkpoint.

        Cancellation:
          Passes through once nothing of the hook runs any more.

        Args:
          hook: what to run, and for how long.
          stdin: the event as JSON, with a newline behind it unless Codex's.
          signal: ends the hook when it fires; the run is then `cancelled`.

        Raises:
          Exception: if it cannot; the hook has then failed.

        """
        ...


@final
class CommandExecutor:
    """Runs hooks as commands in one folder, with one environment.

    Args:
      cwd: the project's folder; made absolute here and now.
      env: the whole environment; None for this process's own without what looks
        secret and without `OTEL_…`. `CLAUDE_PROJECT_DIR` is added.
      grace: seconds between SIGTERM and SIGKILL.

    """

    def __init__(
        self,
        cwd: str | Path,
        *,
        env: Mapping[str, str] | None = None,
        grace: float = 2.0,
    ) -> None:
        self._cwd = str(Path(cwd).absolute())
        self._env = _usual_environment() if env is None else dict(env)
        self._env["CLAUDE_PROJECT_DIR"] = self._cwd
        self._grace = grace

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        """Run one hook; see `HookExecutor`.

        Always a checkpoint.

        Cancellation:
          Passes through once the group is killed and reaped.

        """
        await trio.lowlevel.checkpoint()
        started = trio.current_time()
        result: CommandResult | None = None
        problem: str | None = None
        with trio.CancelScope() as scope:  # noqa: ASYNC912  # the command waits
            unregister = signal.on_cancel(lambda _reason: scope.cancel())
            try:
                result = await run_command(
                    self._argv(hook),
                    cwd=self._cwd,
                    env=self._env,
                    stdin=stdin,
                    limits=ProcessLimits(hook.max_seconds, self._grace),
                )
            except (OSError, ValueError, NotImplementedError) as error:
                # Of the start, or of an end that may have left something running.
                problem = f"it could not be run: {error}"
            finally:
                unregister()
        duration = trio.current_time() - started
        if signal.cancelled or (result is None and problem is None):
            return HookRun(cancelled=True, duration=duration, problem=problem)
        if result is None:
            return HookRun(problem=problem, duration=duration)
        return HookRun(
            result.exit_code,
            result.stdout.text,
            result.stderr.text,
            cut=bool(result.stdout.dropped),
            timed_out=result.timed_out,
            duration=duration,
            survivors=tuple(_named(survivor) for survivor in result.survivors),
        )

    def _argv(self, hook: Hook) -> list[str] | str:
        """Name what is run: a line of Codex's goes to the user's own login shell."""
        if hook.dialect == "codex":
            return [self._env.get("SHELL") or "/bin/sh", "-lc", hook.command]
        return hook.argv


def _usual_environment() -> dict[str, str]:
    """Leave out what looks secret, and where this process sends its own telemetry."""
    usual = scrubbed_environment()
    return {name: text for name, text in usual.items() if not name.startswith("OTEL_")}


def _named(survivor: Survivor) -> str:
    fate = "ended" if survivor.ended else "still there"
    return f"{survivor.command or '?'} (pid {survivor.pid}, {fate})"
