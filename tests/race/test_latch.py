"""Input around a stop: what the stop drops, what waits for the agent to converge."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, endings, entered, facts


def _notice(message_id: str) -> ak.UserMessage:
    return ak.UserMessage(message_id, (ak.TextBlock("a job ended"),), kind="notice")


@pytest.mark.clause("C6a")
@pytest.mark.parametrize("keep_inbox", [False, True])
@pytest.mark.parametrize("verb", ["followup", "steer"])
async def test_input_sent_by_a_listener_of_the_request_belongs_to_that_stop(
    agent: ak.Agent, model: ScriptedModel, verb: str, *, keep_inbox: bool
) -> None:
    """It is dropped with the rest, or parked with the rest; it starts nothing."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    sent: list[ak.Sent] = []
    agent.on(
        ak.CancelRequested, lambda _: sent.append(getattr(agent, verb)("listener"))
    )
    receipt = agent.cancel(keep_inbox=keep_inbox)
    ids = (sent[0].id,)
    assert receipt.dropped == (() if keep_inbox else ids)
    assert receipt.kept == (ids if keep_inbox else ())
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert len(model.requests) == 1
    assert agent.status == "idle"
    if keep_inbox:
        assert agent.wake()
        await agent.when_idle()
        assert entered(agent) == ["runs", "listener"]
    check_log(agent.session.events)


@pytest.mark.clause("C6a", "C5a")
async def test_input_sent_by_a_listener_of_an_idle_agents_cancel_is_dropped_too(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The message woke the agent, and the same cancel takes the wake with it."""
    agent.inject("parked")
    agent.on(ak.CancelRequested, lambda _: agent.followup("late"))
    receipt = agent.cancel()
    assert len(receipt.dropped) == 2
    assert receipt.turn is None
    await agent.when_idle()
    assert model.requests == []
    assert endings(agent) == []


@pytest.mark.clause("C6b", "C6c")
@pytest.mark.parametrize("verb", ["followup", "steer"])
@pytest.mark.parametrize("keep_inbox", [False, True])
async def test_input_sent_by_an_observer_of_the_signal_runs_once_the_agent_converged(
    agent: ak.Agent, model: ScriptedModel, verb: str, *, keep_inbox: bool
) -> None:
    """It is put at the end of `next_turn`, whatever the verb, and needs no other wake."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.followup("queued")
    agent.steer("steered")
    first = model.requests[0].signal
    assert first is not None
    places: list[tuple[int, int]] = []

    def send(_: ak.StopReason) -> None:
        getattr(agent, verb)("latched")
        places.append((len(agent.inbox.next_turn), len(agent.inbox.next_step)))

    first.on_cancel(send)
    statuses: list[str] = []
    agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
    agent.cancel(keep_inbox=keep_inbox)
    await agent.when_idle()
    assert places == ([(2, 1)] if keep_inbox else [(1, 0)])
    assert statuses == ["idle", "running", "idle"]
    assert entered(agent) == (
        ["runs", "steered", "queued", "latched"] if keep_inbox else ["runs", "latched"]
    )
    last = model.requests[1].signal
    assert last is not None
    assert last is not first
    assert not last.cancelled
    check_log(agent.session.events)


@pytest.mark.clause("C6b", "C6c", "S2a")
@pytest.mark.case("CAN-05", "CAN-12")
async def test_send_right_after_a_cancel_runs_after_the_old_turn_and_once(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Three rounds: send, first output, cancel, send; clean-up takes two seconds."""

    async def slow(_: ak.ToolInvocation) -> ak.ToolOutput:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
        raise AssertionError

    agent.tools.add(BodyTool("t", slow))
    model.add(
        [call("t")], ["after"] * 1, [call("t")], ["after"], [call("t")], ["after"]
    )
    for number in range(3):
        agent.followup(f"old {number}")
        await wait_all_tasks_blocked(0.01)
        began = trio.current_time()
        agent.cancel()
        agent.followup(f"new {number}")
        await agent.when_idle()
        assert trio.current_time() - began == 2
    assert entered(agent) == [
        text for n in range(3) for text in (f"old {n}", f"new {n}")
    ]
    assert [kind for _, kind in endings(agent)] == ["aborted", "completed"] * 3
    check_log(agent.session.events)


@pytest.mark.clause("C6b")
async def test_latched_input_waits_for_the_aborted_turns_record_and_its_flush(
    model: ScriptedModel,
) -> None:
    """The replacement is claimed only when the ending of the old turn is on disk."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        model.add([Gate()])
        agent.followup("old")
        await wait_all_tasks_blocked()
        hold = store.hold("write")
        agent.cancel()
        agent.followup("new")
        await wait_all_tasks_blocked()
        assert hold.reached.is_set()
        assert endings(agent) == [(1, "aborted")]
        assert len(facts(agent, ak.TurnStarted)) == 1
        assert agent.status == "running"
        steered = agent.steer("during the flush")
        assert agent.inbox.next_step == ()
        assert agent.inbox.next_turn[-1].id == steered.id
        hold.open()
        await agent.when_idle()
        assert entered(agent) == ["old", "new", "during the flush"]


@pytest.mark.clause("C6b")
async def test_wake_after_a_stop_is_latched_if_anything_is_pending(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """`wake` says whether it latched a drain; with nothing pending it does not."""
    model.add([Gate()], ["two"], [Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.followup("kept")
    agent.cancel(keep_inbox=True)
    assert agent.wake() is True
    assert agent.wake() is False
    await agent.when_idle()
    assert entered(agent) == ["runs", "kept"]
    agent.followup("again")
    await wait_all_tasks_blocked()
    agent.cancel()
    assert agent.wake() is False
    await agent.when_idle()
    assert len(model.requests) == 3


@pytest.mark.clause("C6b", "I1d")
async def test_injected_input_after_a_stop_latches_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """What never causes a step does not cause one because of a stop."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.cancel()
    agent.inject("rides")
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert len(model.requests) == 1
    assert [m.text for m in agent.inbox.next_step] == ["rides"]


@pytest.mark.clause("C6d", "C12c")
@pytest.mark.parametrize("when", ["running", "idle"])
async def test_later_broad_cancel_takes_the_latch_with_the_inbox(
    agent: ak.Agent, model: ScriptedModel, when: str
) -> None:
    """Before the agent is idle, and while it says that it is."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.cancel()
    latched = agent.followup("latched")
    receipts: list[ak.CancelReceipt] = []
    if when == "running":
        receipts.append(agent.cancel())
    else:
        agent.on(
            ak.StatusChanged,
            lambda p: receipts.append(agent.cancel()) if p.status == "idle" else None,
        )
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert receipts[0] == ak.CancelReceipt(effective=True, dropped=(latched.id,))
    assert len(model.requests) == 1
    assert endings(agent) == [(1, "aborted")]


@pytest.mark.clause("C6d")
async def test_latch_replays_only_what_is_still_pending(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A message that was withdrawn meanwhile does not start what was parked."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.followup("parked")
    agent.cancel(keep_inbox=True)
    latched = agent.followup("latched")
    agent.inbox.remove(latched.id)
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert len(model.requests) == 1
    assert [m.text for m in agent.inbox.next_turn] == ["parked"]


@pytest.mark.clause("C6d", "C7a")
async def test_keep_inbox_after_a_latch_parks_the_latched_message(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A second stop finds prospective work and parks it, in order."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.cancel()
    latched = agent.followup("latched")
    assert agent.cancel(keep_inbox=True) == ak.CancelReceipt(
        effective=True, kept=(latched.id,)
    )
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert len(model.requests) == 1
    assert agent.wake()
    await agent.when_idle()
    assert entered(agent) == ["runs", "latched"]


@pytest.mark.clause("C6e")
async def test_sends_after_disposal_began_are_logged_and_parked(
    model: ScriptedModel,
) -> None:
    """A resume finds them; nothing of them runs, and the agent is not woken again."""
    store = ak.MemoryStore()
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        handle = await kernel.create("s", model="scripted")
        agent = handle.agent
        model.add([Gate()])
        agent.followup("runs")
        await wait_all_tasks_blocked()
        signal = model.requests[0].signal
        assert signal is not None
        sent: list[ak.Sent] = []
        signal.on_cancel(lambda _: sent.append(agent.followup("observer")))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(handle.dispose)
            await trio.lowlevel.checkpoint()
            while not agent.session.closed:
                sent.append(agent.steer(f"late {len(sent)}"))
                await trio.lowlevel.checkpoint()
        for verb in (agent.followup, agent.steer, agent.inject):
            with pytest.raises(ak.AgentDisposedError):
                verb("too late")
        with pytest.raises(ak.AgentDisposedError):
            agent.wake()
        assert len(sent) > 1
        assert endings(agent) == [(1, "disposed")]
        again = (await kernel.resume("s")).agent
        assert again.status == "idle"
        pending = {m.id for m in (*again.inbox.next_turn, *again.inbox.next_step)}
        assert pending == {s.id for s in sent}
        check_log(await store.read("s"))
    assert len(model.requests) == 1


@pytest.mark.clause("C6e", "I1b")
async def test_send_to_an_idle_agent_that_is_being_disposed_starts_nothing(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """It is parked: the agent does not even say that it is running."""
    handle = await kernel.create("other", model="scripted")
    statuses: list[str] = []
    handle.agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
    with trio.move_on_after(0):
        await handle.dispose()
    handle.agent.followup("late")
    statuses.append(handle.agent.status)
    await handle.dispose()
    assert statuses == ["idle"]
    assert model.requests == []


@pytest.mark.clause("C6b", "I6")
async def test_notice_after_a_stop_wakes_and_keeps_its_kind_of_place(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A fact that arrives while the agent converges is not lost, and is not a turn's."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    agent.cancel()
    agent.steer(_notice("n"))
    await agent.when_idle()
    assert [m.id for m in agent.inbox.next_step] == []
    record = agent.session.record("n")
    assert record is not None
    assert record.state == "entered"


@pytest.mark.clause("C12b", "C6d")
@pytest.mark.parametrize("keep_inbox", [False, True])
async def test_a_stop_button_pressed_twice_leaves_what_was_typed_in_between(
    agent: ak.Agent, model: ScriptedModel, *, keep_inbox: bool
) -> None:
    """The second press names a turn that is stopped already: it has nothing to do."""
    model.add(["never ends", Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    assert agent.cancel(keep_inbox=keep_inbox, turn=1).turn == 1
    agent.followup("typed")
    again = agent.cancel(keep_inbox=keep_inbox, turn=1)
    assert again == ak.CancelReceipt(effective=False)
    await agent.when_idle()
    assert entered(agent) == ["runs", "typed"]
