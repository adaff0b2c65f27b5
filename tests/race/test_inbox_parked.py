"""Input that a failed, stopped or closed agent leaves for later."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel
from tests.race.parts import facts, opened, stored, texts


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


@pytest.mark.clause("I4b", "I6")
@pytest.mark.parametrize("alone", [False, True], ids=["with a prompt", "alone"])
async def test_a_notice_outlives_the_rejection_of_what_it_was_claimed_with(
    autojump_clock: MockClock,
    alone: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """It is a fact that happened: nobody tells it a second time.

    It waits parked: a notice that woke its agent after each rejection would go on
    for ever.
    """
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:
        rejected = 0

        async def reject(payload: ak.PreStep, following: object) -> ak.Reject:
            nonlocal rejected
            await trio.lowlevel.checkpoint()
            rejected += 1
            return ak.Reject("no")

        unregister = agent.on(ak.PreStep, reject)
        told = agent.notice("the build failed")
        asked = None if alone else agent.followup("bad")
        await agent.when_idle()
        await wait_all_tasks_blocked()
        assert rejected == 1
        assert [m.id for m in agent.inbox.next_step] == [told.id]
        assert (await agent.outcome(told.id)).kind == "blocked"
        if asked is not None:
            assert (await agent.outcome(asked.id)).kind == "blocked"
        unregister()
        agent.followup("good")
        await agent.when_idle()
        assert entered(agent)[told.id] == [2]
        assert (await agent.outcome(told.id)).kind == "completed"
        assert texts(model.requests[-1].messages) == ["the build failed", "good"]
        splices = [f for f in facts(agent) if isinstance(f, ak.InboxSpliced)]
        outcomes = [
            f.outcome
            for f in splices
            if told.id in f.removed or any(m.id == told.id for m in f.inserted)
        ]
        assert outcomes == [None, "claimed", "returned", "claimed"]


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


@pytest.mark.clause("I1a", "I6")
async def test_a_notice_that_is_to_be_parked_waits_for_a_wake_which_is_enough() -> None:
    """It is no passive input: a wake alone drains it, and it causes a step."""
    gate = Gate()
    model = ScriptedModel(["heard"], ["going ", gate], ["and this"])
    async with opened(model) as agent:
        statuses: list[str] = []
        agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
        first = agent.notice("first", parked=True)
        assert agent.notice(agent.inbox.next_step[0], parked=True).duplicate
        await wait_all_tasks_blocked()
        assert (statuses, agent.status) == ([], "idle")
        assert agent.wake()
        await agent.when_idle()
        assert entered(agent) == {first.id: [1]}
        agent.followup("go")
        await gate.reached()
        agent.notice("second", parked=True)
        gate.open()
        await agent.when_idle()
    assert texts(model.requests[2].messages)[-1] == "second"


@pytest.mark.clause("C6b", "I6")
async def test_a_notice_that_is_to_be_parked_is_not_latched() -> None:
    """What comes after a stop and asks for nothing leaves the agent idle."""
    gate = Gate()
    async with opened(ScriptedModel([gate])) as agent:
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        news = agent.notice("news", parked=True)
        await agent.when_idle()
        await wait_all_tasks_blocked()
        assert agent.status == "idle"
        assert [m.id for m in agent.inbox.next_step] == [news.id]
