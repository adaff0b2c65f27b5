"""What a job came to, from what its work returned or raised. Pure.

Whatever that was, what comes out of here can be put into a log.
"""

from __future__ import annotations

from typing import Final, cast

import trio

import agentkernel as ak

from .job import JobEnding, JobResult

__all__ = ["raised", "stays_raised"]

# What a job does not keep to itself: its own end, and what has to leave the kernel.
_LEAVING: Final = (
    trio.Cancelled,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    trio.TrioInternalError,
)


def raised(error: BaseException, *, killed: bool) -> tuple[JobEnding, JobResult]:
    """Say what became of a job whose work raised.

    A cancellation is the job's own end. What else is in a group with it is told, and
    does not change how the job has ended.

    Args:
      error: what was raised.
      killed: whether the end of this job alone was asked for.

    """
    end: BaseException | None
    rest: BaseException | None
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        end, rest = group.split(trio.Cancelled)
    else:
        end, rest = (
            (error, None) if isinstance(error, trio.Cancelled) else (None, error)
        )
    text = "" if rest is None else ak.describe_error(rest)
    if end is None:
        return "failed", JobResult(text, "failed")
    return "killed" if killed else "ended", JobResult(text, "ended")


def stays_raised(error: BaseException) -> bool:
    """Whether what the work raised is more than its own failure."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup(_LEAVING) is not None
    return isinstance(error, _LEAVING)
