"""The last look at what a tool gave back, before it becomes a fact. Pure."""

from __future__ import annotations

from .._json import EMPTY, clean_text, freeze_object
from .._messages import ToolFailure
from ..abc import ToolOutput
from .content import clean_block

__all__ = ["checked_output"]


def checked_output(output: object) -> ToolOutput:
    """Refuse what is no output, and clean what is one."""
    if not isinstance(output, ToolOutput):
        raise TypeError(f"a tool must return a ToolOutput, not {type(output).__name__}")
    content = tuple(clean_block(block) for block in output.content)
    error = output.error
    if error is not None:
        error = ToolFailure(clean_text(error.code), clean_text(error.message))
    meta = freeze_object(dict(output.meta), "meta") if output.meta else EMPTY
    return ToolOutput(content, error, meta)
