"""The vendors' own clients read the same streams alike, and know our requests.

The `openai` and `anthropic` packages are dependencies of the tests alone. Their
blocking clients run in a worker thread: the asynchronous ones leave generators to the
garbage collector. Where they disagree with us, a reported fault is behind it, and no
comparison is made here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Protocol, cast

import anthropic
import msgspec
import openai
import pydantic
import pytest
import trio
from anthropic.types.message_create_params import (
    MessageCreateParamsStreaming as AnthropicParams,
)
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsStreaming as OpenAIParams,
)

from agentkernel import (
    AssistantMessage,
    BinaryBlock,
    Blob,
    Chunk,
    FinishChunk,
    ModelRequest,
    Note,
    ReasoningBlock,
    ReasoningChunk,
    ReasoningEndChunk,
    TextBlock,
    ToolCall,
    ToolCallChunk,
    ToolFailure,
    ToolResult,
    ToolResults,
    ToolSpec,
    UsageChunk,
    UserMessage,
)
from agentkernel.bridges.providers import AnthropicModel, OpenAIModel
from tests.integration.providers.server import open_server, says
from tests.integration.providers.transcripts import (
    DONE,
    block,
    call,
    chat,
    delta,
    message_end,
    message_start,
    named,
    read,
    text_block,
    text_of,
    thinking_block,
    tool_block,
    usage,
)

PNG = BinaryBlock("image/png", Blob(b"\x89PNG"), "shot.png")
EVERYTHING = ModelRequest(
    system="Be brief.",
    messages=(
        UserMessage("m1", (TextBlock("Look."), PNG)),
        AssistantMessage(
            (
                ReasoningBlock("Hm", signature="c2ln"),
                ReasoningBlock("", data="b3BhcXVl"),
                TextBlock("I look."),
                ToolCall("c1", "fs.read", {"path": "a", "deep": [1, {"b": None}]}),
                ToolCall("c2", "made up", {}),
            )
        ),
        ToolResults(
            (
                ToolResult("c1", "fs.read", (TextBlock("text"), PNG)),
                ToolResult("c2", "made up", (), ToolFailure("UNKNOWN", "No such.")),
            )
        ),
        Note("The turn was stopped."),
        UserMessage("m2", (TextBlock("Go on."),)),
    ),
    tools=(
        ToolSpec(
            "fs.read",
            "Reads.",
            {"type": "object", "properties": {"path": {"type": "string"}}},
        ),
    ),
    options={
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 50,
        "stop": ["END"],
        "tool_choice": "required",
    },
)
CHAT = [
    chat("one ", "zwei\u2028", "三 😀"),
    b"".join(
        [
            b": open\r\n\r\n",
            delta(role="assistant", content=None),
            delta(tool_calls=[call(0, "a", "f", "")]),
            delta(tool_calls=[call(0, arguments='{"x": "é')]),
            delta(tool_calls=[call(0, arguments='"}')]),
            delta(tool_calls=[call(1, "b", "g", "{}")]),
            delta("tool_calls"),
            usage(9, 4, completion_tokens_details={"reasoning_tokens": 2}),
            DONE,
        ]
    ),
    delta(content="cut by the limit") + delta("length") + usage(1, 1) + DONE,
]
MESSAGES = [
    message_start() + text_block(0, "one ", "zwei\u2028", "三 😀") + message_end(),
    b"".join(
        [
            message_start(input_tokens=9, output_tokens=1, cache_read_input_tokens=4),
            named("ping"),
            thinking_block(0, "Hm ", "😀", signature="c2lnbmVk"),
            block(1, {"type": "redacted_thinking", "data": "b3BhcXVl"}),
            text_block(2, "I call."),
            tool_block(3, "a", "f", '{"x": ', '"é"}'),
            tool_block(4, "b", "g"),
            message_end("tool_use"),
        ]
    ),
    message_start() + text_block(0, "cut") + message_end("max_tokens"),
]


def calls_of(chunks: list[Chunk]) -> list[tuple[str, str, object]]:
    return [
        (chunk.provider_id or "", chunk.name, json.loads(chunk.arguments))
        for chunk in chunks
        if isinstance(chunk, ToolCallChunk)
    ]


def reason_of(chunks: list[Chunk]) -> str:
    assert isinstance(chunks[-1], FinishChunk)
    return chunks[-1].reason


class Send(Protocol):
    """How a client sends a body that is given by its parts."""

    def __call__(self, **body: object) -> Iterable[object]: ...


class Function(msgspec.Struct):
    name: str
    arguments: str


class Call(msgspec.Struct):
    id: str
    function: Function


class ChatMessage(msgspec.Struct):
    content: str | None = None
    tool_calls: list[Call] | None = None


class Choice(msgspec.Struct):
    message: ChatMessage
    finish_reason: str


class ChatUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int


class Completion(msgspec.Struct):
    """What the `openai` client made of an answer, as far as it is compared."""

    choices: list[Choice]
    usage: ChatUsage


class Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, object] = {}


class MessageUsage(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | None = None


class Answered(msgspec.Struct):
    """What the `anthropic` client made of an answer, as far as it is compared."""

    content: list[Block]
    stop_reason: str
    usage: MessageUsage


def openai_reads(url: str) -> Completion:
    with (
        openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client,
        client.chat.completions.stream(
            model="m",
            messages=[{"role": "user", "content": "Hi"}],
            stream_options={"include_usage": True},
        ) as answer,
    ):
        try:
            whole = answer.get_final_completion().model_dump_json()
        except openai.LengthFinishReasonError as error:
            whole = error.completion.model_dump_json()
    return msgspec.json.decode(whole, type=Completion)


def anthropic_reads(url: str) -> Answered:
    with (
        anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}]
        ) as answer,
    ):
        whole = answer.get_final_message().model_dump_json()
    return msgspec.json.decode(whole, type=Answered)


def openai_sends(url: str, body: dict[str, object]) -> None:
    with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
        send = cast("Send", client.chat.completions.create)
        list(send(**body))


def anthropic_sends(url: str, body: dict[str, object]) -> None:
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        send = cast("Send", client.messages.create)
        list(send(**body))


@pytest.mark.parametrize("raw", CHAT)
@pytest.mark.parametrize("size", [7, 10_000])
async def test_the_openai_client_reads_the_same_answer(raw: bytes, size: int) -> None:
    """Text, calls, tokens and reason, from the same bytes."""
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with open_server(says(*parts)) as server:
        ours = await read(OpenAIModel("m", base_url=server.url))
        theirs = await trio.to_thread.run_sync(openai_reads, server.url)
    choice = theirs.choices[0]
    assert text_of(ours) == (choice.message.content or "")
    assert calls_of(ours) == [
        (c.id, c.function.name, json.loads(c.function.arguments))
        for c in choice.message.tool_calls or ()
    ]
    counted = [c.usage for c in ours if isinstance(c, UsageChunk)][-1]
    assert (counted.input_tokens, counted.output_tokens) == (
        theirs.usage.prompt_tokens,
        theirs.usage.completion_tokens,
    )
    reasons = {"stop": "stop", "tool_calls": "tool-calls", "length": "max-tokens"}
    assert reason_of(ours) == reasons[choice.finish_reason]


@pytest.mark.parametrize("raw", MESSAGES)
@pytest.mark.parametrize("size", [7, 10_000])
async def test_the_anthropic_client_reads_the_same_answer(
    raw: bytes, size: int
) -> None:
    """Reasoning with its seal, text, calls, tokens and reason, from the same bytes."""
    parts = [raw[at : at + size] for at in range(0, len(raw), size)]
    async with open_server(says(*parts)) as server:
        ours = await read(AnthropicModel("m", base_url=server.url))
        theirs = await trio.to_thread.run_sync(anthropic_reads, server.url)
    said = [b.text for b in theirs.content if b.type == "text"]
    assert text_of(ours) == "".join(said)
    assert calls_of(ours) == [
        (b.id, b.name, b.input) for b in theirs.content if b.type == "tool_use"
    ]
    thought = "".join(c.text for c in ours if isinstance(c, ReasoningChunk))
    assert thought == "".join(
        b.thinking for b in theirs.content if b.type == "thinking"
    )
    seals = [c.signature or c.data for c in ours if isinstance(c, ReasoningEndChunk)]
    assert seals == [
        b.signature if b.type == "thinking" else b.data
        for b in theirs.content
        if b.type in {"thinking", "redacted_thinking"}
    ]
    counted = [c.usage for c in ours if isinstance(c, UsageChunk)][-1]
    assert (
        counted.input_tokens,
        counted.output_tokens,
        counted.cache_read_tokens,
    ) == (
        theirs.usage.input_tokens,
        theirs.usage.output_tokens,
        theirs.usage.cache_read_input_tokens,
    )
    reasons = {"end_turn": "stop", "tool_use": "tool-calls", "max_tokens": "max-tokens"}
    assert reason_of(ours) == reasons[theirs.stop_reason]


async def test_a_chat_request_is_one_that_the_openai_client_could_send() -> None:
    """Its types accept the body, and it sends the same bytes of JSON for it."""
    async with open_server(says(CHAT[0])) as server:
        await read(OpenAIModel("m", base_url=server.url, api_key="k"), EVERYTHING)
        body = server.requests[0].parsed
        pydantic.TypeAdapter(OpenAIParams).validate_python(body)
        await trio.to_thread.run_sync(openai_sends, server.url, body)
    ours, theirs = server.requests
    assert theirs.parsed == body
    assert ours.target == theirs.target
    assert ours.headers["authorization"] == theirs.headers["authorization"]


async def test_a_messages_request_is_one_that_the_anthropic_client_could_send() -> None:
    """Its types accept the body, and it sends the same bytes of JSON for it."""
    # The client no longer names these two; servers know them still.
    gone = {"temperature", "top_p"}
    options = {k: v for k, v in EVERYTHING.options.items() if k not in gone}
    request = msgspec.structs.replace(EVERYTHING, options=options)
    async with open_server(says(MESSAGES[0])) as server:
        model = AnthropicModel("m", base_url=server.url, version="2026-10-21")
        await read(model, request)
        body = server.requests[0].parsed
        pydantic.TypeAdapter(AnthropicParams).validate_python(body)
        await trio.to_thread.run_sync(anthropic_sends, server.url, body)
    ours, theirs = server.requests
    assert theirs.parsed == body
    assert ours.target == theirs.target
    name = "anthropic-version"
    assert ours.headers[name] == theirs.headers[name]
