"""Runs all hooks of one event: at once, each one time, recorded in order.

`hook/invoked` facts are appended before the first hook starts, `hook/result` facts
when the last one has ended, both in the order of the settings, so that the log does
not depend on which hook was faster. What a stop interrupts decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

import trio

import agentkernel as ak

from .executor import HookExecutor
from .hook import Hook
from .judge import judge
from .spill import Spill
from .verdict import HookRun, Verdict, merge

__all__ = ["run_hooks"]

_CANCELLED = HookRun(cancelled=True)


async def run_hooks(
    session: ak.Session,
    hooks: Sequence[Hook],
    stdin: ak.JsonObject,
    *,
    signal: ak.TurnSignal,
    executor: HookExecutor,
    spill: Spill,
) -> Verdict:
    """Run the hooks of an event beside each other, and fold what they say.

    Always a checkpoint.

    Cancellation:
      Passes through once every hook has ended; each has its result in the log.

    Raises:
      TurnCancelled: if the signal fired meanwhile and nothing else was raised.

    """
    unique: dict[object, Hook] = {}
    for hook in hooks:
        unique.setdefault(hook.identity, hook)
    hooks = tuple(unique.values())
    data = json.dumps(stdin).encode() + b"\n"
    ids = [_invoked(session, hook) for hook in hooks]
    runs: list[HookRun] = [_CANCELLED] * len(hooks)
    verdicts: list[Verdict] = [Verdict("cancelled")] * len(hooks)

    async def run(number: int, hook: Hook) -> None:
        one = runs[number] = await executor.run(hook, data, signal=signal)
        verdict = verdicts[number] = judge(hook, one)
        verdicts[number] = await spill.fitted(verdict)

    ended = False
    try:
        # Whoever reads the log after a crash shall know what was under way. A store
        # that fails is the kernel's to report.
        with suppress(ak.StorageError):
            await session.flush()
        async with trio.open_nursery() as nursery:
            for number, hook in enumerate(hooks):
                nursery.start_soon(run, number, hook, name=f"hook {hook.event}")
        ended = not signal.cancelled
    finally:
        for hook_id, one, verdict in zip(ids, runs, verdicts, strict=True):
            _returned(session, hook_id, one, verdict, counts=ended)
    signal.raise_if_cancelled()
    return merge(verdicts)


def _invoked(session: ak.Session, hook: Hook) -> str:
    hook_id = f"hook-{session.last_seq + 1}"
    command = hook.command if hook.args is None else " ".join(hook.argv)
    session.append(ak.HookInvoked(hook_id, hook.event, command, hook.matcher.text))
    return hook_id


def _returned(
    session: ak.Session, hook_id: str, run: HookRun, verdict: Verdict, *, counts: bool
) -> None:
    detail = verdict.stop or (verdict.reason or None) if counts else None
    session.append(
        ak.HookReturned(
            hook_id,
            verdict.outcome,
            verdict.decision if counts else "none",
            run.exit_code,
            run.duration,
            verdict.detail or detail,
        )
    )
