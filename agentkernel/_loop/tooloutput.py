"""The last look at what a tool gave back, before it becomes a fact. Pure."""

from __future__ import annotations

from .._json import EMPTY, clean_text, freeze_object
from .._messages import BinaryBlock, TextBlock, ToolFailure
from ..abc import ToolOutput

__all__ = ["checked_output"]


def checked_output(output: object) -> ToolOutput:
    """Refuse what is no output, and clean what is one."""
    if not isinstance(output, ToolOutput):
        raise TypeError(f"a tool must return a ToolOutput, not {type(output).__name__}")
    content: list[TextBlock | BinaryBlock] = []
    for block in output.content:
        if isinstance(block, TextBlock):
            content.append(TextBlock(clean_text(block.text)))
        elif type(block) is BinaryBlock:
            content.append(block)
        else:
            raise TypeError(f"a tool's content must be blocks, not {block!r}")
    error = output.error
    if error is not None:
        error = ToolFailure(clean_text(error.code), clean_text(error.message))
    meta = freeze_object(dict(output.meta), "meta") if output.meta else EMPTY
    return ToolOutput(tuple(content), error, meta)
