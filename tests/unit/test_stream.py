"""From chunks to a message: what was shown, what was called, what was wrong with it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

import agentkernel as ak
from agentkernel._loop.stream import Answer, parse_arguments
from agentkernel._session.repair import merge_chunks


def fed(*chunks: ak.Chunk) -> Answer:
    answer = Answer()
    for chunk in chunks:
        answer.add(chunk)
    return answer


def test_chunks_of_one_kind_form_one_block_and_calls_keep_their_place() -> None:
    """The message says it in the order in which the model did."""
    message = fed(
        ak.ReasoningChunk("hm"),
        ak.ReasoningChunk("m"),
        ak.ReasoningEndChunk(signature="sig"),
        ak.TextChunk("a"),
        ak.TextChunk("b"),
        ak.ToolCallChunk("t", '{"n": 1}', provider_id="x"),
        ak.TextChunk("c"),
        ak.FinishChunk("tool-calls"),
    ).message(2, 3)
    assert message.content == (
        ak.ReasoningBlock("hmm", signature="sig"),
        ak.TextBlock("ab"),
        ak.ToolCall("call_2_3_1", "t", {"n": 1}, provider_id="x"),
        ak.TextBlock("c"),
    )


@pytest.mark.clause("T6")
def test_a_cut_message_has_no_calls() -> None:
    """Whichever of them had come in whole."""
    answer = fed(
        ak.TextChunk("a"), ak.ToolCallChunk("t", "{}"), ak.FinishChunk("max-tokens")
    )
    assert answer.message(1, 1).content == (ak.TextBlock("a"),)


def test_what_is_shown_is_clean_and_never_empty() -> None:
    """Observers, log and message hold the same string."""
    assert Answer().add(ak.TextChunk("")) is None
    assert not Answer().delivered
    answer = Answer()
    assert answer.add(ak.TextChunk("half \ud83d")) == ak.TextChunk("half \ufffd")
    assert answer.delivered
    answer.add(ak.FinishChunk("stop"))
    assert answer.message(1, 1).text == "half \ufffd"


@pytest.mark.parametrize(
    "chunk",
    [
        ak.TextChunk("x"),
        ak.ReasoningEndChunk(),
        ak.ToolCallChunk("t", "{}"),
        ak.FinishChunk("stop"),
    ],
)
def test_nothing_but_usage_follows_a_finish(chunk: ak.Chunk) -> None:
    """A provider that goes on has lost count: the attempt has failed."""
    answer = fed(ak.TextChunk("a"), ak.FinishChunk("stop"))
    answer.add(ak.UsageChunk(ak.Usage(1, 2)))
    with pytest.raises(ak.ModelError, match="went on"):
        answer.add(chunk)


def test_later_usage_replaces_what_it_knows_and_keeps_the_rest() -> None:
    """Unknown stays unknown, and is never zero."""
    answer = fed(
        ak.UsageChunk(ak.Usage(input_tokens=10)),
        ak.UsageChunk(ak.Usage(output_tokens=1)),
        ak.UsageChunk(ak.Usage(output_tokens=7)),
    )
    assert answer.usage == ak.Usage(input_tokens=10, output_tokens=7)
    assert Answer().usage is None


@pytest.mark.clause("T3d")
@pytest.mark.parametrize(
    "text",
    [
        '{"a":',
        "null",
        "[1]",
        '"s"',
        "1",
        "x" * 300_000,
        '{"a": NaN}',
        '{"a": -Infinity}',
        '{"a": 1e999}',
        "[" * 100_000,
        '{"a":1}{"b":2}',
        "{'a': 1}",
    ],
)
def test_arguments_that_are_no_object_are_never_mended(text: str) -> None:
    """The problem is said within bounds; what goes on is an empty object."""
    arguments, problem = parse_arguments(text)
    assert arguments == {}
    assert problem is not None
    assert len(problem) < 600


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_no_arguments_at_all_are_an_empty_object(text: str) -> None:
    """Some providers send nothing for a tool without parameters."""
    assert parse_arguments(text) == ({}, None)


def test_a_half_pair_in_arguments_is_legal_json_and_cleaned() -> None:
    """The emoji that was cut by a tokenizer does not cost the call."""
    assert parse_arguments('{"a": "\\ud83d"}') == ({"a": "\ufffd"}, None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_every_json_object_comes_through(value: dict[str, object]) -> None:
    """Whatever the model wrote, as long as it is one."""
    arguments, problem = parse_arguments(json.dumps(value))
    assert problem is None
    assert json.loads(json.dumps(arguments)) == value


shown = st.one_of(
    st.builds(ak.TextChunk, st.text(max_size=3)),
    st.builds(ak.ReasoningChunk, st.text(max_size=3)),
    st.builds(ak.ReasoningEndChunk, st.none() | st.text(max_size=3), st.none()),
)


@pytest.mark.clause("T4a")
@given(st.lists(shown))
def test_the_text_of_a_message_is_what_observers_saw(chunks: list[ak.Chunk]) -> None:
    """Cut or complete, neither more nor less, in the same order."""
    answer = Answer()
    seen = [s for chunk in chunks if (s := answer.add(chunk)) is not None]
    text = "".join(c.text for c in seen if isinstance(c, ak.TextChunk))
    thought = "".join(c.text for c in seen if isinstance(c, ak.ReasoningChunk))
    for message in (answer.message(1, 1), merge_chunks(seen)):
        assert message.text == text
        reasoning = [
            b.text for b in message.content if isinstance(b, ak.ReasoningBlock)
        ]
        assert "".join(reasoning) == thought
        assert all(b.text for b in message.content if isinstance(b, ak.TextBlock))
    assert merge_chunks(seen).content == answer.message(1, 1).content
