"""The bytes that providers send, put together from what they mean."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import httpx2

from agentkernel import (
    Chunk,
    Model,
    ModelRequest,
    TextBlock,
    TextChunk,
    UserMessage,
)
from agentkernel.bridges.providers import AnthropicModel, ApiKey, OpenAIModel

HELLO = ModelRequest(
    system="Be brief.", messages=(UserMessage("m1", (TextBlock("Hi"),)),)
)


def event(value: object, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value, ensure_ascii=False)}\n\n".encode()


# Chat completions.

DONE = b"data: [DONE]\n\n"


def delta(finish: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"id": "c1", "object": "chat.completion.chunk", "choices": [choice]})


def usage(prompt: int, completion: int, **details: object) -> bytes:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, **details}
    return event(
        {"id": "c1", "object": "chat.completion.chunk", "choices": [], "usage": counted}
    )


def call(
    index: int | None = None,
    call_id: str | None = None,
    name: str | None = None,
    arguments: str | None = None,
) -> dict[str, object]:
    fields = {"index": index, "id": call_id}
    function = {"name": name, "arguments": arguments}
    return {
        **{k: v for k, v in fields.items() if v is not None},
        "function": {k: v for k, v in function.items() if v is not None},
    }


def chat(*texts: str, finish: str = "stop") -> bytes:
    parts = [delta(role="assistant", content="")]
    parts += [delta(content=text) for text in texts]
    return b"".join([*parts, delta(finish), usage(7, 3), DONE])


# Messages.


def message_start(**usage: int) -> bytes:
    counted = usage or {"input_tokens": 7, "output_tokens": 1}
    return named("message_start", message={**_EMPTY, "usage": counted})


def named(kind: str, **fields: object) -> bytes:
    return event({"type": kind, **fields}, kind)


def block(
    index: int,
    content: Mapping[str, object],
    *deltas: dict[str, object],
    stop: bool = True,
) -> bytes:
    parts = [named("content_block_start", index=index, content_block=content)]
    parts += [named("content_block_delta", index=index, delta=d) for d in deltas]
    if stop:
        parts.append(named("content_block_stop", index=index))
    return b"".join(parts)


def text_block(index: int, *texts: str, stop: bool = True) -> bytes:
    deltas: list[dict[str, object]] = [
        {"type": "text_delta", "text": text} for text in texts
    ]
    return block(index, {"type": "text", "text": ""}, *deltas, stop=stop)


def tool_block(index: int, call_id: str, name: str, *parts: str) -> bytes:
    deltas: list[dict[str, object]] = [
        {"type": "input_json_delta", "partial_json": part} for part in parts
    ]
    start: dict[str, object] = {"type": "tool_use", "id": call_id, "name": name}
    start["input"] = dict[str, object]()
    return block(index, start, *deltas)


def thinking_block(
    index: int, *texts: str, signature: str = "", stop: bool = True
) -> bytes:
    deltas: list[dict[str, object]] = [
        {"type": "thinking_delta", "thinking": text} for text in texts
    ]
    if signature:
        deltas.append({"type": "signature_delta", "signature": signature})
    start: dict[str, object] = {"type": "thinking", "thinking": "", "signature": ""}
    return block(index, start, *deltas, stop=stop)


def message_end(reason: str = "end_turn", output_tokens: int = 3) -> bytes:
    return message_delta(reason, output_tokens) + named("message_stop")


def message_delta(reason: str = "end_turn", output_tokens: int = 3) -> bytes:
    return named(
        "message_delta",
        delta={"stop_reason": reason, "stop_sequence": None},
        usage={"output_tokens": output_tokens},
    )


def messages(*texts: str, reason: str = "end_turn") -> bytes:
    return message_start() + text_block(0, *texts) + message_end(reason)


_EMPTY: dict[str, object] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": list[object](),
    "stop_reason": None,
    "stop_sequence": None,
}


# Reading.


class Maker(Protocol):
    """How both models are made in these tests."""

    def __call__(
        self,
        model: str,
        /,
        *,
        base_url: str = ...,
        api_key: ApiKey = ...,
        headers: Mapping[str, str] | None = ...,
        client: httpx2.AsyncClient | None = ...,
        idle_seconds: float = ...,
    ) -> OpenAIModel | AnthropicModel: ...


MAKERS: dict[str, Maker] = {"openai": OpenAIModel, "anthropic": AnthropicModel}


async def read(model: Model, request: ModelRequest = HELLO) -> list[Chunk]:
    """Read one whole answer."""
    stream: AbstractAsyncContextManager[AsyncIterable[Chunk]] = model.stream(request)
    async with stream as answer:
        return [chunk async for chunk in answer]


def text_of(chunks: Iterable[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
