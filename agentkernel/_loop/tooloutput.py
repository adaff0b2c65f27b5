"""What a call gave back, or how it failed, before it becomes a fact. Pure."""

from __future__ import annotations

from .._json import EMPTY, clean_text, freeze_object
from .._messages import ToolFailure
from ..abc import ToolOutput
from .content import clean_block
from .payload import PostExecute

__all__ = ["checked_output", "keep_output", "timed_out"]


def checked_output(output: object) -> ToolOutput:
    """Refuse what is no output, and clean what is one."""
    if not isinstance(output, ToolOutput):
        raise TypeError(f"a tool must return a ToolOutput, not {type(output).__name__}")
    content = tuple([clean_block(block) for block in output.content])
    error = output.error
    if error is not None:
        error = ToolFailure(clean_text(error.code), clean_text(error.message))
    meta = freeze_object(dict(output.meta), "meta") if output.meta else EMPTY
    return ToolOutput(content, error, meta)


def timed_out(name: str, limit: float | None) -> ToolOutput:
    """Say that a body was ended by its own limit."""
    text = f"The tool {name} was stopped after its limit of {limit} s."
    return ToolOutput(error=ToolFailure("TIMEOUT", text))


async def keep_output(payload: PostExecute) -> ToolOutput:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Show the output as it is: the default decision."""
    return payload.output  # noqa: ASYNC910  # waits only if it must
