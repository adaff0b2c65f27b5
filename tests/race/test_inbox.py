"""Pending input against a running agent: who claims what, when, and what is left."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import Probe, facts, opened, texts


def entered(agent: ak.Agent) -> dict[str, list[int]]:
    """Map each message that entered to the turns that it entered."""
    found: dict[str, list[int]] = {}
    turn = 0
    for fact in facts(agent):
        if isinstance(fact, ak.TurnStarted):
            turn = fact.turn
        elif isinstance(fact, ak.MessageEntered):
            found.setdefault(fact.message.id, []).append(turn)
    return found


@pytest.mark.clause("I1a", "I1b")
async def test_waking_verbs_make_an_idle_agent_running_before_they_return(
    autojump_clock: MockClock,
) -> None:
    """A caller may send and then ask for idle without a window in between."""
    async with opened(ScriptedModel(default=["ok"])) as agent:
        for send in (agent.followup, agent.steer):
            with assert_no_checkpoints():
                before = agent.status
                send("go")
                assert (before, agent.status) == ("idle", "running")
            await agent.when_idle()
        with assert_no_checkpoints():
            agent.inject("note")
            assert agent.status == "idle"
            assert not agent.wake()
            assert agent.status == "idle"


@pytest.mark.clause("I1a", "I2a")
async def test_a_turn_claims_every_step_input_and_one_followup(
    autojump_clock: MockClock,
) -> None:
    """One followup is one turn, however many wait; steering goes with the first."""
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:
        for number in range(3):
            agent.followup(f"f{number}")
        agent.inject("i")
        agent.steer("s")
        await agent.when_idle()
        assert [texts(r.messages) for r in model.requests] == [
            ["i", "s", "f0"],
            ["i", "s", "f0", "ok", "f1"],
            ["i", "s", "f0", "ok", "f1", "ok", "f2"],
        ]


@pytest.mark.clause("I2a")
@pytest.mark.case("INB-05")
async def test_all_steering_of_one_tool_call_is_in_the_next_request(
    autojump_clock: MockClock,
) -> None:
    """A step takes every waiting steer, not one: none is left for later."""
    gate = Gate()

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("done")

    model = ScriptedModel([call("t")], ["ok"])
    async with opened(model, [Probe("t", body)]) as agent:
        agent.followup("go")
        await gate.reached()
        sent = [agent.steer(f"s{n}") for n in range(25)]
        gate.open()
        await agent.when_idle()
        assert texts(model.requests[1].messages) == [
            "go",
            "",
            "done",
            *(f"s{n}" for n in range(25)),
        ]
        assert {s.id: [1] for s in sent}.items() <= entered(agent).items()
        assert not agent.inbox.next_step


@pytest.mark.clause("I1c")
async def test_steering_that_lands_while_the_turn_ends_gets_a_turn_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """A steer sent by an observer of `turn/end` is a wake: nobody has to repeat it."""
    model = ScriptedModel(["one"], ["two"])
    sent: list[ak.Sent] = []
    async with opened(model) as agent:

        def steer_once(payload: ak.Appended) -> None:
            if isinstance(payload.event.data, ak.TurnEnded) and not sent:
                sent.append(agent.steer("late"))

        agent.on(ak.Appended, steer_once)
        agent.followup("go")
        await agent.when_idle()
        assert entered(agent)[sent[0].id] == [2]
        assert len(model.requests) == 2


@pytest.mark.clause("I1c")
@pytest.mark.parametrize("moment", ["assistant/message", "step/end", "stopping"])
async def test_steering_before_the_end_of_a_turn_continues_that_turn(
    autojump_clock: MockClock, moment: str
) -> None:
    """As long as `turn/end` is not in the log, the turn has a step left to give."""
    model = ScriptedModel(["one"], ["two"])
    sent: list[ak.Sent] = []
    async with opened(model) as agent:

        def steer_once() -> None:
            if not sent:
                sent.append(agent.steer("late"))

        async def stopping(_payload: ak.TurnStopping) -> None:
            await trio.lowlevel.checkpoint()
            if moment == "stopping":
                steer_once()

        def appended(payload: ak.Appended) -> None:
            if payload.event.type == moment:
                steer_once()

        agent.on(ak.Appended, appended)
        agent.on(ak.TurnStopping, stopping)
        agent.followup("go")
        await agent.when_idle()
        assert entered(agent)[sent[0].id] == [1]
        assert len(model.requests) == 2


@pytest.mark.clause("I1c", "T1b")
async def test_steering_in_any_pass_behind_the_last_step_joins_that_turn(
    autojump_clock: MockClock,
) -> None:
    """Also in the one in which the turn's nursery closes, where nothing else runs."""
    seen: Counter[bool] = Counter()

    async def steer_late(agent: ak.Agent, look: trio.Event, passes: int) -> None:
        await look.wait()
        for _ in range(passes):
            await trio.lowlevel.checkpoint()
        in_time = not any(isinstance(fact, ak.TurnEnded) for fact in facts(agent))
        sent = agent.steer("late")
        await agent.when_idle()
        assert entered(agent)[sent.id] == [1 if in_time else 2]
        seen[in_time] += 1

    # Again and again: who runs first in a scheduling pass is a matter of chance.
    for passes in [0, 1, 2] * 8:
        look = trio.Event()

        async def stopping(_payload: ak.TurnStopping, look: trio.Event = look) -> None:
            look.set()
            await trio.lowlevel.cancel_shielded_checkpoint()

        async with opened(ScriptedModel(["one"], ["two"])) as agent:
            agent.on(ak.TurnStopping, stopping)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(steer_late, agent, look, passes)
                await wait_all_tasks_blocked()
                agent.followup("go")
    assert seen[True]
    assert seen[False]


@pytest.mark.clause("I1c", "T1d")
async def test_steering_in_the_last_step_runs_in_the_next_turn(
    autojump_clock: MockClock,
) -> None:
    """A turn out of steps cannot take it, and the agent takes it without a wake."""
    gate = Gate()
    model = ScriptedModel([gate, "one"], ["two"])
    async with opened(model, options=ak.AgentOptions(max_steps=1)) as agent:
        agent.followup("go")
        await gate.reached()
        late = agent.steer("late")
        gate.open()
        await agent.when_idle()
        assert entered(agent)[late.id] == [2]
        assert (await agent.outcome(late.id)).text == "two"


@pytest.mark.clause("I1d")
async def test_an_injected_item_rides_along_and_never_causes_a_step(
    autojump_clock: MockClock,
) -> None:
    """Not on an idle agent, not at the end of a turn, not by a wake."""
    gate = Gate()
    model = ScriptedModel([gate, "one"], ["two"])
    async with opened(model) as agent:
        idle = agent.inject("idle")
        await wait_all_tasks_blocked()
        assert not model.requests
        agent.followup("go")
        await gate.reached()
        late = agent.inject("late")
        gate.open()
        await agent.when_idle()
        assert len(model.requests) == 1
        assert not agent.wake()
        await wait_all_tasks_blocked()
        assert len(model.requests) == 1
        agent.followup("next")
        await agent.when_idle()
        assert entered(agent)[idle.id] == [1]
        assert entered(agent)[late.id] == [2]


@pytest.mark.clause("I1e")
async def test_an_idle_driver_is_parked_on_a_channel_of_one_wake(
    autojump_clock: MockClock,
) -> None:
    """Any number of wakes is one wake: there is nothing that could fill up."""
    async with opened(ScriptedModel(default=["ok"])) as agent:
        receiver = agent._driver._wake_receiver  # pyright: ignore[reportPrivateUsage]  # no public name
        await wait_all_tasks_blocked()
        statistics = receiver.statistics()
        assert statistics.max_buffer_size == 1
        assert statistics.tasks_waiting_receive == 1
        gate = Gate()

        async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, hold)
        agent.followup("a")
        for _ in range(20):
            agent.followup("b")
            agent.wake()
        await gate.reached()
        assert receiver.statistics().current_buffer_used <= 1
        gate.open()
        await agent.when_idle()
        assert len(entered(agent)) == 21


@pytest.mark.clause("I1a")
async def test_wake_says_whether_it_started_a_drain(autojump_clock: MockClock) -> None:
    """True for parked work; false for nothing, and for what is drained anyway."""
    gate = Gate()
    model = ScriptedModel(["never"], [gate, "ok"], default=["ok"])
    async with opened(model) as agent:
        assert not agent.wake()
        agent.followup("a")
        agent.cancel(keep_inbox=True)
        await agent.when_idle()
        assert agent.wake()
        assert not agent.wake()
        await agent.when_idle()
        agent.followup("b")
        await gate.reached()
        agent.followup("c")
        assert not agent.wake()
        gate.open()
        await agent.when_idle()
        assert len(entered(agent)) == 3


@pytest.mark.clause("I2b")
async def test_the_claim_is_in_the_log_as_one_act_with_the_start_of_the_turn(
    autojump_clock: MockClock,
) -> None:
    """No observer can look between the start of a turn and its claims."""
    seen: list[tuple[str, int, int]] = []
    async with opened(ScriptedModel(default=["ok"])) as agent:

        def look(payload: ak.Appended) -> None:
            if payload.event.type == "turn/start":
                pending = len(agent.inbox.next_turn) + len(agent.inbox.next_step)
                seen.append((payload.event.type, agent.session.last_seq, pending))

        agent.on(ak.Appended, look)
        agent.followup("f")
        agent.inject("i")
        await agent.when_idle()
        start = next(e for e in agent.session.events if e.type == "turn/start")
        assert seen == [("turn/start", start.seq + 2, 0)]
        claims = [
            (f.target, f.outcome)
            for f in facts(agent)[start.seq : start.seq + 2]
            if isinstance(f, ak.InboxSpliced)
        ]
        assert claims == [("next_step", "claimed"), ("next_turn", "claimed")]


@pytest.mark.clause("I6")
async def test_a_notice_wakes_an_idle_agent_and_joins_a_busy_one(
    autojump_clock: MockClock,
) -> None:
    """News of a job reaches the model without anybody asking for it."""
    gate = Gate()
    model = ScriptedModel(["heard"], [gate, call("t")], ["ok"])

    def notice(text: str) -> ak.UserMessage:
        return ak.UserMessage(text, (ak.TextBlock(text),), kind="notice")

    async with opened(model, [Probe("t")]) as agent:
        agent.steer(notice("n1"))
        await agent.when_idle()
        assert texts(model.requests[0].messages) == ["n1"]
        agent.followup("go")
        await gate.reached()
        agent.steer(notice("n2"))
        gate.open()
        await agent.when_idle()
        assert texts(model.requests[2].messages)[-1] == "n2"
        assert entered(agent)["n2"] == [2]


@pytest.mark.clause("I6")
async def test_a_broad_cancel_keeps_notices_and_does_not_wake_for_them(
    autojump_clock: MockClock,
) -> None:
    """They are facts; the user stopped the work, not the world."""
    gate = Gate()
    model = ScriptedModel(default=["ok"])

    def notice(text: str) -> ak.UserMessage:
        return ak.UserMessage(text, (ak.TextBlock(text),), kind="notice")

    async with opened(model) as agent:

        async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, hold)
        agent.steer(notice("claimed"))
        dropped = agent.followup("m")
        await gate.reached()
        agent.steer(notice("pending"))
        receipt = agent.cancel()
        assert receipt.dropped == (dropped.id,)
        assert receipt.kept == ("claimed", "pending")
        await agent.when_idle()
        gate.open()
        await wait_all_tasks_blocked()
        assert agent.status == "idle"
        assert not model.requests
        agent.followup("next")
        await agent.when_idle()
        assert texts(model.requests[0].messages) == ["claimed", "pending", "next"]


@pytest.mark.clause("I2b", "I1c")
@pytest.mark.case("INB-06")
@pytest.mark.parametrize("block", range(10))
async def test_steering_around_the_end_of_turns_enters_exactly_one_turn(
    autojump_clock: MockClock, block: int
) -> None:
    """Fifty seeded schedules: accepted is delivered plus pending plus discarded."""
    landed: Counter[str] = Counter()
    for seed in range(block * 50, block * 50 + 50):
        source = random.Random(seed)  # noqa: S311  # a seed, no secret
        model = ScriptedModel(default=["a", "b"])
        async with opened(model) as agent:

            async def send(
                agent: ak.Agent, ids: list[str], verb: str, steps: int
            ) -> None:
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                landed[f"{verb} while {agent.status}"] += 1
                sender = {"followup": agent.followup, "steer": agent.steer}[verb]
                ids.append(sender(f"{verb} {steps}").id)

            ids = [agent.followup("go").id]
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    verb = source.choice(["followup", "steer", "steer"])
                    nursery.start_soon(send, agent, ids, verb, source.randrange(24))
            await agent.when_idle()
            assert not agent.inbox.next_turn
            assert not agent.inbox.next_step
            places = entered(agent)
            assert sorted(places) == sorted(ids)
            assert all(len(turns) == 1 for turns in places.values()), f"seed {seed}"
            shown = texts(model.requests[-1].messages)
            sent = [t for t in shown if t.startswith(("followup", "steer", "go"))]
            assert len(sent) == 5
    assert landed["steer while running"]
    assert landed["steer while idle"]


@pytest.mark.case("INB-02")
async def test_after_a_broad_stop_nothing_that_was_queued_runs(
    autojump_clock: MockClock,
) -> None:
    """The user can stop the machine, and gets back what was waiting."""
    gate = Gate()
    model = ScriptedModel([gate], default=["ok"])
    dropped: list[ak.UserMessage] = []
    async with opened(model) as agent:
        agent.on(ak.InboxDiscarded, lambda payload: dropped.extend(payload.messages))
        agent.followup("m1")
        await gate.reached()
        ids = [agent.followup("m2").id, agent.followup("m3").id]
        assert agent.cancel().dropped == tuple(ids)
        await agent.when_idle()
        assert len(model.requests) == 1
        assert [(m.id, m.text) for m in dropped] == [(ids[0], "m2"), (ids[1], "m3")]
        withdrawn = [
            message_id
            for f in facts(agent)
            if isinstance(f, ak.InboxSpliced) and f.outcome == "discarded"
            for message_id in f.removed
        ]
        assert withdrawn == ids
        agent.followup("m4")
        await agent.when_idle()
        assert texts(model.requests[-1].messages)[-1] == "m4"
        assert len(model.requests) == 2


@pytest.mark.case("INB-03")
@pytest.mark.clause("I2b")
async def test_a_steer_taken_by_a_stopped_turn_is_pending_or_shown_never_neither(
    autojump_clock: MockClock,
) -> None:
    """Whatever the moment of the stop between the claim and the request."""
    places: Counter[str] = Counter()
    for steps in range(14):
        tool_gate = Gate()

        async def body(
            _call: ak.ToolInvocation, gate: Gate = tool_gate
        ) -> ak.ToolOutput:
            await gate.wait()
            return ak.ToolOutput.of("done")

        async def yielding(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            return ak.Enter(payload.messages)

        model = ScriptedModel([call("t")], default=["ok"])
        async with opened(model, [Probe("t", body)]) as agent:
            agent.followup("go")
            await tool_gate.reached()
            agent.on(ak.PreStep, yielding)
            steered = agent.steer("s").id
            tool_gate.open()
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            agent.cancel(keep_inbox=True)
            await agent.when_idle()
            pending = [m.id for m in agent.inbox.next_step] == [steered]
            shown = steered in entered(agent)
            assert pending != shown
            places["pending" if pending else "shown"] += 1
            agent.followup("x")
            await agent.when_idle()
            assert texts(model.requests[-1].messages).count("s") == 1
    assert len(places) == 2
