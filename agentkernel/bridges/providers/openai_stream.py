"""Chat-completions events -> chunks: pure, one decoder for each answer.

The decoder sees events one at a time and holds back what is not yet certain: calls
and the reason of the end are given when the answer has ended, since servers send
usage, further deltas and even a second reason behind the first. An answer without a
reason was cut, whatever else it says.
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
    Usage,
    UsageChunk,
)

from .failures import Secrets, stream_failure
from .sse import SseEvent
from .toolcalls import CallPiece, ToolCallAssembler
from .wire import TextJoiner, decode

__all__ = ["OpenAIDecoder"]

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "length": "max-tokens",
    "max_tokens": "max-tokens",
    "model_length": "max-tokens",
    "content_filter": "content-filter",
    "refusal": "refusal",
}
# Reasons that say that there is no answer.
_FAILURES = frozenset({"error", "abort", "insufficient_system_resource"})


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _CallDelta(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(msgspec.Struct, frozen=True):
    """A part of a content that is a list, as some servers send it."""

    type: str = ""
    text: str | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | tuple[_Part, ...] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: tuple[_CallDelta, ...] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    error: object = None


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _Event(msgspec.Struct, frozen=True):
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None
    error: object = None
    kind: str | None = msgspec.field(default=None, name="object")


class OpenAIDecoder:
    """Reads one answer. Used by one task.

    Attributes:
      finished: the answer is whole; only usage may still come.
      done: the provider said that nothing follows.

    """

    def __init__(self, names: Mapping[str, str], secrets: Secrets) -> None:
        self._names = names
        self._secrets = secrets
        self._calls = ToolCallAssembler()
        self._text = TextJoiner()
        self._reasoning = TextJoiner()
        self._in_reasoning = False
        self._seen_anything = False
        self._refused = False
        self._reason: FinishReason | None = None
        self.done: bool = False

    @property
    def finished(self) -> bool:
        """Whether the answer is whole and only usage may still come."""
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
        if event.data.strip() == "[DONE]":
            self.done = True
            return True, []
        try:
            parsed = decode(event.data, _Event)
        except ValueError as error:
            raise ModelError(
                f"the provider sent an event that cannot be read: {error}",
                code="server",
                retryable=True,
            ) from None
        if parsed.error is not None or parsed.kind == "error":
            raise stream_failure(event.data, self._secrets)
        return self._take(parsed)

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
                else "the answer was cut: the stream ended without a finish reason",
                code="empty" if empty else "truncated",
                retryable=True,
            )
        chunks = [*self._end_reasoning(), *_texts(self._text.flush())]
        cut = self._reason not in {"stop", "tool-calls"}
        calls = self._calls.finish(cut=cut, rename=lambda n: self._names.get(n, n))
        chunks += calls
        reason = self._reason
        if calls and reason == "stop":
            reason = "tool-calls"
        elif reason == "stop" and self._refused:
            reason = "refusal"
        return [*chunks, FinishChunk(reason)]

    def _take(self, event: _Event) -> tuple[bool, list[Chunk]]:
        chunks: list[Chunk] = []
        for choice in event.choices or ():
            if choice.index in {None, 0}:
                chunks += self._choice(choice)
        if event.usage is not None:
            self._seen_anything = True
            chunks.append(UsageChunk(_usage(event.usage)))
        return bool(event.choices or event.usage), chunks

    def _choice(self, choice: _Choice) -> list[Chunk]:
        self._seen_anything = True
        if choice.error is not None or choice.finish_reason in _FAILURES:
            raise self._failed_choice(choice)
        chunks = self._delta(choice.delta) if choice.delta is not None else []
        if choice.finish_reason:
            self._reason = _REASONS.get(choice.finish_reason.lower(), "stop")
        return chunks

    def _failed_choice(self, choice: _Choice) -> ModelError:
        error = choice.error
        if error is None:
            error = {"type": choice.finish_reason}
        return stream_failure(
            msgspec.json.encode({"error": error}).decode(), self._secrets
        )

    def _delta(self, delta: _Delta) -> list[Chunk]:
        chunks: list[Chunk] = []
        reasoning = delta.reasoning_content or delta.reasoning
        if reasoning:
            self._in_reasoning = True
            text = self._reasoning.push(reasoning)
            chunks += [ReasoningChunk(text)] if text else []
        said = _content(delta.content)
        if delta.refusal:
            self._refused = True
            said += delta.refusal
        if said:
            chunks += [*self._end_reasoning(), *_texts(self._text.push(said))]
        for call in delta.tool_calls or ():
            self._calls.add(_piece(call))
        return chunks

    def _end_reasoning(self) -> list[Chunk]:
        if not self._in_reasoning:
            return []
        self._in_reasoning = False
        rest = self._reasoning.flush()
        return [*([ReasoningChunk(rest)] if rest else []), ReasoningEndChunk()]


def _texts(text: str) -> list[Chunk]:
    return [TextChunk(text)] if text else []


def _content(content: str | tuple[_Part, ...] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or "" for part in content if part.type == "text")


def _piece(call: _CallDelta) -> CallPiece:
    function = call.function or _Function()
    arguments = function.arguments or ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments)
    return CallPiece(call.index, call.id or "", function.name or "", arguments)


def _usage(usage: _Usage) -> Usage:
    prompt, completion = usage.prompt_tokens_details, usage.completion_tokens_details
    cached = prompt.cached_tokens if prompt else None
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_tokens=usage.prompt_cache_hit_tokens if cached is None else cached,
        reasoning_tokens=completion.reasoning_tokens if completion else None,
    )
