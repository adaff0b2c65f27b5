"""What the renderings of a history have in common: options, notes, results, files.

Pure. What a provider is shown of an event never changes afterwards: the same message
gives the same bytes in every later request, so that its cache of the history holds.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping

import msgspec

from agentkernel import (
    BinaryBlock,
    JsonObject,
    ModelError,
    ModelRequest,
    Note,
    TextBlock,
    ToolResult,
)

from .wire import wire_text

__all__ = [
    "EMPTY_MESSAGE",
    "RequestOptions",
    "ToolName",
    "attachment_text",
    "base64_of",
    "note_text",
    "read_extra_body",
    "read_options",
    "result_text",
]

# Stands for a user message in which nothing can be sent.
EMPTY_MESSAGE = "(empty message)"
_NO_OUTPUT = "(no output)"


class ToolName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names the tool that the model must call."""

    name: str


class RequestOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a request that every provider knows, under one name each.

    Attributes:
      tool_choice: `auto`, `none`, `required`, or `{"name": …}`.
      extra_body: what the provider's own documentation names, sent as it is.

    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop: str | tuple[str, ...] | None = None
    tool_choice: str | ToolName | None = None
    extra_body: dict[str, object] = {}


def read_options(request: ModelRequest) -> RequestOptions:
    """Read a request's options.

    Raises:
      ModelError: if an option is unknown or has the wrong type.

    """
    try:
        options = msgspec.convert(dict(request.options), RequestOptions)
    except msgspec.ValidationError as error:
        raise ModelError(
            f"the request options cannot be used: {error}; what only this provider "
            "knows belongs under extra_body",
            code="invalid-request",
        ) from None
    choice = options.tool_choice
    if isinstance(choice, str) and choice not in {"auto", "none", "required"}:
        raise ModelError(
            f'tool_choice is {choice!r}, not auto, none, required or {{"name": ...}}',
            code="invalid-request",
        )
    return options


def read_extra_body(request: ModelRequest) -> JsonObject:
    """Give what a request carries for this provider alone.

    Raises:
      ModelError: if it would make another request of this one.

    """
    extra = request.options.get("extra_body")
    if not isinstance(extra, Mapping):
        return {}
    for name in ("messages", "model", "stream", "system", "tools"):
        if name in extra:
            raise ModelError(
                f"extra_body must not replace {name!r}", code="invalid-request"
            )
    return extra


def note_text(note: Note) -> str:
    """Give a note as the model is shown it, on the user's side."""
    return f"[Note: {wire_text(note.text)}]"


def result_text(result: ToolResult) -> str:
    """Give the text of a result; an error says that it is one, and says why."""
    parts = [wire_text(b.text) for b in result.content if isinstance(b, TextBlock)]
    text = "\n".join(parts)
    if result.error is not None:
        message = wire_text(result.error.message)
        if not text.strip():
            text = message
        elif message not in text:
            text = f"{message}\n{text}"
        text = f"Error ({wire_text(result.error.code)}): {text}"
    return text if text.strip() else _NO_OUTPUT


def attachment_text(block: BinaryBlock, *, shown: bool) -> str:
    """Name a file in words, where it cannot be shown, or is shown elsewhere."""
    name = f" {wire_text(block.name)}" if block.name else ""
    place = "follows below" if shown else "cannot be shown"
    kind = wire_text(block.media_type)
    return f"[Attachment{name} ({kind}, {len(block.data.data)} bytes): {place}]"


def base64_of(block: BinaryBlock) -> str:
    """Give a file's content in base64."""
    return b64encode(block.data.data).decode("ascii")
