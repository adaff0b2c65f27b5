"""What an exception that ended a workflow means, and how a model is told. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import trio

import agentkernel as ak

__all__ = ["describe", "is_stop", "leaves"]

_MOST = 1000


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


def is_stop(error: BaseException) -> bool:
    """Whether an exception is nothing but a stop of the work that raised it."""
    return all(isinstance(e, trio.Cancelled | ak.TurnCancelled) for e in leaves(error))


def describe(error: BaseException) -> str:
    """Name an exception by its type and its text; a group by those in it."""
    said = dict.fromkeys(_say(leaf) for leaf in leaves(error))
    text = "; ".join(said)
    return text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"


def _say(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = ak.clean_text(str(error))
    except Exception:  # noqa: BLE001  # an error may be anybody's, and must be told
        text = ""
    return f"{name}: {text}" if text else name
