"""Messages by their ids: sent twice, edited while they wait, and what became of them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel
from agentkernel.testing.faulty import FaultyStore, Hold
from tests.race.parts import after, once, opened, texts


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
