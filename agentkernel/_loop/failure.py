"""What an exception that ended some work means: a stop, the end of all, or a fault.

Exceptions arrive alone or in groups, with cancellations among them. The loop asks
three questions of each: is a cancellation in it, is there a leaf that must not be
contained, and which leaf is the fault that people should read about?
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

import trio

from .._errors import ModelError, TurnCancelled
from .._json import clean_text
from .._messages import ToolFailure
from .._session.events import Ending

__all__ = [
    "as_model_error",
    "cancelled_here",
    "cancelled_part",
    "describe_error",
    "ending_of",
    "fatal_leaf",
    "fault",
    "model_failure",
    "tool_failure",
]

_FATAL = (KeyboardInterrupt, SystemExit, trio.TrioInternalError)
_MAX_TEXT = 1000


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Walk the exceptions in a group, or the one that is none, however deep it is."""
    waiting = [error]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", inner)
            waiting.extend(reversed(group.exceptions))
        else:
            yield inner


def cancelled_here() -> bool:
    """Whether the current task is being cancelled, by whomever.

    Tells a `Cancelled` that Trio raised here from one that somebody raised on their
    own. Not a checkpoint.
    """
    return trio.current_effective_deadline() == -math.inf


def cancelled_part(error: BaseException) -> BaseException | None:
    """Find the cancellation in what was raised, without what it is grouped with.

    It alone may cross a nursery of the loop; the rest has been noted.
    """
    if isinstance(error, trio.Cancelled):
        return error
    known = any(isinstance(leaf, trio.Cancelled) for leaf in leaves(error))
    if known and isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(trio.Cancelled)[0]
    return None


def fatal_leaf(error: BaseException) -> BaseException | None:
    """Find the leaf that must leave the kernel whatever else happens."""
    return next((leaf for leaf in leaves(error) if isinstance(leaf, _FATAL)), None)


def fault(error: BaseException, *, stopped: bool) -> BaseException | None:
    """Find the leaf that is a fault of its own; None if all of it is the stop.

    Args:
      error: what was raised.
      stopped: whether the work was being stopped; then cancellations and
        `TurnCancelled` are no faults.

    """
    for leaf in leaves(error):
        if isinstance(leaf, _FATAL):
            continue
        if stopped and isinstance(leaf, trio.Cancelled | TurnCancelled | GeneratorExit):
            continue
        return leaf
    return None


def describe_error(error: BaseException) -> str:
    """Name an error for a model or a log: its type and text, of its leaves if grouped.

    Not a checkpoint. The text is clean and bounded, whatever the error says of itself.
    """
    parts = [
        f"{type(leaf).__name__}: {said}"
        if (said := _said(leaf))
        else type(leaf).__name__
        for leaf in leaves(error)
    ]
    text = "; ".join(dict.fromkeys(parts))
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"


def as_model_error(error: Exception) -> ModelError:
    """Find the model's own error in what a stream raised, or wrap what there is."""
    for leaf in leaves(error):
        if isinstance(leaf, ModelError):
            return leaf
    wrapped = ModelError(describe_error(error))
    wrapped.__cause__ = error
    return wrapped


def model_failure(error: ModelError) -> ToolFailure:
    """Say what failed, as text, whatever the model put into its error."""
    code, message = getattr(error, "code", "error"), getattr(error, "message", error)
    return ToolFailure(_said(code), _said(message))


def ending_of(error: BaseException) -> Ending:
    """Make the ending of a turn that an error ended."""
    for leaf in leaves(error):
        if isinstance(leaf, ModelError):
            failure = model_failure(leaf)
            return Ending("error", code=failure.code, message=failure.message)
    return Ending("error", code="internal", message=describe_error(error))


def tool_failure(error: BaseException) -> ToolFailure:
    """Make the failure of a call whose body raised."""
    return ToolFailure("TOOL_ERROR", describe_error(error))


def _said(value: object) -> str:
    """Make clean text of what may be anybody's; one that has none is named instead."""
    try:
        return clean_text(str(value))
    except Exception:  # noqa: BLE001  # a failure must be told even if it cannot tell itself
        return f"({type(value).__name__} has no text)"
