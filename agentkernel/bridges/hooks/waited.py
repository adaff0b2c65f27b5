"""Runs the hooks of one event that are waited for: at once, recorded in order.

`hook/invoked` facts are appended before the first hook starts, `hook/result` facts
when the last one has ended, both in the order of the settings, so that the log does
not depend on which hook was faster. What a stop interrupts decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import final

import msgspec
import trio

import agentkernel as ak

from .hook import Hook
from .judge import judge
from .matcher import Dialect
from .record import invoked, returned
from .runs import Runs
from .spill import Spill
from .verdict import HookRun, Verdict, merge

__all__ = ["WaitedHooks"]


@final
class WaitedHooks:
    """Runs hooks that a turn waits for, under the turn's signal."""

    def __init__(self, runs: Runs, spill: Spill) -> None:
        self._runs = runs
        self._spill = spill

    async def run(
        self,
        session: ak.Session,
        hooks: Sequence[Hook],
        told: Mapping[Dialect, bytes],
        *,
        signal: ak.TurnSignal,
        on_unfinished: Callable[[Hook], None],
    ) -> Verdict:
        """Run the hooks of an event beside each other, and fold what they say.

        Always a checkpoint.

        Cancellation:
          Passes through once every hook has ended; each has its result in the log.

        Args:
          session: where they are recorded.
          hooks: what is run, in the order of the settings.
          told: what each is told, by its dialect.
          signal: ends them.
          on_unfinished: told of each that did not come to its end.

        Raises:
          TurnCancelled: if the signal fired meanwhile and nothing else was raised.

        """
        ids = [invoked(session, hook) for hook in hooks]
        runs = [HookRun(cancelled=True)] * len(hooks)
        verdicts = [Verdict("cancelled")] * len(hooks)

        async def run(number: int, hook: Hook) -> None:
            one = await self._runs.run(
                hook,
                told[hook.dialect],
                signal=signal,
                on_cut=partial(runs.__setitem__, number),
            )
            if signal.cancelled:
                # Also if it has ended by itself: nobody reads what it said.
                one = msgspec.structs.replace(one, cancelled=True)
            runs[number], verdicts[number] = one, judge(hook, one)
            verdicts[number] = await self._spill.fitted(verdicts[number])

        ended = False
        try:
            # Whoever reads the log after a crash shall know what was under way. A
            # store that fails is the kernel's to report.
            with suppress(ak.StorageError):
                await session.flush()
            async with trio.open_nursery() as nursery:
                for number, hook in enumerate(hooks):
                    nursery.start_soon(run, number, hook, name=f"hook {hook.event}")
            ended = not signal.cancelled
        finally:
            ends = zip(ids, hooks, runs, verdicts, strict=True)
            for hook_id, hook, one, verdict in ends:
                if verdict.outcome == "cancelled":
                    on_unfinished(hook)
                returned(session, hook_id, one, verdict, counts=ended)
        signal.raise_if_cancelled()
        merged = merge(verdicts)
        if all(merged.reason != verdict.reason for verdict in verdicts):
            # Several reasons in one, each of which is short enough.
            joined = await self._spill.fitted(Verdict(reason=merged.reason))
            signal.raise_if_cancelled()
            merged = msgspec.structs.replace(merged, reason=joined.reason)
        return msgspec.structs.replace(merged, source=ids[0])
