"""Carries one hook out by whatever executor there is.

Sits between those who start hooks and the executor, which may be an application's own.

Invariants. What an executor raises is a failure of that hook, and never lets a gate
stand open unseen. Hooks that end early know how long they took.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import trio

import agentkernel as ak

from .executor import HookExecutor
from .hook import OBSERVING, Hook
from .verdict import HookRun

__all__ = ["MAX_WAITED", "Runs"]

# How many hooks of one `Hooks` run at once while turns wait for them: each takes some
# file descriptors, and one that gets none has failed.
MAX_WAITED: Final = 32


@final
class Runs:
    """Runs hooks; made by `Runner`, shared by those that are waited for or not."""

    def __init__(self, executor: HookExecutor) -> None:
        self._executor = executor
        self._slots: trio.CapacityLimiter = trio.CapacityLimiter(MAX_WAITED)
        # The end of an agent does not wait for hooks of others' turns.
        self._last_slots: trio.CapacityLimiter = trio.CapacityLimiter(MAX_WAITED)

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
        try:
            return await self._carry_out(hook, stdin, signal)
        except Exception as error:  # noqa: BLE001  # an executor is anybody's: its fault is this hook's
            problem = f"its executor failed: {ak.describe_error(error)}"
            duration = trio.current_time() - started
            return HookRun(problem=problem, duration=duration)  # noqa: ASYNC910  # it was awaited
        except BaseException:
            on_cut(_cut(started))
            raise

    async def _carry_out(
        self, hook: Hook, stdin: bytes, signal: ak.TurnSignal
    ) -> HookRun:
        """Wait for room if the hook is bounded, and run it.

        Always a checkpoint.

        Cancellation:
          Passes through; no room is taken then.

        """
        slots = self._slots_of(hook)
        if slots is None:
            return await self._executor.run(hook, stdin, signal=signal)
        started = trio.current_time()
        with trio.CancelScope() as waiting:
            unregister = signal.on_cancel(lambda _reason: waiting.cancel())
            try:
                await slots.acquire()
            finally:
                unregister()
        if waiting.cancelled_caught:
            return _cut(started)
        try:
            return await self._executor.run(hook, stdin, signal=signal)
        finally:
            slots.release()

    def _slots_of(self, hook: Hook) -> trio.CapacityLimiter | None:
        """Name what bounds a hook; who starts detached ones bounds them."""
        if hook.detached or hook.event in OBSERVING:
            return None
        return self._last_slots if hook.event == "SessionEnd" else self._slots


def _cut(started: float) -> HookRun:
    return HookRun(cancelled=True, duration=trio.current_time() - started)
