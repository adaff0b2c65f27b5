"""Reads what the engine of `LocalModel` says while it answers.

`Reader` turns the engine's events into chunks. It is synchronous and knows neither
threads nor Trio: `agentkernel.bridges.providers.local` feeds it.

An answer that begins with a brace is a call and comes out whole, as one chunk at its
end; everything else is text and comes out as it is written.
"""

from __future__ import annotations

from typing import final

import msgspec

from agentkernel import (
    Chunk,
    FinishChunk,
    FinishReason,
    ModelError,
    TextChunk,
    ToolCallChunk,
    Usage,
    UsageChunk,
)

__all__ = ["Reader"]


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Tokens(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Progress(msgspec.Struct):
    total: int
    cache: int = 0


class _Refusal(msgspec.Struct):
    message: str = "no reason given"
    code: int | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Event(msgspec.Struct):
    """One event of the engine, in as much as it is looked at."""

    choices: list[_Choice] = msgspec.field(default_factory=list[_Choice])
    usage: _Tokens | None = None
    prompt_progress: _Progress | None = None
    error: _Refusal | None = None


class _WrittenCall(msgspec.Struct):
    tool: str
    args: msgspec.Raw


@final
class Reader:
    """Makes chunks of the engine's events. Synchronous; one for each answer."""

    def __init__(self) -> None:
        self._started = False
        # The answer from its opening brace on, None once it is known to be text.
        self._call: str | None = None
        self._prompt: _Progress | None = None

    def feed(self, event: object) -> list[Chunk]:
        """Take one event. Not a checkpoint.

        Raises:
          ModelError: if the engine refused the request.

        """
        seen = msgspec.convert(event, _Event)
        if seen.error is not None:
            raise _failure(seen.error)
        self._prompt = seen.prompt_progress or self._prompt
        chunks: list[Chunk] = []
        for choice in seen.choices:
            if choice.delta.content:
                chunks += self._take(choice.delta.content)
            if choice.finish_reason is not None:
                chunks += self._finish(cut=choice.finish_reason == "length")
        if seen.usage is not None:
            chunks.append(UsageChunk(_usage(seen.usage)))
        return chunks

    def _take(self, text: str) -> list[Chunk]:
        chunks: list[Chunk] = []
        if not self._started:
            self._started = True
            self._call = "" if text.startswith("{") else None
            if (prompt := self._prompt) is not None:
                # All that is ever known of an answer that is stopped.
                known = Usage(input_tokens=prompt.total, cache_read_tokens=prompt.cache)
                chunks.append(UsageChunk(known))
        if self._call is None:
            chunks.append(TextChunk(text))
        else:
            self._call += text
        return chunks

    def _finish(self, *, cut: bool) -> list[Chunk]:
        reason: FinishReason = "max-tokens" if cut else "stop"
        if self._call is None:
            return [FinishChunk(reason)]
        try:
            call = msgspec.json.decode(self._call, type=_WrittenCall)
        except msgspec.MsgspecError:
            if cut:
                return [_cut_short(self._call), FinishChunk(reason)]
            # A brace that opened no call: text of an engine that has no grammars.
            return [TextChunk(self._call), FinishChunk(reason)]
        arguments = bytes(call.args).decode()
        return [ToolCallChunk(call.tool, arguments), FinishChunk("tool-calls")]


def _cut_short(written: str) -> ToolCallChunk:
    """Make a chunk of a call that has no end."""
    head, _, arguments = written.partition('"args":')
    name = head.partition('"tool":')[2].strip().strip('",')
    return ToolCallChunk(name, arguments, truncated=True)


def _usage(tokens: _Tokens) -> Usage:
    return Usage(
        input_tokens=tokens.prompt_tokens,
        output_tokens=tokens.completion_tokens,
        cache_read_tokens=tokens.prompt_tokens_details.cached_tokens,
    )


def _failure(refusal: _Refusal) -> ModelError:
    """Say what the engine refused, and name the limit if that was it."""
    if refusal.n_prompt_tokens is not None and refusal.n_ctx is not None:
        return ModelError(
            f"the conversation has {refusal.n_prompt_tokens} tokens and the window of "
            f"the model holds {refusal.n_ctx}; start a new session, or open the model "
            "with a larger context",
            code="invalid-request",
        )
    return ModelError(
        f"the engine refused: {refusal.message}",
        code="invalid-request" if refusal.code == 400 else "error",
    )
