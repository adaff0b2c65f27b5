"""How processes that outlived their leader are told of: a few of them, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from agentkernel import JsonObject, clean_text

from .group import Survivor

__all__ = ["list_survivors", "show_survivors"]

_MOST = 20
_MAX_COMMAND = 100


def show_survivors(survivors: Sequence[Survivor]) -> list[str]:
    """Make the lines that a model is shown. Not a checkpoint."""
    lines: list[str] = []
    for one in _first(survivors):
        verb = "ended" if one.ended else "could not be ended and still runs"
        command = clean_text(one.command[:_MAX_COMMAND])
        lines.append(f"[background process {one.pid} {verb}: {command}]")
    if len(survivors) > _MOST:
        lines.append(f"[{len(survivors) - _MOST} more background processes: not shown]")
    return lines


def list_survivors(survivors: Sequence[Survivor]) -> tuple[JsonObject, ...]:
    """Make the values that a log keeps. Not a checkpoint."""
    return tuple(
        {
            "pid": one.pid,
            "command": clean_text(one.command[:_MAX_COMMAND]),
            "ended": one.ended,
        }
        for one in _first(survivors)
    )


def _first(survivors: Sequence[Survivor]) -> list[Survivor]:
    """Pick those that are told of: first of all those that still run."""
    return sorted(survivors, key=lambda one: (one.ended, one.pid))[:_MOST]
