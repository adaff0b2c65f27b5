"""Logs that were cut anywhere, resumed and forked: what a later life finds."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from agentkernel.testing.faulty import FaultyStore
from tests.race.parts import (
    Probe,
    facts,
    invalidity,
    opened,
    places,
    plant,
    stored,
    texts,
)


def assert_paired(now: list[ak.SessionEvent]) -> None:
    """Check that turns and steps balance and each call has one result."""
    names = Counter(e.type for e in now)
    assert names["turn/start"] == names["turn/end"]
    assert names["step/start"] == names["step/end"]
    results = Counter(
        e.data.call_id for e in now if isinstance(e.data, ak.ToolReturned)
    )
    calls = [
        c.call_id
        for e in now
        if isinstance(e.data, ak.AssistantReplied)
        for c in e.data.message.calls
    ]
    assert results == Counter(calls)


def assert_kept(before: dict[str, list[str]], now: dict[str, list[str]]) -> None:
    """Check that each message is in one place, and what was claimed pends again."""
    for message_id, where in now.items():
        assert len(where) == 1
        if before.get(message_id) == ["claimed"]:
            assert where == ["pending"]
        elif message_id in before:
            assert where == before[message_id]


async def a_busy_session(store: ak.SessionStore) -> None:
    """Turns with tools, steering, a retry, stops and edits of the queue."""
    stopping, hold = trio.Event(), Gate()

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if invocation.arguments.get("stop"):
            stopping.set()
            await trio.sleep_forever()
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput.of("ok")

    failure = ak.ModelError("busy", retryable=True)
    model = ScriptedModel(
        ["look", call("p", id="x"), call("p", id="x"), call("b")],
        ["half", failure],
        ["whole"],
        [call("p"), call("p", stop=True), call("b")],
        ["text ", hold],
        default=["end"],
    )
    tools = [Probe("p", body, parallel_safe=True), Probe("b", body)]
    async with opened(model, tools, store=store) as agent:

        async def retry(_p: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            await trio.lowlevel.checkpoint()
            return ak.Retry(0.5)

        agent.on(ak.RequestError, retry)
        agent.followup("one")
        agent.inject("note")
        agent.followup("two")
        agent.followup("three")
        await stopping.wait()
        agent.steer("late")
        agent.cancel(keep_inbox=True)
        await agent.when_idle()
        agent.inbox.move(agent.inbox.next_turn[0].id, 5)
        agent.wake()
        await hold.reached()
        agent.followup("dropped")
        agent.cancel()
        agent.followup("latched")
        await agent.when_idle()
        agent.inject("left")


@pytest.mark.clause("D5a", "T3c", "I2b", "I3a")
@pytest.mark.case("PAIR-11", "STORE-10", "COMP-02", "INB-08")
async def test_a_log_cut_at_any_event_is_resumed_whole(
    autojump_clock: MockClock,
) -> None:
    """Balanced, paired, no message lost, nothing re-run, and repaired only once."""
    source = ak.MemoryStore()
    await a_busy_session(source)
    events = await stored(source)
    assert len(events) > 60
    codes: Counter[str] = Counter()
    for cut in range(1, len(events) + 1):
        prefix = events[:cut]
        before = places(prefix)
        assert all(len(where) == 1 for where in before.values())
        store = await plant(prefix)
        tool = Probe("p", parallel_safe=True)
        model = ScriptedModel(default=["ok"])
        lengths: list[int] = []
        for _ in range(3):
            async with opened(model, [tool, Probe("b")], store=store) as agent:
                await wait_all_tasks_blocked()
                assert agent.status == "idle"
                lengths.append(agent.session.last_seq)
        assert lengths[1:] == lengths[:1] * 2, f"cut at {cut}: {lengths}"
        assert not tool.calls
        assert not model.requests
        now = await stored(store)
        assert now[:cut] == prefix
        repaired = [e.data for e in now[cut:]]
        for fact in repaired:
            if isinstance(fact, ak.TurnEnded):
                assert fact.reason == ak.Ending("interrupted")
            if isinstance(fact, ak.ToolReturned):
                assert fact.error is not None
                announced = any(
                    isinstance(e.data, ak.ToolCalled) and e.data.call_id == fact.call_id
                    for e in prefix
                )
                expected = "TOOL_OUTCOME_UNKNOWN" if announced else "TOOL_NOT_STARTED"
                assert fact.error.code == expected
                codes[expected] += 1
        assert_paired(now)
        assert_kept(before, places(now))
        async with opened(model, [tool], store=store) as agent:
            agent.followup("next")
            await agent.when_idle()
            assert invalidity(model.requests[-1].messages) is None
            assert not agent.inbox.next_turn
    assert codes.keys() == {"TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"}


@pytest.mark.clause("D5a", "T4a")
async def test_partial_text_that_was_flushed_survives_a_crash(
    autojump_clock: MockClock,
) -> None:
    """It is marked interrupted, and the next request shows it."""
    source = ak.MemoryStore()
    model = ScriptedModel(["one ", "two"])
    async with opened(model, store=source) as agent:
        agent.followup("go")
        await agent.when_idle()
    events = await stored(source)
    last_chunk = max(e.seq for e in events if e.type == "assistant/chunk")
    later = ScriptedModel(["ok"])
    async with opened(later, store=await plant(events[: last_chunk - 1])) as agent:
        (reply,) = [f for f in facts(agent) if isinstance(f, ak.AssistantReplied)]
        assert reply.interrupted
        assert reply.message.text == "one "
        agent.followup("next")
        await agent.when_idle()
        assert texts(later.requests[0].messages) == ["go", "one ", "next"]


@pytest.mark.clause("D5a", "T3c")
@pytest.mark.case("PAIR-11")
async def test_an_unanswered_call_further_up_is_answered_in_its_place(
    autojump_clock: MockClock,
) -> None:
    """Three whole turns lie behind it; they stay as they are."""
    message = ak.AssistantMessage(
        (ak.ToolCall("c1", "t", {}), ak.ToolCall("c2", "t", {}))
    )
    log: list[ak.Fact] = [ak.SessionHeader(1), ak.TurnStarted(1), ak.StepStarted(1, 1)]
    log += [
        ak.MessageEntered(ak.UserMessage("u1", (ak.TextBlock("u1"),))),
        ak.AssistantReplied(1, 1, message),
        ak.ToolCalled(1, 1, "c2", "t", {}),
        ak.StepEnded(1, 1),
        ak.TurnEnded(1, ak.Ending("completed")),
    ]
    for turn in (2, 3, 4):
        log += [
            ak.TurnStarted(turn),
            ak.StepStarted(turn, 1),
            ak.MessageEntered(ak.UserMessage(f"u{turn}", (ak.TextBlock(f"u{turn}"),))),
            ak.AssistantReplied(turn, 1, ak.AssistantMessage((ak.TextBlock("a"),))),
            ak.StepEnded(turn, 1),
            ak.TurnEnded(turn, ak.Ending("completed")),
        ]
    events = [ak.SessionEvent(n, float(n), fact) for n, fact in enumerate(log, 1)]
    store = await plant(events)
    for _ in range(3):
        async with opened(ScriptedModel(), store=store) as agent:
            shown = agent.session.messages
            assert invalidity(shown) is None
            assert texts(shown) == [
                "u1",
                "",
                "TOOL_NOT_STARTED|TOOL_OUTCOME_UNKNOWN",
                "u2",
                "a",
                "u3",
                "a",
                "u4",
                "a",
            ]
    now = await stored(store)
    assert now[: len(events)] == events
    assert len(now) == len(events) + 2


@pytest.mark.clause("T3c", "I3a")
@pytest.mark.case("SUB-09")
async def test_a_fork_leaves_open_calls_to_the_original(
    autojump_clock: MockClock,
) -> None:
    """Its first request is valid, and the parent's result never shows in it."""
    gate = Gate()

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("the parent's result")

    model = ScriptedModel(["look", call("t"), call("t")], default=["ok"])
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        parent = (await kernel.create("p", model="m", tools=[Probe("t", body)])).agent
        parent.followup("go")
        parent.followup("queued")
        await gate.reached()
        before = parent.session.last_seq
        handle = await kernel.fork(parent, "f")
        assert parent.session.last_seq == before
        fork = handle.agent
        await wait_all_tasks_blocked()
        assert fork.status == "idle"
        assert not fork.inbox.next_turn
        gate.open()
        await parent.when_idle()
        fork.followup("fork")
        await fork.when_idle()
        shown = model.requests[-1].messages
        assert invalidity(shown) is None
        assert texts(shown) == [
            "go",
            "look",
            "LEFT_TO_ORIGINAL|LEFT_TO_ORIGINAL",
            "fork",
        ]
        ends = [f.reason.kind for f in facts(fork) if isinstance(f, ak.TurnEnded)]
        assert ends == ["interrupted", "completed"]
        lineage = fork.session.header.lineage
        assert (lineage.forked_from, lineage.forked_at) == ("p", before)
        assert fork.session.id == "f"
        assert "fork" not in " ".join(texts(parent.session.messages))
        grandchild = (await kernel.fork(fork, "g")).agent
        assert grandchild.session.header.lineage.forked_from == "f"
        assert texts(grandchild.session.messages) == texts(fork.session.messages)


@pytest.mark.clause("I3a")
@pytest.mark.case("SUB-10")
async def test_a_fork_at_any_event_is_valid_and_apart_from_its_source(
    autojump_clock: MockClock,
) -> None:
    """Also after both were closed and opened again."""
    store = ak.MemoryStore()
    await a_busy_session(store)
    source = await stored(store)
    model = ScriptedModel(default=["ok"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", model)
        for at in range(1, len(source) + 1, 3):
            handle = await kernel.fork("s", f"f{at}", at=at)
            async with handle as fork:
                assert not fork.inbox.next_turn
                assert not fork.inbox.next_step
                fork.followup("next")
                await fork.when_idle()
                assert invalidity(model.requests[-1].messages) is None
                assert texts(model.requests[-1].messages)[-1] == "next"
            events = await stored(store, f"f{at}")
            assert events[1:at] == source[1:at]
            assert_paired(events)
            async with await kernel.resume(f"f{at}") as again:
                assert again.session.last_seq == len(events)
    assert await stored(store) == source


@pytest.mark.clause("I3a")
async def test_a_fork_beyond_the_end_of_its_source_is_refused(
    autojump_clock: MockClock,
) -> None:
    """And leaves no session behind."""
    for waits in (True, False):
        store = FaultyStore(ak.MemoryStore(), waits=waits)
        async with ak.open_kernel(store, strict=True) as kernel:
            agent = (await kernel.create("p")).agent
            with trio.fail_after(60), pytest.raises(ValueError, match="does not exist"):
                await kernel.fork(agent, "f", at=99)
            assert [s.session_id for s in await store.sessions()] == ["p"]


@pytest.mark.parametrize("by_id", [False, True])
async def test_a_fork_at_no_event_of_its_source_is_refused(
    autojump_clock: MockClock, *, by_id: bool
) -> None:
    """Else its header would name a place that the source may reach later."""
    async with (
        ak.open_kernel(ak.MemoryStore()) as kernel,
        kernel.open("s", model="m") as agent,
    ):
        source = agent.id if by_id else agent
        for at in (-1, 0, agent.session.last_seq + 1):
            with pytest.raises(ValueError, match="does not exist"):
                await kernel.fork(source, at=at)
        assert [each.session_id for each in await kernel.store.sessions()] == ["s"]


@pytest.mark.clause("I3a")
async def test_a_resume_takes_its_options_from_the_log(
    autojump_clock: MockClock,
) -> None:
    """Names, numbers and text; a model may be replaced for this opening."""
    store = ak.MemoryStore()
    options = ak.AgentOptions(
        system="be brief", max_steps=3, model_options={"temperature": 0.5}
    )
    model = ScriptedModel(default=["ok"])
    async with opened(model, store=store, options=options) as agent:
        first = agent.options
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", model)
        kernel.models.register("other", model)
        async with await kernel.resume("s") as agent:
            assert agent.options == first
            agent.followup("go")
            await agent.when_idle()
        async with await kernel.resume("s", model="other") as agent:
            assert agent.options.model == "other"
            assert agent.options.system == "be brief"
    assert model.requests[0].system == "be brief"
    assert model.requests[0].options == {"temperature": 0.5}


async def test_a_resume_says_nothing_again_that_the_log_says(
    autojump_clock: MockClock,
) -> None:
    """A schema with a list in it is the same schema when it comes from the log."""
    probe = Probe("t")
    probe.spec = ak.ToolSpec("t", "", {"type": "object", "required": ["x"]})
    store = ak.MemoryStore()
    for _life in range(3):
        async with opened(ScriptedModel(default=["ok"]), [probe], store=store) as agent:
            agent.followup("go")
            await agent.when_idle()
    events = await stored(store)
    check_log(events)
    assert [type(e.data) for e in events].count(ak.RequestConfigured) == 1
