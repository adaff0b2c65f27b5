"""From chunks to a message: what a model said, put together. Pure."""

from __future__ import annotations

import json
from typing import cast, final

import msgspec

from .._errors import ModelError
from .._json import EMPTY, JsonObject, clean_text, freeze_object
from .._messages import (
    AssistantMessage,
    Chunk,
    FinishChunk,
    ReasoningBlock,
    ReasoningChunk,
    ReasoningEndChunk,
    TextBlock,
    TextChunk,
    ToolCall,
    ToolCallChunk,
    Usage,
    UsageChunk,
)
from .._session.events import StreamedChunk
from .._session.repair import merge_blocks

__all__ = ["Answer", "parse_arguments"]

_EXCERPT = 200


@final
class Answer:
    """One attempt's answer while it comes in.

    Attributes:
      delivered: whether anything of it was shown to observers.
      usage: the attempt's tokens as far as they are known.
      finish: why the answer ended, None until it has.

    """

    __slots__ = ("_order", "_run", "delivered", "finish", "usage")

    def __init__(self) -> None:
        # The blocks so far: runs of shown chunks, and single calls between them.
        self._order: list[list[StreamedChunk] | ToolCallChunk] = []
        # The run at the end, while nothing has come behind it.
        self._run: list[StreamedChunk] | None = None
        self.delivered = False
        self.usage: Usage | None = None
        self.finish: str | None = None

    def add(self, chunk: Chunk) -> StreamedChunk | None:
        """Take a chunk; return what observers are shown of it, cleaned, if anything.

        Raises:
          ModelError: if the answer had ended before, or it is no chunk.

        """
        if isinstance(chunk, TextChunk) or isinstance(chunk, ReasoningChunk):  # noqa: SIM101  # text is what most chunks are: half of the tuple's price
            text = _clean(chunk.text)
            if not text:
                return None
            return self._show(chunk if text is chunk.text else type(chunk)(text))
        chunk = _sound(chunk)
        if isinstance(chunk, UsageChunk):
            self.usage = _newer(self.usage, chunk.usage)
            return None
        if self.finish is not None:
            raise ModelError("the stream went on after its end", code="server")
        if isinstance(chunk, FinishChunk):
            self.finish = chunk.reason
            return None
        if isinstance(chunk, ToolCallChunk):
            self._order.append(chunk)
            self._run = None
            return None
        assert isinstance(chunk, ReasoningEndChunk)
        return self._show(chunk)

    def message(self, turn: int, step: int) -> AssistantMessage:
        """Form the complete message, with an id for each call.

        A message that was cut by the token limit carries no calls.
        """
        content: list[TextBlock | ReasoningBlock | ToolCall] = []
        number = 0
        for part in self._order:
            if isinstance(part, list):
                content += merge_blocks(part)
            elif self.finish != "max-tokens":
                number += 1
                content.append(_call(part, f"call_{turn}_{step}_{number}"))
        return AssistantMessage(tuple(content))

    def _show(self, chunk: StreamedChunk) -> StreamedChunk:
        if self.finish is not None:
            raise ModelError("the stream went on after its end", code="server")
        if self._run is None:
            self._run = []
            self._order.append(self._run)
            self.delivered = True
        self._run.append(chunk)
        return chunk


def parse_arguments(text: str) -> tuple[JsonObject, str | None]:
    """Read a call's arguments; what is wrong with them is said, never mended.

    Returns:
      The object and None, or an empty object and the problem. No text at all is an
      empty object.

    """
    if not text.strip():
        return EMPTY, None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        try:
            # The decoder above refuses half a surrogate pair, which is legal JSON.
            value = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return EMPTY, f"the arguments are not JSON ({error}): {_excerpt(text)}"
    if not isinstance(value, dict):
        return EMPTY, f"the arguments are not a JSON object: {_excerpt(text)}"
    try:
        return freeze_object(cast("dict[str, object]", value)), None
    except (TypeError, RecursionError) as error:
        return EMPTY, f"the arguments cannot be used ({error}): {_excerpt(text)}"


def _call(chunk: ToolCallChunk, call_id: str) -> ToolCall:
    if chunk.truncated:
        arguments: JsonObject = EMPTY
        problem: str | None = f"the call was cut short: {_excerpt(chunk.arguments)}"
    else:
        arguments, problem = parse_arguments(chunk.arguments)
    return ToolCall(
        call_id, clean_text(chunk.name), arguments, chunk.provider_id, problem
    )


def _clean(text: object) -> str:
    """Clean what a model gives as text.

    Raises:
      ModelError: if it is none.

    """
    if not isinstance(text, str):
        raise ModelError(f"the model gave a {type(text).__name__} as text")
    return clean_text(text)


def _sound(chunk: Chunk) -> Chunk:
    """Refuse what no log could hold: a stream is anybody's.

    Raises:
      ModelError: if it is no chunk, or holds what its type does not allow.

    """
    kind: type[Chunk] = type(chunk)
    if kind is FinishChunk:
        return chunk
    if kind not in {UsageChunk, ToolCallChunk, ReasoningEndChunk}:
        raise ModelError(f"a stream gives chunks, and not a {kind.__name__}")
    try:
        plain: object = msgspec.to_builtins(chunk, builtin_types=(bytes,))
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, TypeError) as error:
        text = f"the model gave a {kind.__name__} that is none: {error}"
        raise ModelError(text) from None


def _newer(old: Usage | None, new: Usage) -> Usage:
    """Let each part that the newer report knows replace the older one."""
    if old is None:
        return new
    known = {
        name: value
        for name in Usage.__struct_fields__
        if (value := getattr(new, name)) is not None
    }
    return msgspec.structs.replace(old, **known)


def _excerpt(text: str) -> str:
    text = clean_text(text)
    return text if len(text) <= _EXCERPT else f"{text[:_EXCERPT]}… ({len(text)} chars)"


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
