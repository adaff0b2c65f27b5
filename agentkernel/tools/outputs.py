"""What a tool function returned, made into what a model is shown.

Pure. Text follows the kernel's rule for strings (`clean_text`), so nothing that a tool
returns can make a log that no encoder accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from agentkernel import (
    BinaryBlock,
    Blob,
    TextBlock,
    ToolFailure,
    ToolOutput,
    clean_text,
    freeze,
)

__all__ = ["to_output"]

# What images and documents begin with.
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def to_output(value: object, tool: str) -> ToolOutput:
    """Make an output of a return value.

    Text and blocks stay what they are, None is an empty output, bytes are a binary
    block; anything else that JSON can carry is shown as its JSON text.

    Raises:
      TypeError: if the value is none of these; it names the tool.

    """
    if isinstance(value, ToolOutput):
        return _clean(value)
    if value is None:
        return ToolOutput()
    blocks = _to_blocks(value)
    if blocks is None:
        blocks = (TextBlock(_render(value, tool)),)
    return _clean(ToolOutput(blocks))


def _to_blocks(value: object) -> tuple[TextBlock | BinaryBlock, ...] | None:
    """Read a value that is content already; None if it is not."""
    if isinstance(value, str):
        return (TextBlock(value),)
    if isinstance(value, bytes | bytearray):
        return (BinaryBlock(_media_type(value), Blob(bytes(value))),)
    if isinstance(value, TextBlock | BinaryBlock):
        return (value,)
    if isinstance(value, list | tuple) and value:
        items = cast("Sequence[object]", value)
        blocks = tuple(i for i in items if isinstance(i, TextBlock | BinaryBlock))
        if len(blocks) == len(items):
            return blocks
    return None


def _render(value: object, tool: str) -> str:
    try:
        plain = freeze(msgspec.to_builtins(value, str_keys=True))
    except (TypeError, ValueError) as exc:
        raise TypeError(
            f"tool {tool!r} returned a {type(value).__name__}, which is neither text "
            f"nor JSON: {exc}"
        ) from exc
    return msgspec.json.encode(plain).decode()


def _clean(output: ToolOutput) -> ToolOutput:
    content = tuple(
        TextBlock(clean_text(block.text)) if isinstance(block, TextBlock) else block
        for block in output.content
    )
    error = output.error
    if error is not None:
        error = ToolFailure(clean_text(error.code), clean_text(error.message))
    meta = freeze(output.meta)
    assert isinstance(meta, dict)
    return ToolOutput(content, error, meta)


def _media_type(data: bytes | bytearray) -> str:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    return "application/octet-stream"
