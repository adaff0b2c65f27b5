"""What a job came to, from what its work returned or raised. Pure.

Whatever that was, what comes out of here can be put into a log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

import trio

import agentkernel as ak

from .job import JobEnding, JobResult

__all__ = ["raised", "returned", "stays_raised"]

_RETURNED: Final = ("completed", "failed", "ended")

# What a job does not keep to itself: its own end, and what has to leave the kernel.
_LEAVING: Final = (
    trio.Cancelled,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    trio.TrioInternalError,
)


def returned(value: object) -> JobResult:
    """Check what the work returned; what no log can hold is a failure of the job."""
    try:
        return _checked(value)
    except Exception as error:  # noqa: BLE001  # it may be anything: what is wrong with it is the result
        return JobResult(ak.describe_error(error), "failed")


def _checked(value: object) -> JobResult:
    if not isinstance(value, JobResult):
        kind = type(value).__name__
        raise TypeError(f"the work of a job returns a JobResult, not {kind}")
    text = cast("object", value.text)
    meta = cast("object", value.meta)
    if not isinstance(text, str):
        raise TypeError(f"the text of a job's result is text, not {text!r:.100}")
    if value.ending not in _RETURNED:
        raise ValueError(f"work cannot end as {value.ending!r:.100}")
    if not isinstance(meta, Mapping):
        raise TypeError(f"the meta of a job's result is an object, not {meta!r:.100}")
    frozen = ak.freeze(cast("object", meta), "meta")
    return JobResult(ak.clean_text(text), value.ending, cast("ak.JsonObject", frozen))


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
