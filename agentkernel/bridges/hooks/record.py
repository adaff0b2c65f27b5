"""The durable facts of a hook: that it was started, and how it ended."""

from __future__ import annotations

from typing import Final

import agentkernel as ak

from .hook import Hook
from .verdict import HookRun, Verdict

__all__ = ["invoked", "returned"]

# How many of the processes that a hook has left behind are named.
_NAMED: Final = 5


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
    detail = verdict.detail or detail
    if run.survivors:
        left = f"it left processes behind: {', '.join(run.survivors[:_NAMED])}"
        more = len(run.survivors) - _NAMED
        left += f" and {more} more" if more > 0 else ""
        detail = f"{detail}; {left}" if detail else left
    session.append(
        ak.HookReturned(
            hook_id,
            verdict.outcome,
            verdict.decision if counts else "none",
            run.exit_code,
            run.duration,
            detail,
        )
    )
