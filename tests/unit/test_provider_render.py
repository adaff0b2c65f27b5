"""Histories become request bodies that providers accept: plain values."""

from __future__ import annotations

import base64
import json
from typing import TypeAlias

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from agentkernel import (
    AssistantMessage,
    BinaryBlock,
    Blob,
    JsonObject,
    JsonValue,
    Message,
    ModelError,
    ModelRequest,
    Note,
    ReasoningBlock,
    TextBlock,
    ToolCall,
    ToolFailure,
    ToolResult,
    ToolResults,
    ToolSpec,
    UserMessage,
)
from agentkernel.bridges.providers.anthropic_render import render_anthropic
from agentkernel.bridges.providers.openai_render import OpenAIDialect, render_openai
from agentkernel.bridges.providers.wire import encode, tool_names

Wire: TypeAlias = list[dict[str, object]]

PNG = BinaryBlock("image/png", Blob(b"\x89PNG"), "shot.png")
ZIP = BinaryBlock("application/zip", Blob(b"PK"), "all.zip")


def user(text: str, *more: TextBlock | BinaryBlock) -> UserMessage:
    return UserMessage("m", (TextBlock(text), *more))


def said(*content: str | ReasoningBlock | ToolCall) -> AssistantMessage:
    return AssistantMessage(
        tuple(TextBlock(c) if isinstance(c, str) else c for c in content)
    )


def call(call_id: str, name: str = "f", **arguments: JsonValue) -> ToolCall:
    return ToolCall(call_id, name, arguments, provider_id="x")


def result(call_id: str, *content: str | BinaryBlock, error: str = "") -> ToolResult:
    return ToolResult(
        call_id,
        "f",
        tuple(TextBlock(c) if isinstance(c, str) else c for c in content),
        ToolFailure("FAILED", error) if error else None,
    )


def ask(*messages: Message, options: JsonObject | None = None) -> ModelRequest:
    return ModelRequest(system="", messages=messages, options=options or {})


def body_of(body: JsonObject) -> dict[str, object]:
    return msgspec.json.decode(encode(body), type=dict[str, object])


def chat(*messages: Message, dialect: OpenAIDialect | None = None) -> Wire:
    body = render_openai(ask(*messages), "m", dialect or OpenAIDialect())
    return msgspec.convert(body_of(body)["messages"], Wire)


def claude(*messages: Message) -> Wire:
    body = render_anthropic(ask(*messages), "m", max_tokens=100)
    return msgspec.convert(body_of(body)["messages"], Wire)


def text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


@pytest.mark.case("PAIR-04", "PAIR-08", "PAIR-09")
@pytest.mark.clause("T2c")
def test_results_stand_behind_their_message_in_call_order_under_our_ids() -> None:
    """PAIR-04, PAIR-08: one block, then what else was said; PAIR-09: unique ids."""
    history = (
        user("go"),
        said("I look.", call("c1", path="a"), call("c2")),
        ToolResults((result("c1", "one"), result("c2", "two", error="no"))),
        Note("The turn was stopped."),
        user("steer"),
        user("more"),
    )
    wire = chat(*history)
    assert [m["role"] for m in wire] == [
        "user", "assistant", "tool", "tool", "user", "user", "user",
    ]  # fmt: skip
    assert wire[1]["tool_calls"] == [
        {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": '{"path":"a"}'},
        },
        {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    assert [(m["tool_call_id"], m["content"]) for m in wire[2:4]] == [
        ("c1", "one"),
        ("c2", "Error (FAILED): no\ntwo"),
    ]
    assert wire[4]["content"] == "[Note: The turn was stopped.]"
    assert claude(*history) == [
        {"role": "user", "content": [text("go")]},
        {
            "role": "assistant",
            "content": [
                text("I look."),
                {"type": "tool_use", "id": "c1", "name": "f", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [text("one")]},
                {
                    "type": "tool_result",
                    "tool_use_id": "c2",
                    "content": [text("Error (FAILED): no\ntwo")],
                    "is_error": True,
                },
                text("[Note: The turn was stopped.]"),
                text("steer"),
                text("more"),
            ],
        },
    ]


@pytest.mark.clause("T4b")
@pytest.mark.case("PART-02", "PART-03")
@pytest.mark.parametrize(
    "content", [(), ("",), ("\n\n",), (ReasoningBlock("Hm"),), (" ", "\n")]
)
def test_an_answer_that_would_be_empty_is_left_out(
    content: tuple[str | ReasoningBlock, ...],
) -> None:
    """PART-02, PART-03: an empty message is refused for the rest of a session."""
    history = (user("a"), said(*content), user("b"))
    assert [m["content"] for m in chat(*history)] == ["a", "b"]
    assert claude(*history) == [{"role": "user", "content": [text("a"), text("b")]}]


@pytest.mark.case("PART-03")
def test_blank_text_beside_a_call_is_left_out_and_the_call_kept() -> None:
    """PART-03: the call has a result that must have its call."""
    history = (user("a"), said("\n\n", call("c1")), ToolResults((result("c1"),)))
    wire = chat(*history)
    assert wire[1]["content"] is None
    assert wire[2]["content"] == "(no output)"
    claude_wire = claude(*history)
    assert [b["type"] for b in blocks(claude_wire[1])] == ["tool_use"]
    assert blocks(claude_wire[2])[0]["content"] == [text("(no output)")]


def blocks(message: dict[str, object]) -> Wire:
    return msgspec.convert(message["content"], Wire)


@pytest.mark.case("PART-05")
def test_only_sealed_reasoning_goes_back_and_byte_for_byte() -> None:
    """PART-05: half a block is refused, and so is a changed one."""
    sealed = ReasoningBlock(" Hm\n é ", signature="c2ln")
    message = said(
        ReasoningBlock("unsealed"),
        sealed,
        ReasoningBlock("", data="b3BhcXVl"),
        "Yes.",
        call("c1"),
        ReasoningBlock("cut behind"),
    )
    history = (user("a"), message, ToolResults((result("c1", "x"),)))
    assert blocks(claude(*history)[1])[:2] == [
        {"type": "thinking", "thinking": " Hm\n é ", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
    ]
    assert len(blocks(claude(*history)[1])) == 4
    assert "reasoning_content" not in chat(*history)[1]
    replayed = chat(*history, dialect=OpenAIDialect(replay_reasoning=True))[1]
    assert replayed["reasoning_content"] == "unsealed Hm\n é cut behind"


def test_reasoning_is_never_the_last_thing_said() -> None:
    """The provider refuses a message that ends with reasoning."""
    sealed = ReasoningBlock("Hm", signature="c2ln")
    assert blocks(claude(user("a"), said("Yes.", sealed, " "), user("b"))[1]) == [
        text("Yes.")
    ]


def test_a_history_that_begins_with_an_answer_is_given_a_user() -> None:
    """The provider wants a user first; a fork or a compaction may begin otherwise."""
    wire = claude(said("Yes."), user("b"))
    assert [m["role"] for m in wire] == ["user", "assistant", "user"]


def test_an_empty_user_message_still_says_that_it_is_there() -> None:
    """A user's turn must not vanish: the answer would answer nobody."""
    assert chat(user(" "))[0]["content"] == "(empty message)"
    assert chat(UserMessage("m", ()))[0]["content"] == "(empty message)"
    assert claude(user(""))[0]["content"] == [text("(empty message)")]


@pytest.mark.case("STORE-08", "STORE-09")
def test_no_nul_and_no_half_pair_goes_out() -> None:
    """STORE-08, STORE-09: no server may choke on what a tool printed."""
    bad = "a\0b\ud83d"
    history = (
        user(bad),
        said(bad, call("c\0", bad, **{bad: [bad]})),
        ToolResults((result("c\0", bad, error=bad),)),
        Note(bad),
    )
    tools = (ToolSpec("f\0", bad, {"type": "object", "description": bad}),)
    request = ModelRequest(system=bad, messages=history, tools=tools)
    for raw in (
        encode(render_openai(request, "m", OpenAIDialect())),
        encode(render_anthropic(request, "m", max_tokens=9)),
    ):
        assert b"u0000" not in raw
        assert "\ufffd" in raw.decode()
        assert json.loads(raw)


@pytest.mark.parametrize("call_id", ["a b", "x" * 41, "", "é", "ünï", "a\0"])
def test_an_id_that_no_provider_accepts_is_mapped_alike_on_both_sides(
    call_id: str,
) -> None:
    """A store of somebody else may have made ids of another form."""
    history = (user("a"), said(call(call_id)), ToolResults((result(call_id, "x"),)))
    wire = claude(*history)
    sent = blocks(wire[1])[0]["id"]
    assert isinstance(sent, str)
    assert 0 < len(sent) <= 40
    assert sent.replace("_", "").isalnum()
    assert sent.isascii()
    assert blocks(wire[2])[0]["tool_use_id"] == sent
    assert chat(*history)[2]["tool_call_id"] == sent


@pytest.mark.case("TOOL-01")
def test_a_name_that_the_model_made_up_goes_out_in_a_form_that_is_accepted() -> None:
    """TOOL-01: the name stays in the history; it must not be refused for ever."""
    history = (user("a"), said(call("c1", "read file!")))
    assert blocks(claude(*history)[1])[0]["name"] == "read_file_"
    assert blocks(claude(user("a"), said(call("c1", "")))[1])[0]["name"] == "unnamed"


def test_two_tools_of_one_wire_name_are_refused() -> None:
    """Else a call could reach the wrong one."""
    tools = (ToolSpec("fs.read", "", {}), ToolSpec("fs_read", "", {}))
    with pytest.raises(ModelError, match=r"fs\.read.*fs_read"):
        tool_names(tools)
    assert tool_names(tools[:1]) == {"fs_read": "fs.read"}


def test_an_error_is_told_once() -> None:
    """Where a tool's text holds the message already, it is not said again."""
    told = result("c1", "no such file: a", error="no such file")
    wire = chat(user("a"), said(call("c1")), ToolResults((told,)))
    assert wire[2]["content"] == "Error (FAILED): no such file: a"


def test_files_go_out_where_they_can_be_shown_and_are_named_where_not() -> None:
    """A model that is shown nothing must at least be told what there is."""
    history = (
        user("look", PNG, ZIP),
        said(call("c1")),
        ToolResults((result("c1", "done", PNG),)),
    )
    shown = base64.b64encode(b"\x89PNG").decode()
    image = {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{shown}"},
    }
    absent = text("[Attachment all.zip (application/zip, 2 bytes): cannot be shown]")
    wire = chat(*history)
    assert wire[0]["content"] == [text("look"), image, absent]
    assert wire[2]["content"] == (
        "done\n[Attachment shot.png (image/png, 4 bytes): follows below]"
    )
    assert wire[3] == {"role": "user", "content": [image]}
    source = {"type": "base64", "media_type": "image/png", "data": shown}
    picture = {"type": "image", "source": source}
    other = claude(*history)
    assert blocks(other[0]) == [text("look"), picture, absent]
    assert blocks(other[2])[0]["content"] == [text("done"), picture]


def test_options_go_out_under_each_providers_own_names() -> None:
    """One vocabulary for the application, each provider's for itself."""
    options: JsonObject = {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 50,
        "stop": ["END"],
        "tool_choice": {"name": "fs.read"},
        "extra_body": {"seed": 7},
    }
    tools = (ToolSpec("fs.read", "Reads.", {"type": "object"}),)
    request = ModelRequest("Be brief.", (user("a"),), tools, options=options)
    assert body_of(render_openai(request, "gpt", OpenAIDialect())) == {
        "model": "gpt",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "fs_read",
                    "description": "Reads.",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "temperature": 0.5,
        "max_tokens": 50,
        "top_p": 0.9,
        "stop": ["END"],
        "tool_choice": {"type": "function", "function": {"name": "fs_read"}},
        "seed": 7,
    }
    assert body_of(render_anthropic(request, "cl", max_tokens=9)) == {
        "model": "cl",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": [text("a")]}],
        "stream": True,
        "system": "Be brief.",
        "tools": [
            {
                "name": "fs_read",
                "description": "Reads.",
                "input_schema": {"type": "object"},
            }
        ],
        "temperature": 0.5,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "tool_choice": {"type": "tool", "name": "fs_read"},
        "seed": 7,
    }


@pytest.mark.parametrize(
    ("choice", "chat_choice", "claude_choice"),
    [
        ("auto", "auto", {"type": "auto"}),
        ("none", "none", {"type": "none"}),
        ("required", "required", {"type": "any"}),
    ],
)
def test_a_tool_choice_is_translated(
    choice: str, chat_choice: str, claude_choice: dict[str, str]
) -> None:
    """The two protocols call them differently."""
    request = ask(user("a"), options={"tool_choice": choice, "stop": "END"})
    assert render_openai(request, "m", OpenAIDialect())["tool_choice"] == chat_choice
    body = render_anthropic(request, "m", max_tokens=9)
    assert body["tool_choice"] == claude_choice
    assert body["stop_sequences"] == ["END"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"temprature": 1}, "temprature.*extra_body"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"tool_choice": "perhaps"}, "perhaps"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"stream": False}}, "stream"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(
    options: JsonObject, match: str
) -> None:
    """A misspelt option that is dropped without a word costs hours."""
    request = ask(user("a"), options=options)
    with pytest.raises(ModelError, match=match) as caught:
        render_openai(request, "m", OpenAIDialect())
    assert caught.value.code == "invalid-request"
    with pytest.raises(ModelError, match=match):
        render_anthropic(request, "m", max_tokens=9)


def test_a_request_without_a_message_is_refused_here() -> None:
    """With a reason that names it, instead of a provider's."""
    with pytest.raises(ModelError, match="nothing to send"):
        chat()
    with pytest.raises(ModelError, match="nothing to send"):
        claude(said(" "))


texts = st.text(max_size=4)
reasonings = st.builds(ReasoningBlock, texts, st.none() | texts)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    """Any history that the kernel could hand over."""
    history: list[Message] = []
    for step in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["user", "note", "said", "called"]))
        if kind == "user":
            history.append(user(draw(texts), *draw(st.lists(st.just(PNG), max_size=1))))
        elif kind == "note":
            history.append(Note(draw(texts)))
        else:
            content = draw(st.lists(texts.map(TextBlock) | reasonings, max_size=3))
            calls = [
                call(f"c{step}-{n}", draw(texts))
                for n in range(draw(st.integers(1, 3)) if kind == "called" else 0)
            ]
            history.append(AssistantMessage((*content, *calls)))
            if calls:
                results = tuple(result(c.call_id, draw(texts)) for c in calls)
                history.append(ToolResults(results))
    return tuple(history)


@pytest.mark.clause("T4b")
@hypothesis.given(histories())
def test_every_history_keeps_the_rules_of_both_protocols(
    history: tuple[Message, ...],
) -> None:
    """T4: what was accepted into a history must never make it unusable."""
    history = (*history, user("go on"))
    check_chat(chat(*history))
    check_claude(claude(*history))


def check_chat(wire: Wire) -> None:
    owed: list[object] = []
    for message in wire:
        if message["role"] == "tool":
            assert message["tool_call_id"] == owed.pop(0)
            continue
        assert not owed
        assert message["content"] or message.get("tool_calls")
        calls = msgspec.convert(message.get("tool_calls", []), Wire)
        owed = [c["id"] for c in calls]
    assert not owed


def check_claude(wire: Wire) -> None:
    roles = [m["role"] for m in wire]
    assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
    owed: list[object] = []
    for message in wire:
        content = blocks(message)
        assert content
        for item in content:
            if item["type"] == "text":
                assert str(item["text"]).strip()
        results = [b["tool_use_id"] for b in content if b["type"] == "tool_result"]
        assert results == owed
        assert all(b["type"] == "tool_result" for b in content[: len(owed)])
        owed = [b["id"] for b in content if b["type"] == "tool_use"]
        assert content[-1]["type"] != "thinking"
    assert not owed


@hypothesis.given(histories(), histories())
def test_what_was_sent_once_is_sent_alike_for_ever(
    history: tuple[Message, ...], more: tuple[Message, ...]
) -> None:
    """A provider's cache of the history holds only for the same bytes."""
    wire = chat(*history, user("go on"))
    assert chat(*history, user("go on"), *more)[: len(wire)] == wire
    other = claude(*history, user("go on"))
    longer = claude(*history, user("go on"), *more)[: len(other)]
    assert longer[:-1] == other[:-1]
    last = blocks(other[-1])
    assert blocks(longer[-1])[: len(last)] == last
