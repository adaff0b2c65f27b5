"""Pending input against a running agent: who claims what, when, and what is left."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from trio.testing import MockClock, assert_no_checkpoints, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.faulty import FaultyStore, Hold
from tests.race.parts import Probe, after, facts, once, opened, stored, texts


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


@pytest.mark.clause("I1c", "I4a")
@pytest.mark.parametrize("ending", ["error", "blocked"])
async def test_input_of_a_turn_that_failed_is_parked_until_a_wake(
    autojump_clock: MockClock, ending: str
) -> None:
    """A queue that ran on after a failure would act on what was never done."""
    gate = Gate()
    model = ScriptedModel(default=["ok"])
    if ending == "error":
        model.add([gate, ak.ModelError("down")])
    async with opened(model) as agent:

        async def reject(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Reject("no") if payload.turn == 1 else ak.Enter(payload.messages)

        if ending == "blocked":
            agent.on(ak.PreStep, reject)
        first = agent.followup("m1")
        second = agent.followup("m2")
        await gate.reached()
        steered = agent.steer("s")
        gate.open()
        await agent.when_idle()
        assert (await agent.outcome(first.id)).kind == ending
        assert [m.id for m in agent.inbox.next_turn] == [second.id]
        assert [m.id for m in agent.inbox.next_step] == [steered.id]
        requests = len(model.requests)
        await wait_all_tasks_blocked()
        assert len(model.requests) == requests
        assert agent.wake()
        await agent.when_idle()
        assert (await agent.outcome(second.id)).kind == "completed"
        assert entered(agent)[steered.id] == [2]


@pytest.mark.clause("I4a")
@pytest.mark.case("INB-07")
async def test_input_after_the_end_of_a_failed_turn_is_a_wake_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """What is sent once the failure is on record drains the queue, front first."""
    model = ScriptedModel([ak.ModelError("down")], default=["ok"])
    async with opened(model) as agent:

        def send_once(payload: ak.Appended) -> None:
            fact = payload.event.data
            if isinstance(fact, ak.TurnEnded) and fact.reason.kind == "error":
                agent.followup("after")

        agent.on(ak.Appended, send_once)
        agent.followup("m1")
        agent.followup("m2")
        await agent.when_idle()
        assert texts(model.requests[-1].messages)[-3:] == ["m2", "ok", "after"]


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


@pytest.mark.clause("I2c", "I4b")
async def test_every_way_out_of_the_inbox_has_its_outcome_in_the_log(
    autojump_clock: MockClock,
) -> None:
    """Who reads the log later can tell what became of each message, and why."""
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:

        async def decide(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await trio.lowlevel.checkpoint()
            text = payload.messages[0].text
            if text == "reject":
                return ak.Reject("no")
            if text == "consume":
                return ak.Enter(())
            if text == "return":
                agent.cancel(keep_inbox=True)
                await trio.lowlevel.checkpoint()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, decide)
        ids: dict[str, str] = {}
        for text in ("reject", "consume", "return", "enter"):
            ids[text] = agent.followup(text).id
            await agent.when_idle()
            if text == "return":
                assert [m.id for m in agent.inbox.next_turn] == [ids[text]]
                ids["discard"] = ids[text]
                agent.inbox.remove(ids[text])
        outcomes: dict[str, list[str | None]] = {}
        for fact in facts(agent):
            if isinstance(fact, ak.InboxSpliced):
                for message_id in (*fact.removed, *(m.id for m in fact.inserted)):
                    outcomes.setdefault(message_id, []).append(fact.outcome)
        assert outcomes == {
            ids["reject"]: [None, "claimed", "rejected"],
            ids["consume"]: [None, "claimed", "consumed"],
            ids["return"]: [None, "claimed", "returned", "discarded"],
            ids["enter"]: [None, "claimed"],
        }
        assert (await agent.outcome(ids["reject"])).kind == "blocked"
        assert (await agent.outcome(ids["consume"])).kind == "completed"
        assert (await agent.outcome(ids["return"])).kind == "discarded"


@pytest.mark.clause("I4b")
async def test_an_abort_without_keep_discards_claimed_input_and_lists_it(
    autojump_clock: MockClock,
) -> None:
    """The receipt names what the turn had taken and not yet shown to the model."""
    gate = Gate()
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, hold)
        claimed = agent.followup("claimed")
        pending = agent.followup("pending")
        await gate.reached()
        receipt = agent.cancel()
        assert receipt.dropped == (claimed.id, pending.id)
        assert receipt.turn == 1
        await agent.when_idle()
        assert not entered(agent)
        assert (await agent.outcome(claimed.id)).kind == "discarded"


@pytest.mark.clause("I4b")
async def test_a_failure_before_the_step_puts_claimed_input_back(
    autojump_clock: MockClock,
) -> None:
    """A listener that raises must not cost the user the message."""
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def fail(_payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("broken listener")

        unregister = agent.on(ak.PreStep, fail)
        first, second = agent.followup("a"), agent.followup("b")
        steered = agent.inject("i")
        await agent.when_idle()
        assert [m.id for m in agent.inbox.next_turn] == [first.id, second.id]
        assert [m.id for m in agent.inbox.next_step] == [steered.id]
        assert len([f for f in facts(agent) if isinstance(f, ak.TurnEnded)]) == 1
        unregister()
        agent.wake()
        await agent.when_idle()
        assert entered(agent) == {first.id: [2], second.id: [3], steered.id: [2]}


@pytest.mark.clause("I4c", "I3a")
@pytest.mark.parametrize("way", ["dispose", "cancelled"])
async def test_the_end_of_an_agent_leaves_claimed_and_pending_input_to_a_resume(
    autojump_clock: MockClock, way: str
) -> None:
    """Closing the program is no answer to what the user has asked for."""
    store, gate = ak.MemoryStore(), Gate()
    ids: list[str] = []
    with trio.CancelScope() as scope:
        async with opened(ScriptedModel(default=["ok"]), store=store) as agent:

            async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
                await gate.wait()
                return ak.Enter(payload.messages)

            agent.on(ak.PreStep, hold)
            ids += [agent.inject("i").id, agent.followup("a").id]
            ids.append(agent.followup("b").id)
            await gate.reached()
            if way == "cancelled":
                scope.cancel()
                await trio.lowlevel.checkpoint()
    model = ScriptedModel(default=["ok"])
    async with opened(model, store=store) as agent:
        await wait_all_tasks_blocked()
        assert agent.status == "idle"
        assert not model.requests
        assert [m.id for m in agent.inbox.next_step] == ids[:1]
        assert [m.id for m in agent.inbox.next_turn] == ids[1:]
        agent.wake()
        await agent.when_idle()
        assert texts(model.requests[-1].messages) == ["i", "a", "ok", "b"]


@pytest.mark.clause("I3b", "I5a")
@pytest.mark.case("INB-10")
async def test_an_id_is_accepted_once_in_the_life_of_a_session(
    autojump_clock: MockClock,
) -> None:
    """A client that repeats a send whose answer was lost causes no second turn."""
    store = ak.MemoryStore()
    model = ScriptedModel(default=["ok"])
    message = ak.UserMessage("K", (ak.TextBlock("pay"),), meta={"to": "you"})
    other = ak.UserMessage("K", (ak.TextBlock("pay twice"),), meta={"to": "you"})
    async with opened(model, store=store) as agent:
        first = agent.followup(message)
        assert first == ak.Sent("K", first.seq)
        for send in (agent.followup, agent.steer, agent.inject):
            again = send(message)
            assert again.duplicate
            assert again.seq >= first.seq
            with pytest.raises(ak.MessageConflictError):
                send(other)
        outcome = await agent.outcome("K")
        assert agent.followup(message).duplicate
        assert await agent.outcome("K") == outcome
        await agent.when_idle()
    async with opened(model, store=store) as agent:
        assert agent.followup(message).duplicate
        with pytest.raises(ak.MessageConflictError):
            agent.followup(other)
        assert await agent.outcome("K") == outcome
        await agent.when_idle()
    assert len(model.requests) == 1


@pytest.mark.clause("I3b", "I1a")
@pytest.mark.case("INB-10")
@pytest.mark.parametrize("parked_by", ["cancel", "restart"])
async def test_sending_a_parked_message_again_wakes_the_agent(
    autojump_clock: MockClock, parked_by: str
) -> None:
    """Else a client's repeat after a crash would wait for an outcome for ever."""
    store = ak.MemoryStore()
    model = ScriptedModel(default=["ok"])
    message = ak.UserMessage("K", (ak.TextBlock("pay"),))
    async with opened(model, store=store) as agent:
        agent.followup(message)
        agent.cancel(keep_inbox=True)
        await agent.when_idle()
        if parked_by == "cancel":
            assert agent.inject(message).duplicate
            assert agent.status == "idle"
            assert agent.followup(message).duplicate
            assert (await agent.outcome("K")).kind == "completed"
    if parked_by == "restart":
        async with opened(model, store=store) as agent:
            assert agent.followup(message).duplicate
            assert (await agent.outcome("K")).kind == "completed"
    assert len(model.requests) == 1


@pytest.mark.clause("I3b")
async def test_a_discarded_id_stays_discarded(autojump_clock: MockClock) -> None:
    """A stop that dropped a message is not undone by a client that repeats it."""
    model = ScriptedModel(default=["ok"])
    message = ak.UserMessage("K", (ak.TextBlock("pay"),))
    async with opened(model) as agent:
        agent.followup(message)
        assert agent.cancel().dropped == ("K",)
        assert agent.followup(message).duplicate
        await agent.when_idle()
        assert (await agent.outcome("K")).kind == "discarded"
        assert not model.requests


@pytest.mark.clause("I3b")
async def test_a_replaced_message_is_known_by_the_body_it_was_sent_with(
    autojump_clock: MockClock,
) -> None:
    """An edit in the queue is not the sender's: the sender's repeat is a repeat."""
    gate = Gate()
    model = ScriptedModel([gate, "ok"], default=["ok"])
    message = ak.UserMessage("K", (ak.TextBlock("draft"),))
    async with opened(model) as agent:
        agent.followup("busy")
        await gate.reached()
        agent.followup(message)
        agent.inbox.replace("K", "final")
        assert agent.followup(message).duplicate
        gate.open()
        await agent.when_idle()
        assert texts(model.requests[-1].messages)[-1] == "final"


@pytest.mark.clause("I3c")
async def test_pending_messages_are_listed_replaced_removed_and_moved_by_id(
    autojump_clock: MockClock,
) -> None:
    """A client shows the queue and lets its user rearrange it."""
    gate = Gate()
    model = ScriptedModel([gate, "ok"], default=["ok"])
    async with opened(model) as agent:
        agent.followup("busy")
        await gate.reached()
        a, b, c = (agent.followup(text).id for text in "abc")
        s = agent.inject("s").id
        inbox = agent.inbox
        assert [m.id for m in inbox.next_turn] == [a, b, c]
        inbox.move(c, 0)
        assert [m.text for m in inbox.next_turn] == ["c", "a", "b"]
        inbox.move(c, 99)
        assert [m.text for m in inbox.next_turn] == ["a", "b", "c"]
        inbox.replace(b, "B")
        assert [m.text for m in inbox.next_turn] == ["a", "B", "c"]
        assert inbox.remove(a).text == "a"
        inbox.move(c, 0, queue="next_step")
        assert [m.id for m in inbox.next_step] == [c, s]
        for gone in (a, "nobody"):
            with pytest.raises(ak.MessageNotPendingError):
                inbox.remove(gone)
            with pytest.raises(ak.MessageNotPendingError):
                inbox.replace(gone, "x")
            with pytest.raises(ak.MessageNotPendingError):
                inbox.move(gone, 0)
        gate.open()
        await agent.when_idle()
        assert texts(model.requests[-1].messages) == [
            "busy",
            "ok",
            "c",
            "s",
            "ok",
            "B",
        ]
        assert (await agent.outcome(a)).kind == "discarded"


@pytest.mark.clause("I3c")
async def test_a_claimed_message_is_not_pending_any_more(
    autojump_clock: MockClock,
) -> None:
    """What a turn has taken can be stopped with the turn, not edited under it."""
    gate = Gate()
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, hold)
        sent = agent.followup("a")
        await gate.reached()
        assert not agent.inbox.next_turn
        with pytest.raises(ak.MessageNotPendingError):
            agent.inbox.remove(sent.id)
        gate.open()


@pytest.mark.clause("I5b")
async def test_an_outcome_waits_for_the_flush_of_its_turn(
    autojump_clock: MockClock,
) -> None:
    """Who hears `completed` may rely on it after a crash."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(["ok"]), store=store) as agent:
        holds: list[Hold] = []
        once(agent, "turn/end", lambda: holds.append(store.hold("write")))
        sent = agent.followup("a")
        await wait_all_tasks_blocked()
        (hold,) = holds
        assert hold.reached.is_set()
        got: list[ak.Outcome] = []

        async def ask() -> None:
            got.append(await agent.outcome(sent.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            assert after(agent, "turn/end") == ["turn/end"]
            assert not got
            hold.open()
        assert got[0].kind == "completed"
        assert got[0].turn == 1
        assert got[0].text == "ok"
        assert agent.session.durable_seq == agent.session.last_seq


@pytest.mark.clause("I5b")
async def test_outcomes_of_unknown_and_abandoned_messages_are_errors(
    autojump_clock: MockClock,
) -> None:
    """Nobody waits for ever for a message that cannot end here."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel())
        handle = await kernel.create("s", model="m")
        agent = handle.agent
        with pytest.raises(ak.UnknownNameError):
            await agent.outcome("nobody")
        sent = agent.inject("parked")
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(ak.AgentDisposedError):
                    await agent.outcome(sent.id)

            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            await handle.dispose()


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


@pytest.mark.clause("I4b")
@pytest.mark.case("INB-09")
async def test_messages_of_failed_turns_stay_in_the_history(
    autojump_clock: MockClock,
) -> None:
    """A transcript is not one-sided because the provider was down."""
    store = ak.MemoryStore()
    model = ScriptedModel(default=[ak.ModelError("down")])
    async with opened(model, store=store) as agent:
        for text in ("a", "b", "c"):
            sent = agent.followup(text)
            await agent.session.flush(sent.seq)
            assert agent.session.durable_seq >= sent.seq
            await agent.when_idle()
    working = ScriptedModel(["ok"])
    async with opened(working, store=store) as agent:
        agent.followup("d")
        await agent.when_idle()
    assert texts(working.requests[0].messages) == ["a", "b", "c", "d"]
    endings = [e.data for e in await stored(store) if isinstance(e.data, ak.TurnEnded)]
    assert [e.reason.kind for e in endings] == ["error"] * 3 + ["completed"]


@pytest.mark.clause("I4a")
@pytest.mark.case("INB-01")
async def test_a_stop_that_keeps_the_queue_runs_each_message_once_later(
    autojump_clock: MockClock,
) -> None:
    """They stay visible, in order and durable, and none is run twice."""
    store, gate = ak.MemoryStore(), Gate()
    model = ScriptedModel([gate], default=["ok"])
    async with opened(model, store=store) as agent:
        agent.followup("m1")
        await gate.reached()
        ids = [agent.followup("m2").id, agent.followup("m3").id]
        receipt = agent.cancel(keep_inbox=True)
        assert receipt.kept == tuple(ids)
        await agent.when_idle()
        assert [m.id for m in agent.inbox.next_turn] == ids
        kept = [
            e.data for e in await stored(store) if isinstance(e.data, ak.InboxSpliced)
        ]
        assert not any(set(k.removed) & set(ids) for k in kept)
        agent.wake()
        await agent.when_idle()
        assert {i: entered(agent)[i] for i in ids} == {ids[0]: [2], ids[1]: [3]}


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
