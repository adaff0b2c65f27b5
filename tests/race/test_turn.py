"""A turn from its start to its flush: order, endings, limits, partial answers."""

from __future__ import annotations

import msgspec
import pytest
import trio
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import ScriptedModel, call
from agentkernel.testing.faulty import FaultyStore
from tests.race.parts import (
    Probe,
    after,
    facts,
    invalidity,
    listen,
    opened,
    texts,
    types,
)

NOTE = "The previous turn was stopped before it had finished."


def endings(agent: ak.Agent) -> list[str]:
    return [f.reason.kind for f in facts(agent) if isinstance(f, ak.TurnEnded)]


@pytest.mark.clause("T1a")
async def test_the_records_and_hooks_of_a_turn_come_in_one_order(
    autojump_clock: MockClock,
) -> None:
    """Whoever builds on a turn can rely on what has happened before each point."""
    order: list[str] = []
    model = ScriptedModel(["let me", call("t")], ["done"])

    class Recorder:
        def stream(self, request: ak.ModelRequest, /) -> object:
            order.append("(model)")
            return model.stream(request)

    async with opened(Recorder(), [Probe("t")]) as agent:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what the types forbid is tried

        async def assemble(payload: ak.Assemble, next_: object) -> str:
            order.append("(assemble)")
            await trio.lowlevel.checkpoint()
            return "system"

        async def pre_step(payload: ak.PreStep, next_: object) -> ak.Enter | ak.Reject:
            order.append("(pre-step)")
            await trio.lowlevel.checkpoint()
            return ak.Enter(payload.messages)

        async def request(payload: ak.Request, next_: object) -> ak.ModelRequest:
            order.append("(request)")
            await trio.lowlevel.checkpoint()
            return payload.request

        async def stopping(payload: ak.TurnStopping) -> None:
            order.append("(turn-stopping)")
            await trio.lowlevel.checkpoint()

        agent.on(ak.Appended, lambda p: order.append(p.event.type))
        agent.on(ak.InboxClaimed, lambda _p: order.append("(claimed)"))
        agent.on(ak.StatusChanged, lambda p: order.append(f"({p.status})"))
        agent.on(ak.Assemble, assemble)
        agent.on(ak.PreStep, pre_step)
        agent.on(ak.Request, request)
        agent.on(ak.TurnStopping, stopping)
        agent.followup("go")
        await agent.when_idle()
    assert order[: order.index("(idle)") + 1] == [
        "(running)",
        "agent/inbox/spliced",
        "(claimed)",
        "turn/start",
        "agent/inbox/spliced",
        "(assemble)",
        "(pre-step)",
        "step/start",
        "user/message",
        "(request)",
        "request/header",
        "(model)",
        "assistant/chunk",
        "assistant/message",
        "tool/call",
        "tool/result",
        "step/end",
        "(assemble)",
        "(pre-step)",
        "step/start",
        "(request)",
        "(model)",
        "assistant/chunk",
        "assistant/message",
        "step/end",
        "(turn-stopping)",
        "turn/end",
        "(idle)",
    ]


@pytest.mark.clause("T1a", "D2c")
async def test_the_flush_behind_a_turn_settles_before_the_next_claim(
    autojump_clock: MockClock,
) -> None:
    """A turn whose record may be lost must not be built upon."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(default=["ok"]), store=store) as agent:
        durable: list[bool] = []

        def look(payload: ak.InboxClaimed) -> None:
            if payload.turn > 1:
                ended = max(e.seq for e in agent.session.events if e.type == "turn/end")
                durable.append(agent.session.durable_seq >= ended)

        def idle(payload: ak.StatusChanged) -> None:
            if payload.status == "idle":
                durable.append(agent.session.durable_seq == agent.session.last_seq)

        agent.on(ak.InboxClaimed, look)
        agent.on(ak.StatusChanged, idle)
        for text in "abc":
            agent.followup(text)
        await agent.when_idle()
        assert durable == [True, True, True]


@pytest.mark.clause("T1b")
@pytest.mark.parametrize("verb", ["steer", "followup", "inject"])
async def test_input_at_turn_stopping_goes_its_own_way(
    autojump_clock: MockClock, verb: str
) -> None:
    """Steer continues this turn, followup opens the next, inject waits."""
    model = ScriptedModel(["one"], ["two"])
    async with opened(model) as agent:
        seen: list[int] = []

        async def stopping(payload: ak.TurnStopping) -> None:
            await trio.lowlevel.checkpoint()
            seen.append(payload.turn)
            if len(seen) == 1:
                assert payload.ending == ak.Ending("completed")
                {
                    "steer": agent.steer,
                    "followup": agent.followup,
                    "inject": agent.inject,
                }[verb]("more")

        agent.on(ak.TurnStopping, stopping)
        agent.followup("go")
        await agent.when_idle()
        turns = {"steer": [1, 1], "followup": [1, 2], "inject": [1]}[verb]
        assert seen == turns
        assert len(model.requests) == len(turns)
        assert [m.text for m in agent.inbox.next_step] == (
            ["more"] if verb == "inject" else []
        )


@pytest.mark.clause("T1c")
@pytest.mark.parametrize("decision", [ak.Enter(()), ak.Reject("no")])
async def test_a_batch_that_pre_step_emptied_makes_no_request(
    autojump_clock: MockClock, decision: ak.Enter | ak.Reject
) -> None:
    """The turn is recorded, without a step."""
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:

        async def decide(_payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await trio.lowlevel.checkpoint()
            return decision

        agent.on(ak.PreStep, decide)
        sent = agent.followup("go")
        await agent.when_idle()
        assert not model.requests
        assert "step/start" not in types(agent)
        kind = "completed" if isinstance(decision, ak.Enter) else "blocked"
        outcome = await agent.outcome(sent.id)
        assert outcome.kind == kind
        assert outcome.detail == (None if kind == "completed" else "no")


@pytest.mark.clause("T1c")
async def test_a_driver_that_finds_nothing_to_claim_opens_no_turn(
    autojump_clock: MockClock,
) -> None:
    """The message was withdrawn between the wake and the claim."""
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:
        sent = agent.followup("go")
        agent.inbox.remove(sent.id)
        await agent.when_idle()
        assert "turn/start" not in types(agent)
        assert not model.requests
        assert agent.status == "idle"


@pytest.mark.clause("T1c", "I2b")
async def test_a_rewritten_batch_is_what_enters(autojump_clock: MockClock) -> None:
    """A listener may change a message, leave one out, and add one of its own."""
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:

        async def rewrite(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await trio.lowlevel.checkpoint()
            first, _second = payload.messages
            changed = ak.UserMessage(first.id, (ak.TextBlock(first.text + "!"),))
            extra = ak.UserMessage(
                "extra", (ak.TextBlock("half \ud83d"),), meta={"list": [1]}
            )
            return ak.Enter((changed, extra))

        agent.on(ak.PreStep, rewrite)
        agent.inject("a")
        left_out = agent.followup("b")
        await agent.when_idle()
        assert texts(model.requests[0].messages) == ["a!", "half \ufffd"]
        entered = [f.message for f in facts(agent) if isinstance(f, ak.MessageEntered)]
        assert entered[1].meta == {"list": (1,)}
        with pytest.raises(TypeError):
            entered[1].meta["new"] = 1  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # what the types forbid is tried
        assert (await agent.outcome(left_out.id)).kind == "completed"
        ak.encode_event(agent.session.events[-1])


@pytest.mark.clause("I2b")
@pytest.mark.parametrize("wrong", ["twice", "pending", "entered"])
async def test_a_rewrite_cannot_have_a_message_in_two_places(
    autojump_clock: MockClock, wrong: str
) -> None:
    """The listener has failed, not the log: the turn ends `error`, input goes back."""
    model = ScriptedModel(["first"], default=["ok"])
    async with opened(model) as agent:
        early = agent.followup("early")
        await agent.when_idle()

        async def rewrite(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await trio.lowlevel.checkpoint()
            (message,) = payload.messages
            if wrong == "twice":
                return ak.Enter((message, message))
            other = early.id if wrong == "entered" else agent.inbox.next_turn[0].id
            return ak.Enter((ak.UserMessage(other, message.content),))

        agent.on(ak.PreStep, rewrite)
        first, second = agent.followup("a"), agent.followup("b")
        await agent.when_idle()
        assert endings(agent) == ["completed", "error"]
        assert [m.id for m in agent.inbox.next_turn] == [first.id, second.id]
        assert len(model.requests) == 1


@pytest.mark.clause("T1d", "T3c")
@pytest.mark.case("PAIR-10")
async def test_the_step_limit_answers_pending_calls_and_ends_the_turn(
    autojump_clock: MockClock,
) -> None:
    """The session stays usable: the next request needs no repair."""
    tool = Probe("t")
    model = ScriptedModel([call("t"), call("t")], ["fine"])
    async with opened(model, [tool], options=ak.AgentOptions(max_steps=1)) as agent:
        sent = agent.followup("go")
        await agent.when_idle()
        assert endings(agent) == ["max-steps"]
        assert (await agent.outcome(sent.id)).kind == "max-steps"
        assert not tool.calls
        results = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert len(results) == 2
        assert all("limit" in (r.error.message if r.error else "") for r in results)
        agent.followup("again")
        await agent.when_idle()
        assert invalidity(model.requests[1].messages) is None
        assert endings(agent)[-1] == "completed"


@pytest.mark.clause("T1d")
def test_a_step_limit_below_one_is_refused() -> None:
    """A turn has at least one step."""
    with pytest.raises(ValueError, match="max_steps"):
        ak.AgentOptions(max_steps=0)


@pytest.mark.clause("T2e", "T8")
@pytest.mark.parametrize(
    "seam", ["assemble", "pre-step", "request", "stopping", "model"]
)
async def test_a_failure_in_a_turn_ends_that_turn_and_no_more(
    autojump_clock: MockClock, seam: str
) -> None:
    """It is caught inside the nursery: the agent runs the next turn as ever."""
    model = ScriptedModel([RuntimeError("broken")] if seam == "model" else ["one"])
    model.add(["two"])
    async with opened(model) as agent:

        async def fail(*_args: object) -> object:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("broken")

        event = {
            "assemble": ak.Assemble,
            "pre-step": ak.PreStep,
            "request": ak.Request,
            "stopping": ak.TurnStopping,
        }.get(seam)
        remove = listen(agent, event, fail) if event is not None else None
        sent = agent.followup("go")
        agent.followup("queued")
        await agent.when_idle()
        assert endings(agent) == ["error"]
        assert len(agent.inbox.next_turn) == (
            1
            if seam in {"stopping", "model"}
            else 1 + (seam in {"assemble", "pre-step"})
        )
        if seam in {"stopping", "model", "request"}:
            outcome = await agent.outcome(sent.id)
            assert outcome.kind == "error"
            assert "broken" in (outcome.detail or "")
        if remove is not None:
            remove()
        model.add(["two"])
        agent.wake()
        await agent.when_idle()
        assert endings(agent)[-1] == "completed"


@pytest.mark.clause("T1a", "L1c")
async def test_what_a_request_carries_is_logged_when_it_changes(
    autojump_clock: MockClock,
) -> None:
    """A change of tools, prompt or model takes effect at the next step."""
    model = ScriptedModel([call("grow")], default=["ok"])
    async with opened(model) as agent:

        async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
            agent.tools.add(Probe("new"))
            agent.prompt.section("s", "be {{ how }}")
            agent.prompt.variable("how", "brief")
            return ak.ToolOutput.of("ok")

        agent.tools.add(Probe("grow", body))
        agent.followup("a")
        agent.followup("b")
        await agent.when_idle()
        headers = [f for f in facts(agent) if isinstance(f, ak.RequestConfigured)]
        assert [[t.name for t in h.tools] for h in headers] == [
            ["grow"],
            ["grow", "new"],
        ]
        assert [h.system for h in headers] == ["", "be brief"]
        assert [r.system for r in model.requests] == ["", "be brief", "be brief"]


@pytest.mark.clause("D1a", "D1d")
async def test_a_request_that_a_listener_made_is_frozen_and_clean_in_the_log(
    autojump_clock: MockClock,
) -> None:
    """What is in the log neither changes under its readers nor fails to be written."""
    options: dict[str, ak.JsonValue] = {"list": [1]}
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def request(payload: ak.Request, _next: object) -> ak.ModelRequest:
            await trio.lowlevel.checkpoint()
            return msgspec.structs.replace(
                payload.request, options=options, system="half \ud83d"
            )

        async def assemble(_payload: ak.Assemble, _next: object) -> str:
            await trio.lowlevel.checkpoint()
            return "half \ud83d"

        agent.on(ak.Request, request)
        agent.on(ak.Assemble, assemble)
        agent.followup("a")
        await agent.when_idle()
        options["more"] = 1
        agent.followup("b")
        await agent.when_idle()
        headers = [f for f in facts(agent) if isinstance(f, ak.RequestConfigured)]
        assert [h.options for h in headers] == [
            {"list": (1,)},
            {"list": (1,), "more": 1},
        ]
        assert [h.system for h in headers] == ["half \ufffd"] * 2
        for event in agent.session.events:
            ak.encode_event(event)


@pytest.mark.clause("T2a")
async def test_tool_calls_run_in_the_nursery_of_their_turn(
    autojump_clock: MockClock,
) -> None:
    """Its close joins them: none can outlive the turn."""
    found: list[str] = []

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        names: list[str] = []
        while task is not None:
            names.append(task.name)
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        assert "agent s" in names
        found.append(names[0])
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput.of("ok")

    model = ScriptedModel([call("p"), call("p"), call("b")], ["ok"])
    tools = [Probe("p", body, parallel_safe=True), Probe("b", body)]
    async with opened(model, tools) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert after(agent, "turn/end") == ["turn/end"]
    assert found == ["tool p", "tool p", "agent s"]
