"""Whether what ended the work of a workflow is a fault of it. Pure."""

from __future__ import annotations

from typing import Final, cast

import trio

import agentkernel as ak

__all__ = ["is_stop"]

_STOPS: Final = (trio.Cancelled, ak.TurnCancelled)


def is_stop(error: BaseException) -> bool:
    """Whether an exception is nothing but a stop of the work that raised it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.split(_STOPS)[1] is None
    return isinstance(error, _STOPS)
