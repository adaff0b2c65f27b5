"""Events of both protocols become chunks: plain bytes in, plain values out."""

from __future__ import annotations

from typing import Protocol

import pytest

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
)
from agentkernel.bridges.providers.answer import Decoder
from agentkernel.bridges.providers.anthropic_stream import AnthropicDecoder
from agentkernel.bridges.providers.failures import Secrets
from agentkernel.bridges.providers.openai_stream import OpenAIDecoder
from agentkernel.bridges.providers.sse import SseDecoder
from tests.integration.providers.transcripts import (
    DONE,
    block,
    call,
    chat,
    delta,
    event,
    message_delta,
    message_end,
    message_start,
    messages,
    named,
    text_block,
    text_of,
    thinking_block,
    tool_block,
    usage,
)

HIDDEN = Secrets(("sk-secret",))


class Reader(Protocol):
    """Reads the parts of one stream."""

    def __call__(self, *parts: bytes) -> list[Chunk]: ...


def run(decoder: Decoder, *parts: bytes) -> list[Chunk]:
    sse = SseDecoder()
    chunks: list[Chunk] = []
    for part in parts:
        for item in sse.feed(part):
            chunks += decoder.feed(item)[1]
            if decoder.done:
                return [*chunks, *decoder.end()]
    return [*chunks, *decoder.end()]


def openai(*parts: bytes) -> list[Chunk]:
    return run(OpenAIDecoder({}, HIDDEN), *parts)


def anthropic(*parts: bytes) -> list[Chunk]:
    return run(AnthropicDecoder({}, HIDDEN), *parts)


def failure(fn: Reader, *parts: bytes) -> ModelError:
    with pytest.raises(ModelError) as caught:
        fn(*parts)
    return caught.value


RICH_CHAT = b"".join(
    [
        b"\xef\xbb\xbf: open\n\n",
        event({"choices": [], "prompt_filter_results": []}),
        delta(role="assistant", content=""),
        delta(reasoning_content="Hm 😀"),
        delta(content="Zwei\u2028Wörter "),
        delta(content="日本"),
        delta(tool_calls=[call(0, "a", "f", "")]),
        b": ping\r\n\r\n",
        delta(tool_calls=[call(0, arguments='{"x": "é')]),
        delta(tool_calls=[call(0, arguments='"}')]),
        delta("tool_calls"),
        usage(7, 3, prompt_tokens_details={"cached_tokens": 2}),
        DONE,
    ]
)
RICH_MESSAGE = b"".join(
    [
        message_start(input_tokens=9, output_tokens=1, cache_read_input_tokens=4),
        named("ping"),
        thinking_block(0, "Hm ", "😀", signature="c2lnbmVk"),
        block(1, {"type": "redacted_thinking", "data": "b3BhcXVl"}),
        text_block(2, "Zwei\u2028Wörter ", "日本"),
        tool_block(3, "a", "f", "", '{"x": ', '"é"}'),
        tool_block(4, "b", "g"),
        message_end("tool_use"),
    ]
)


@pytest.mark.case("SSE-01", "SSE-06", "PROV-04")
@pytest.mark.parametrize(
    ("read", "raw"), [(openai, RICH_CHAT), (anthropic, RICH_MESSAGE)]
)
def test_an_answer_is_the_same_however_its_bytes_are_cut(
    read: Reader, raw: bytes
) -> None:
    """SSE-01, SSE-06: the network cuts where it likes."""
    whole = read(raw)
    assert text_of(whole) == "Zwei\u2028Wörter 日本"
    for at in range(len(raw)):
        assert read(raw[:at], raw[at:]) == whole
    assert read(*(raw[at : at + 1] for at in range(len(raw)))) == whole


def test_a_chat_answer_becomes_chunks_in_order() -> None:
    """Reasoning, text and calls keep their order, and each block has its end."""
    assert openai(RICH_CHAT) == [
        ReasoningChunk("Hm 😀"),
        ReasoningEndChunk(),
        TextChunk("Zwei\u2028Wörter "),
        TextChunk("日本"),
        UsageChunk(Usage(7, 3, 2)),
        ToolCallChunk("f", '{"x": "é"}', "a"),
        FinishChunk("tool-calls"),
    ]


def test_a_messages_answer_becomes_chunks_in_order() -> None:
    """Sealed reasoning keeps its seal, and blocks keep their order."""
    first = Usage(9, 1, 4)
    assert anthropic(RICH_MESSAGE) == [
        UsageChunk(first),
        ReasoningChunk("Hm "),
        ReasoningChunk("😀"),
        ReasoningEndChunk(signature="c2lnbmVk"),
        ReasoningEndChunk(data="b3BhcXVl"),
        TextChunk("Zwei\u2028Wörter "),
        TextChunk("日本"),
        ToolCallChunk("f", '{"x": "é"}', "a"),
        ToolCallChunk("g", "{}", "b"),
        UsageChunk(Usage(9, 3, 4)),
        FinishChunk("tool-calls"),
    ]


@pytest.mark.case("PROV-04")
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_chunks_without_choices_do_no_harm_and_usage_is_kept(place: int) -> None:
    """PROV-04: filters and gateways send chunks without choices anywhere."""
    parts = [delta(content="a"), delta(content="b"), delta("stop"), usage(5, 2)]
    parts.insert(place, event({"choices": []}))
    parts.insert(place, event({"choices": None, "usage": None}))
    assert openai(*parts, DONE) == [
        TextChunk("a"),
        TextChunk("b"),
        UsageChunk(Usage(5, 2)),
        FinishChunk("stop"),
    ]


@pytest.mark.case("PROV-04")
def test_an_answer_of_nothing_is_an_error_of_its_own() -> None:
    """PROV-04: nothing is neither success nor an index error."""
    for raw in (DONE, b": ping\n\n" + DONE, event({"choices": []}) + DONE):
        error = failure(openai, raw)
        assert (error.code, error.retryable) == ("empty", True)
    assert failure(anthropic, message_start() + named("message_stop")).code == "empty"


@pytest.mark.case("PROV-07")
@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (openai, b""),
        (openai, delta(content="half")),
        (openai, delta(content="half") + DONE),
        (openai, delta(content="half") + usage(1, 1) + DONE),
        (openai, delta(tool_calls=[call(0, "a", "f", "{}")])),
        (openai, delta(content="half") + delta("stop")[:-1]),
        (anthropic, b""),
        (anthropic, message_start() + text_block(0, "half", stop=False)),
        (anthropic, message_start() + text_block(0, "half")),
        (anthropic, message_start() + text_block(0, "x") + named("message_stop")),
        (anthropic, message_start() + text_block(0, "half") + message_delta()[:-1]),
    ],
)
def test_an_answer_without_a_reason_was_cut(read: Reader, raw: bytes) -> None:
    """PROV-07: half an answer that passes for a whole one stops an agent half way."""
    error = failure(read, raw)
    assert (error.code, error.retryable) == ("truncated", True)


@pytest.mark.case("PROV-07")
def test_a_reason_is_enough_for_an_end() -> None:
    """PROV-07: not every server says [DONE]."""
    assert openai(delta(content="a") + delta("stop"))[-1] == FinishChunk("stop")
    raw = message_start() + text_block(0, "a") + message_delta()
    assert anthropic(raw)[-1] == FinishChunk("stop")


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("stop", "stop"),
        ("length", "max-tokens"),
        ("content_filter", "content-filter"),
        ("eos_of_some_server", "stop"),
    ],
)
def test_chat_reasons_are_translated(reason: str, finish: FinishReason) -> None:
    """The kernel knows five reasons; servers know more."""
    assert openai(delta(content="a"), delta(reason))[-1] == FinishChunk(finish)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("pause_turn", "stop"),
        ("max_tokens", "max-tokens"),
        ("model_context_window_exceeded", "max-tokens"),
        ("refusal", "refusal"),
        ("some_day_another", "stop"),
    ],
)
def test_messages_reasons_are_translated(reason: str, finish: FinishReason) -> None:
    """The kernel knows five reasons; servers know more."""
    assert anthropic(messages("a", reason=reason))[-1] == FinishChunk(finish)


def test_a_refusal_is_text_with_a_reason_of_its_own() -> None:
    """What the model said about its refusal must be seen."""
    chunks = openai(delta(refusal="I "), delta(refusal="will not."), delta("stop"))
    assert text_of(chunks) == "I will not."
    assert chunks[-1] == FinishChunk("refusal")


@pytest.mark.case("TOOL-03")
@pytest.mark.parametrize("reason", ["length", "tool_calls", "stop"])
def test_a_call_with_cut_arguments_is_truncated_whatever_the_reason(
    reason: str,
) -> None:
    """TOOL-03: its whole sibling stays whole."""
    chunks = openai(
        delta(tool_calls=[call(0, "a", "f", "{}"), call(1, "b", "g", '{"p": "ha')]),
        delta(reason),
    )
    assert chunks[:2] == [
        ToolCallChunk("f", "{}", "a"),
        ToolCallChunk("g", '{"p": "ha', "b", truncated=True),
    ]
    raw = tool_block(0, "a", "f", "{}") + tool_block(1, "b", "g", '{"p": "ha')
    assert (
        anthropic(message_start() + raw + message_delta("max_tokens"))[1:3]
        == (chunks[:2])
    )


@pytest.mark.case("PART-05")
def test_reasoning_that_did_not_stop_has_no_seal() -> None:
    """PART-05: half a signature, replayed, is refused for the rest of a session."""
    cut = thinking_block(0, "Hm", signature="half", stop=False)
    chunks = anthropic(message_start() + cut + message_delta("max_tokens"))
    said = [chunk for chunk in chunks if not isinstance(chunk, UsageChunk)]
    assert said[:2] == [ReasoningChunk("Hm"), ReasoningEndChunk()]


@pytest.mark.case("STORE-09")
def test_half_a_surrogate_pair_is_joined_or_replaced() -> None:
    """STORE-09: some servers escape emoji and cut them in two."""
    raw = rb'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}' + b"\n\n"
    tail = rb'data: {"choices":[{"delta":{"content":"\ude00b\ud83d"}}]}' + b"\n\n"
    assert text_of(openai(raw, tail, delta("stop"))) == "a😀b\ufffd"
    piece = rb'data: {"type":"content_block_delta","index":0,"delta":{"type":'
    first = piece + rb'"text_delta","text":"a\ud83d"}}' + b"\n\n"
    second = piece + rb'"text_delta","text":"\ude00"}}' + b"\n\n"
    start = named(
        "content_block_start", index=0, content_block={"type": "text", "text": ""}
    )
    stop = named("content_block_stop", index=0)
    assert text_of(anthropic(start, first, second, stop, message_delta())) == "a😀"


def test_an_escaped_half_pair_in_arguments_stays_json() -> None:
    """The arguments are JSON in JSON: only the outer escapes are the stream's."""
    raw = event(
        {"choices": [{"delta": {"tool_calls": [call(0, "a", "f", '{"x":"\\ud83d"}')]}}]}
    )
    assert openai(raw, delta("tool_calls"))[0] == ToolCallChunk(
        "f", '{"x":"\\ud83d"}', "a"
    )


ERROR = {"message": "too busy, sk-secret", "type": "overloaded_error"}


@pytest.mark.case("PROV-05")
@pytest.mark.parametrize(
    ("payload", "code", "retryable"),
    [
        (event({"error": ERROR}), "overloaded", True),
        (event({"choices": [], "error": ERROR}), "overloaded", True),
        (event({"error": ERROR}, "error"), "overloaded", True),
        (event({"type": "error", "error": ERROR}), "overloaded", True),
        (event({"type": "error", "error": ERROR}, "error"), "overloaded", True),
        (b"error: " + event({"code": 503, "message": "x"})[6:], "overloaded", True),
        (b"event: error\n\n", "server", True),
        (event({"error": "something broke"}), "server", True),
        (event({"error": {"code": 429, "message": "x"}}), "rate-limit", True),
        (event({"error": {"code": "402", "message": "x"}}), "auth", False),
        (event({"error": {"code": "insufficient_quota"}}), "rate-limit", False),
        (event({"error": {"type": "invalid_request_error"}}), "invalid-request", False),
        (event({"error": {"type": "authentication_error"}}), "auth", False),
        (event({"error": {"type": "not_found_error"}}), "invalid-request", False),
    ],
)
@pytest.mark.parametrize("after_text", [False, True])
def test_an_error_inside_a_stream_is_an_error(
    payload: bytes, code: str, *, retryable: bool, after_text: bool
) -> None:
    """PROV-05: an error behind a status 200 must not pass for an empty answer."""
    said = delta(content="a") if after_text else b""
    error = failure(openai, said, payload)
    assert (error.code, error.retryable) == (code, retryable)
    assert "sk-secret" not in str(error)
    said = message_start() + text_block(0, "a") if after_text else b""
    error = failure(anthropic, said, payload)
    assert (error.code, error.retryable) == (code, retryable)


@pytest.mark.case("PROV-05")
def test_the_providers_own_words_are_in_the_error() -> None:
    """PROV-05: people must see what the provider said."""
    error = failure(openai, event({"error": ERROR}))
    assert "too busy, [hidden]" in str(error)
    chosen = {"index": 0, "delta": {}, "error": {"code": 502, "message": "upstream"}}
    error = failure(openai, event({"choices": [{**chosen, "finish_reason": "error"}]}))
    assert (error.code, error.status) == ("server", 502)
    assert "upstream" in str(error)
    assert failure(openai, delta("insufficient_system_resource")).code == "overloaded"


@pytest.mark.parametrize(
    "data", [b"{", b"[1]", b'"x"', b"nonsense", b'{"choices": 7}', b"[" * 200_000]
)
def test_an_event_that_cannot_be_read_is_an_error_without_its_text(data: bytes) -> None:
    """A page of a proxy, say, must not pass for silence."""
    error = failure(openai, b"data: " + data + b"\n\n", DONE)
    assert (error.code, error.retryable) == ("server", True)
    assert "nonsense" not in str(error)


@pytest.mark.case("SSE-04")
def test_signs_of_life_are_no_progress() -> None:
    """SSE-04, PROV-06: a keep-alive must not reset the clock of silence."""
    sse = SseDecoder()
    decoder = OpenAIDecoder({}, HIDDEN)
    life = b"event: ping\n\ndata:\n\n" + event({"choices": []})
    assert [decoder.feed(item) for item in sse.feed(life)] == [(False, [])] * 3
    other = AnthropicDecoder({}, HIDDEN)
    life = b"event: ping\n\n" + named("ping") + event({"type": "ping"})
    assert [other.feed(item) for item in sse.feed(life)] == [(False, [])] * 3


@pytest.mark.case("PROV-05")
def test_an_event_that_calls_itself_an_error_is_one() -> None:
    """PROV-05: some servers put the error's fields where the answer's would be."""
    said = event({"object": "error", "message": "full", "type": "overloaded_error"})
    assert failure(openai, said, DONE).code == "overloaded"


def test_calls_behind_another_reason_are_an_end_for_tool_calls() -> None:
    """Some servers say stop when they mean that tools are to be called."""
    chunks = openai(delta("stop", tool_calls=[call(0, "a", "f", "{}")]), DONE)
    assert chunks[-1] == FinishChunk("tool-calls")


def test_arguments_that_come_with_the_head_of_a_block_are_kept() -> None:
    """Some servers do not stream them."""
    whole = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}}
    chunks = anthropic(message_start(), block(0, whole), message_delta("tool_use"))
    assert chunks[1] == ToolCallChunk("f", '{"x": 1}', "a")


def test_content_in_parts_and_other_choices_are_read() -> None:
    """Some servers send a list of parts; only the first choice is the answer."""
    parts = [{"type": "text", "text": "a"}, {"type": "reference", "ids": [1]}]
    second = event({"choices": [{"index": 1, "delta": {"content": "no"}}]})
    assert text_of(openai(delta(content=parts), second, delta("stop"))) == "a"


def test_names_on_the_wire_are_given_back_as_the_tools_own() -> None:
    """A tool called fs.read goes out under a name that providers accept."""
    decoder = OpenAIDecoder({"fs_read": "fs.read"}, HIDDEN)
    chunks = run(decoder, delta("tool_calls", tool_calls=[call(0, "a", "fs_read")]))
    assert chunks[0] == ToolCallChunk("fs.read", "{}", "a")
    assert text_of(openai(chat("a", "b"))) == "ab"
