"""Messages events -> chunks: pure, one decoder for each answer.

Blocks come one behind the other; each is given when it stops, so that the order of
signed reasoning and calls in one message stays what it was. A reasoning block that
does not stop has no end chunk and so no seal: it can be shown, and is never sent
back as signed reasoning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from agentkernel import (
    Chunk,
    FinishChunk,
    FinishReason,
    ModelError,
    ReasoningChunk,
    ReasoningEndChunk,
    TextChunk,
    ToolCallChunk,
    Usage,
    UsageChunk,
    clean_text,
)

from .failures import Secrets, stream_failure
from .sse import SseEvent
from .wire import TextJoiner, decode, is_cut

__all__ = ["AnthropicDecoder"]

_REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "max-tokens",
    "model_context_window_exceeded": "max-tokens",
    "refusal": "refusal",
}


class _OutputDetails(msgspec.Struct, frozen=True):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens_details: _OutputDetails | None = None


class _Message(msgspec.Struct, frozen=True):
    usage: _Usage | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, object] | None = None


class _Delta(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    index: int = 0
    message: _Message | str | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: object = None


class _Open:
    """A block that has begun and not stopped."""

    __slots__ = ("arguments", "block", "joiner", "signature")

    def __init__(self, block: _Block) -> None:
        self.block = block
        self.arguments: list[str] = []
        self.joiner = TextJoiner()
        self.signature = block.signature or ""


class AnthropicDecoder:
    """Reads one answer. Used by one task.

    Attributes:
      done: the provider said that nothing follows.

    """

    def __init__(self, names: Mapping[str, str], secrets: Secrets) -> None:
        self._names = names
        self._secrets = secrets
        self._open: dict[int, _Open] = {}
        self._usage = Usage()
        self._reason: FinishReason | None = None
        self._seen_anything = False
        self.done: bool = False

    @property
    def finished(self) -> bool:
        """Whether the answer is whole and nothing of it can still come."""
        return self._reason is not None

    def feed(self, event: SseEvent) -> tuple[bool, list[Chunk]]:
        """Take the next event. Not a checkpoint.

        Returns:
          Whether the event was more than a sign of life, and what it completes.

        Raises:
          ModelError: if it is an error, or no event of this protocol.

        """
        if event.name == "error":
            raise stream_failure(event.data, self._secrets)
        if not event.data.strip() or event.name == "ping":
            return False, []
        try:
            parsed = decode(event.data, _Event)
        except ValueError as error:
            raise ModelError(
                f"the provider sent an event that cannot be read: {error}",
                code="server",
                retryable=True,
            ) from None
        if parsed.type == "error" or parsed.error is not None:
            raise stream_failure(event.data, self._secrets)
        if parsed.type == "ping":
            return False, []
        return True, self._take(parsed)

    def end(self) -> list[Chunk]:
        """Give what was held back, at the end of the stream. Not a checkpoint.

        Raises:
          ModelError: if the stream ended before the answer did.

        """
        if self._reason is None:
            empty = self.done and not self._seen_anything
            raise ModelError(
                "the provider gave an empty answer"
                if empty
                else "the answer was cut: the stream ended without a stop reason",
                code="empty" if empty else "truncated",
                retryable=True,
            )
        chunks: list[Chunk] = []
        for index in sorted(self._open):
            chunks += self._close(index, cut=True)
        return [*chunks, FinishChunk(self._reason)]

    def _take(self, event: _Event) -> list[Chunk]:
        match event.type:
            case "message_start" if isinstance(event.message, _Message):
                return self._count(event.message.usage)
            case "content_block_start" if event.content_block is not None:
                return self._begin(event.index, event.content_block)
            case "content_block_delta" if event.delta is not None:
                return self._add(event.index, event.delta)
            case "content_block_stop":
                return self._close(event.index)
            case "message_delta":
                reason = event.delta.stop_reason if event.delta else None
                if reason:
                    self._reason = _REASONS.get(reason, "stop")
                return self._count(event.usage)
            case "message_stop":
                self.done = True
            case _:
                pass
        return []

    def _count(self, usage: _Usage | None) -> list[Chunk]:
        """Keep what is known: later numbers replace earlier ones, None does not."""
        if usage is None:
            return []
        known, details = self._usage, usage.output_tokens_details
        thinking = details.thinking_tokens if details else None
        self._usage = Usage(
            input_tokens=_or(usage.input_tokens, known.input_tokens),
            output_tokens=_or(usage.output_tokens, known.output_tokens),
            cache_read_tokens=_or(
                usage.cache_read_input_tokens, known.cache_read_tokens
            ),
            cache_write_tokens=_or(
                usage.cache_creation_input_tokens, known.cache_write_tokens
            ),
            reasoning_tokens=_or(thinking, known.reasoning_tokens),
        )
        return [UsageChunk(self._usage)]

    def _begin(self, index: int, block: _Block) -> list[Chunk]:
        self._seen_anything = True
        chunks = self._close(index, cut=True) if index in self._open else []
        self._open[index] = _Open(block)
        return [*chunks, *self._say(self._open[index], block.text, block.thinking)]

    def _add(self, index: int, delta: _Delta) -> list[Chunk]:
        opened = self._open.get(index)
        if opened is None:
            raise ModelError(
                "the provider sent a piece of a block that it had not opened",
                code="server",
                retryable=True,
            )
        opened.signature += delta.signature or ""
        if delta.partial_json:
            opened.arguments.append(delta.partial_json)
        return self._say(opened, delta.text, delta.thinking)

    def _say(
        self, opened: _Open, text: str | None, thinking: str | None
    ) -> list[Chunk]:
        if text and opened.block.type == "text":
            piece = opened.joiner.push(text)
            return [TextChunk(piece)] if piece else []
        if thinking and opened.block.type == "thinking":
            piece = opened.joiner.push(thinking)
            return [ReasoningChunk(piece)] if piece else []
        return []

    def _close(self, index: int, *, cut: bool = False) -> list[Chunk]:
        """Give what a block's end completes; blocks of other kinds say nothing."""
        opened = self._open.pop(index, None)
        if opened is None:
            return []
        rest = opened.joiner.flush()
        match opened.block.type:
            case "text":
                return [TextChunk(rest)] if rest else []
            case "thinking":
                chunks: list[Chunk] = [ReasoningChunk(rest)] if rest else []
                seal = None if cut else opened.signature or None
                return [*chunks, ReasoningEndChunk(signature=seal)]
            case "redacted_thinking":
                return [ReasoningEndChunk(data=opened.block.data)]
            case "tool_use":
                return [self._call(opened, cut=cut)]
            case _:
                return []

    def _call(self, opened: _Open, *, cut: bool) -> ToolCallChunk:
        name = clean_text(opened.block.name or "")
        arguments = clean_text("".join(opened.arguments))
        if not arguments.strip():
            arguments = json.dumps(opened.block.input or {})
        return ToolCallChunk(
            self._names.get(name, name),
            arguments,
            clean_text(opened.block.id or "") or None,
            cut or is_cut(arguments),
        )


def _or(new: int | None, old: int | None) -> int | None:
    return old if new is None else new
