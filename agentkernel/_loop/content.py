"""Content that comes from outside: what is no block is refused, text is cleaned."""

from __future__ import annotations

from typing import cast

from .._json import clean_text
from .._messages import BinaryBlock, Blob, TextBlock

__all__ = ["clean_block"]


def clean_block(block: object) -> TextBlock | BinaryBlock:
    """Take a block that a log can hold, its text clean.

    Raises:
      TypeError: if it is no block, or holds what its type does not allow.

    """
    if isinstance(block, TextBlock):
        text = cast("object", block.text)
        if not isinstance(text, str):
            raise TypeError(f"a TextBlock holds text, not {type(text).__name__}")
        clean = clean_text(text)
        return block if clean is text else TextBlock(clean)
    if not isinstance(block, BinaryBlock):
        kind = type(block).__name__
        raise TypeError(f"content must be blocks such as TextBlock, not a {kind}")
    data = cast("object", block.data)
    if not isinstance(data, Blob):
        raise TypeError(f"a BinaryBlock holds a Blob, not {type(data).__name__}")
    names = cast("tuple[object, ...]", (block.media_type, block.name or ""))
    if not all(isinstance(name, str) for name in names):
        raise TypeError("the media type and the name of a BinaryBlock must be text")
    return block
