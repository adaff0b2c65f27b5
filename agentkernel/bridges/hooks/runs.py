"""Carries one hook out by whatever executor there is.

Sits between those who start hooks and the executor, which may be an application's own.

Invariants. What an executor raises is a failure of that hook, and never lets a gate
stand open unseen. Hooks that end early know how long they took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import trio

import agentkernel as ak

from .executor import HookExecutor
from .hook import Hook
from .verdict import HookRun

__all__ = ["Runs"]


@final
class Runs:
    """Runs hooks; made by `Runner`, shared by those that are waited for or not."""

    def __init__(self, executor: HookExecutor) -> None:
        self._executor = executor

    async def run(
        self,
        hook: Hook,
        stdin: bytes,
        *,
        signal: ak.TurnSignal,
        on_cut: Callable[[HookRun], None],
    ) -> HookRun:
        """Run one hook to its end.

        Always a checkpoint.

        Cancellation:
          Passes through once nothing of the hook runs any more and `on_cut` was told.

        Args:
          hook: what is run.
          stdin: what it is told.
          signal: ends it.
          on_cut: told of a run that a cancellation has cut.

        """
        started = trio.current_time()
        run: HookRun | None = None
        try:
            run = await self._executor.run(hook, stdin, signal=signal)
        except Exception as error:  # noqa: BLE001  # an executor is anybody's: its fault is this hook's
            problem = f"its executor failed: {ak.describe_error(error)}"
            run = HookRun(problem=problem, duration=trio.current_time() - started)
        finally:
            if run is None:
                lasted = trio.current_time() - started
                on_cut(HookRun(cancelled=True, duration=lasted))
        return run
