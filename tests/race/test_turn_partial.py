"""Answers that were cut: by a stop, by a limit, by a broken stream."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import EOF, Gate, ScriptedModel, call
from tests.race.parts import (
    Probe,
    facts,
    opened,
    texts,
    types,
)

NOTE = "The previous turn was stopped before it had finished."


def endings(agent: ak.Agent) -> list[str]:
    return [f.reason.kind for f in facts(agent) if isinstance(f, ak.TurnEnded)]


@pytest.mark.clause("T4a")
@pytest.mark.case("PART-01")
async def test_a_stop_keeps_what_observers_saw_and_no_calls(
    autojump_clock: MockClock,
) -> None:
    """Text and reasoning stay, marked; a call that had come in does not."""
    gate = Gate()
    model = ScriptedModel(
        [ak.ReasoningChunk("hm"), "one ", "two ", call("t"), gate], ["ok"]
    )
    tool = Probe("t")
    async with opened(model, [tool]) as agent:
        shown: list[str] = []

        def look(payload: ak.Appended) -> None:
            fact = payload.event.data
            if isinstance(fact, ak.ChunkStreamed) and isinstance(
                fact.chunk, ak.TextChunk
            ):
                shown.append(fact.chunk.text)

        agent.on(ak.Appended, look)
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        await agent.when_idle()
        (reply,) = [f for f in facts(agent) if isinstance(f, ak.AssistantReplied)]
        assert reply.interrupted
        assert reply.message == ak.AssistantMessage(
            (ak.ReasoningBlock("hm"), ak.TextBlock("one two ")), interrupted=True
        )
        assert "".join(shown) == reply.message.text
        assert not tool.calls
        assert model.open_streams == 0
        agent.followup("next")
        await agent.when_idle()
        assert texts(model.requests[1].messages) == ["go", "one two ", NOTE, "next"]


@pytest.mark.clause("T4a", "T4b")
@pytest.mark.case("PART-02", "PART-03")
@pytest.mark.parametrize("script", [[], ["\n\n"], ["\n\n", call("t")]])
async def test_a_stop_before_anything_visible_leaves_no_message(
    autojump_clock: MockClock, script: list[str | ak.Chunk]
) -> None:
    """A message that a provider would refuse would brick the session."""
    gate = Gate()
    model = ScriptedModel([*script, gate], ["ok"])
    async with opened(model) as agent:
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        await agent.when_idle()
        assert "assistant/message" not in types(agent)
        agent.followup("next")
        await agent.when_idle()
        assert texts(model.requests[1].messages) == ["go", NOTE, "next"]


@pytest.mark.clause("T4b")
@pytest.mark.parametrize("script", [[], ["\n\n"], [" "]])
async def test_an_answer_without_content_is_in_no_later_request(
    autojump_clock: MockClock, script: list[str]
) -> None:
    """A model may say nothing at all; the next request does not repeat that."""
    model = ScriptedModel(script, ["ok"])
    async with opened(model) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert endings(agent) == ["completed"]
        agent.followup("next")
        await agent.when_idle()
        assert texts(model.requests[1].messages) == ["go", "next"]


@pytest.mark.clause("T4c")
async def test_a_run_of_stopped_turns_shows_one_note_in_its_place(
    autojump_clock: MockClock,
) -> None:
    """Later requests agree byte for byte, and the note is nobody's message."""
    gates = [Gate(), Gate(), Gate()]
    model = ScriptedModel([gates[0]], [gates[1]], ["ok"], [gates[2]], ["end"])
    store = ak.MemoryStore()
    async with opened(model, store=store) as agent:
        for gate, text in zip(gates[:2], "ab", strict=True):
            agent.followup(text)
            await gate.reached()
            agent.cancel()
            await agent.when_idle()
        agent.followup("c")
        await agent.when_idle()
        assert texts(model.requests[2].messages) == ["a", NOTE, "b", "c"]
        agent.followup("d")
        await gates[2].reached()
        agent.cancel()
        await agent.when_idle()
        assert "note" not in " ".join(types(agent))
        live = texts(agent.session.messages)
    async with opened(model, store=store) as agent:
        assert texts(agent.session.messages) == live
        agent.followup("e")
        await agent.when_idle()
        assert texts(model.requests[4].messages) == [
            "a",
            NOTE,
            "b",
            "c",
            "ok",
            "d",
            NOTE,
            "e",
        ]
        earlier = model.requests[2].messages
        assert tuple(model.requests[4].messages[: len(earlier)]) == tuple(earlier)


@pytest.mark.clause("T4c")
async def test_no_note_where_nothing_had_entered_or_the_option_is_off(
    autojump_clock: MockClock,
) -> None:
    """The model never saw that turn; a note on it would be noise."""
    for option in (True, False):
        gate, stream = Gate(), Gate()
        model = ScriptedModel([stream], ["ok"]) if not option else ScriptedModel(["ok"])
        async with opened(model, options=ak.AgentOptions(stop_note=option)) as agent:

            async def hold(
                payload: ak.PreStep, _next: object, gate: Gate = gate
            ) -> ak.Enter | ak.Reject:
                await gate.wait()
                return ak.Enter(payload.messages)

            if option:
                agent.on(ak.PreStep, hold)
            agent.followup("a")
            await (gate if option else stream).reached()
            agent.cancel()
            await agent.when_idle()
            gate.open()
            agent.followup("b")
            await agent.when_idle()
            expected = ["b"] if option else ["a", "b"]
            assert texts(model.requests[-1].messages) == expected


@pytest.mark.clause("T4a", "I1c")
@pytest.mark.case("PART-07")
async def test_a_message_sent_with_the_stop_comes_behind_the_partial_answer(
    autojump_clock: MockClock,
) -> None:
    """Cancel and send in one tick: partial text, note, message, in this order."""
    gate = Gate()
    model = ScriptedModel(["abc", gate], ["ok"])
    async with opened(model) as agent:
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        agent.followup("x")
        await agent.when_idle()
        assert texts(model.requests[1].messages) == ["go", "abc", NOTE, "x"]


@pytest.mark.clause("T6")
@pytest.mark.case("TOOL-03")
async def test_a_message_cut_by_its_limit_has_no_calls_and_ends_the_turn_so(
    autojump_clock: MockClock,
) -> None:
    """Half an input is nothing to act on, nor is its complete sibling."""
    tool = Probe("t")
    cut = ak.ToolCallChunk("t", '{"path": "/et', truncated=True)
    model = ScriptedModel(["text", call("t"), cut, ak.FinishChunk("max-tokens")])
    async with opened(model, [tool]) as agent:
        sent = agent.followup("go")
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "max-tokens"
        assert (await agent.outcome(sent.id)).text == "text"
        assert not tool.calls
        (reply,) = [f for f in facts(agent) if isinstance(f, ak.AssistantReplied)]
        assert not reply.message.calls
        assert not reply.interrupted


@pytest.mark.clause("T6")
async def test_steering_gives_a_cut_turn_a_step_and_it_still_ends_max_tokens(
    autojump_clock: MockClock,
) -> None:
    """The turn ends so if any of its steps did."""
    gate = Gate()
    model = ScriptedModel([gate, "cu", ak.FinishChunk("max-tokens")], ["whole"])
    async with opened(model) as agent:
        agent.followup("go")
        await gate.reached()
        agent.steer("go on")
        gate.open()
        await agent.when_idle()
        assert len(model.requests) == 2
        assert endings(agent) == ["max-tokens"]


@pytest.mark.clause("T3d")
@pytest.mark.case("TOOL-03")
@pytest.mark.parametrize("last", ["finish", "eof"])
async def test_a_truncated_call_never_runs_whatever_the_stream_claims(
    autojump_clock: MockClock, last: str
) -> None:
    """With `tool-calls` as its finish it is answered; without one the attempt failed."""
    tool = Probe("t")
    cut = ak.ToolCallChunk("t", '{"path": "/et', truncated=True)
    model = ScriptedModel([cut] if last == "finish" else [cut, EOF], ["ok"])
    async with opened(model, [tool]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert not tool.calls
        if last == "finish":
            (result,) = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
            assert result.error is not None
            assert "cut short" in result.error.message
            assert endings(agent) == ["completed"]
        else:
            assert endings(agent) == ["error"]
            assert "tool/call" not in types(agent)
