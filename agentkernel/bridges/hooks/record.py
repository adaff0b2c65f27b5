"""The durable facts of a hook: that it was started, and how it ended."""

from __future__ import annotations

import agentkernel as ak

from .hook import Hook
from .verdict import HookRun, Verdict

__all__ = ["invoked", "returned"]


def invoked(session: ak.Session, hook: Hook) -> str:
    """Append that a hook is started, and return the id of this run of it."""
    hook_id = f"hook-{session.last_seq + 1}"
    command = (
        hook.command if hook.args is None else " ".join((hook.command, *hook.args))
    )
    session.append(ak.HookInvoked(hook_id, hook.event, command, hook.matcher.text))
    return hook_id


def returned(
    session: ak.Session,
    hook_id: str,
    run: HookRun,
    verdict: Verdict,
    *,
    counts: bool = True,
) -> None:
    """Append how a run has ended; one that does not count has decided nothing."""
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
