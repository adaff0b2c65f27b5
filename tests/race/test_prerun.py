"""A stop that comes before its turn: before the claim, between turns, in a loop."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, Hold, ScriptedModel
from agentkernel.testing.log_check import check_log
from tests.race.rig import endings, entered, facts


@pytest.mark.clause("C8a", "C12a", "C12d")
@pytest.mark.case("CAN-01")
@pytest.mark.parametrize("keep_inbox", [False, True])
async def test_work_cancelled_in_the_tick_of_its_send_opens_no_turn(
    agent: ak.Agent, model: ScriptedModel, *, keep_inbox: bool
) -> None:
    """The receipt says that no turn was hit, and what was dropped or kept."""
    asked: list[int | None] = []
    agent.on(ak.CancelRequested, lambda p: asked.append(p.turn))
    sent = agent.followup("go")
    statuses: list[str] = [agent.status]
    receipt = agent.cancel(keep_inbox=keep_inbox)
    ids = (sent.id,)
    assert receipt == ak.CancelReceipt(
        effective=True,
        dropped=() if keep_inbox else ids,
        kept=ids if keep_inbox else (),
    )
    with trio.fail_after(5):
        await agent.when_idle()
    assert asked == [None]
    assert model.requests == []
    assert facts(agent, ak.TurnStarted) == []
    statuses.append(agent.status)
    assert statuses == ["running", "idle"]
    if keep_inbox:
        assert agent.wake()
        await agent.when_idle()
        assert entered(agent) == ["go"]
    else:
        assert (await agent.outcome(sent.id)).kind == "discarded"


@pytest.mark.clause("C8a", "C3a")
@pytest.mark.case("CAN-01")
async def test_cancel_from_the_running_notification_opens_no_turn(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The holder is there before `running` is told, so this stop has something to hit."""
    receipts: list[ak.CancelReceipt] = []
    agent.on(
        ak.StatusChanged,
        lambda p: (
            receipts.append(agent.cancel(keep_inbox=True))
            if p.status == "running"
            else None
        ),
    )
    agent.followup("go")
    await agent.when_idle()
    assert [r.effective for r in receipts] == [True]
    assert facts(agent, ak.TurnStarted) == []
    assert len(agent.inbox.next_turn) == 1


@pytest.mark.clause("C8c", "C2a")
@pytest.mark.parametrize("where", ["listener", "one tick"])
async def test_replacement_runs_in_the_same_interval_under_a_fresh_holder(
    agent: ak.Agent, model: ScriptedModel, where: str
) -> None:
    """Cancel and replace before the claim: the stopped holder is thrown away."""
    statuses: list[str] = []
    done: list[int] = []

    def replace(payload: ak.StatusChanged) -> None:
        statuses.append(payload.status)
        if where == "listener" and payload.status == "running" and not done:
            done.append(1)
            assert agent.cancel().effective
            agent.followup("replacement")

    agent.on(ak.StatusChanged, replace)
    old = agent.followup("old")
    if where == "one tick":
        assert agent.cancel().effective
        agent.followup("replacement")
    await agent.when_idle()
    assert statuses == ["running", "idle"]
    assert entered(agent) == ["replacement"]
    assert endings(agent) == [(1, "completed")]
    signal = model.requests[0].signal
    assert signal is not None
    assert not signal.cancelled
    assert (await agent.outcome(old.id)).kind == "discarded"


@pytest.mark.clause("C8c", "C5a")
async def test_replacement_can_be_cancelled_and_replaced_again(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Each cancel finds prospective work, though the holder was stopped before."""
    receipts: list[ak.CancelReceipt] = []
    for text in ("a", "b", "c"):
        agent.followup(text)
        receipts.append(agent.cancel())
    agent.followup("d")
    await agent.when_idle()
    assert [r.effective for r in receipts] == [True, True, True]
    assert [len(r.dropped) for r in receipts] == [1, 1, 1]
    assert entered(agent) == ["d"]


@pytest.mark.clause("C8b", "C3d")
@pytest.mark.parametrize("keep_inbox", [False, True])
async def test_cancel_between_a_finished_turn_and_the_next_claim(
    model: ScriptedModel, *, keep_inbox: bool
) -> None:
    """A slow flush with input behind it: the queue is hit, the finished turn is not."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        holds: list[Hold] = []
        agent.on(
            ak.Appended,
            lambda p: (
                holds.append(store.hold("write"))
                if isinstance(p.event.data, ak.TurnEnded) and not holds
                else None
            ),
        )
        agent.followup("first")
        second = agent.followup("second")
        await wait_all_tasks_blocked()
        assert endings(agent) == [(1, "completed")]
        receipt = agent.cancel(keep_inbox=keep_inbox)
        assert receipt == ak.CancelReceipt(
            effective=True,
            dropped=() if keep_inbox else (second.id,),
            kept=(second.id,) if keep_inbox else (),
        )
        assert not agent.cancel(keep_inbox=True).effective
        holds[0].open()
        await agent.when_idle()
        assert endings(agent) == [(1, "completed")]
        assert entered(agent) == ["first"]
        assert len(agent.inbox.next_turn) == int(keep_inbox)
        check_log(agent.session.events)


@pytest.mark.clause("C8b", "C8c")
async def test_replacement_sent_between_two_turns_runs_in_the_same_interval(
    model: ScriptedModel,
) -> None:
    """No turn was stopped, so there is nothing to converge from."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        holds: list[Hold] = []
        statuses: list[str] = []
        agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
        agent.on(
            ak.Appended,
            lambda p: (
                holds.append(store.hold("write"))
                if isinstance(p.event.data, ak.TurnEnded) and not holds
                else None
            ),
        )
        agent.followup("first")
        agent.followup("second")
        await wait_all_tasks_blocked()
        agent.cancel()
        agent.followup("replacement")
        holds[0].open()
        await agent.when_idle()
        assert statuses == ["running", "idle"]
        assert entered(agent) == ["first", "replacement"]


@pytest.mark.clause("C8d")
@pytest.mark.parametrize("when", ["running", "idle"])
async def test_listener_that_sends_and_cancels_for_ever_starves_nobody(
    agent: ak.Agent, when: str
) -> None:
    """Each running interval passes a checkpoint, so that others get their turn."""
    rounds = 0
    stop = False

    def again(payload: ak.StatusChanged) -> None:
        nonlocal rounds
        if payload.status == when and not stop:
            rounds += 1
            if when == "running":
                agent.cancel()
                agent.followup("again")
                agent.cancel()
            else:
                agent.followup("again")
                agent.cancel()

    def restart(payload: ak.StatusChanged) -> None:
        if when == "running" and payload.status == "idle" and not stop:
            agent.followup("again")

    agent.on(ak.StatusChanged, again)
    agent.on(ak.StatusChanged, restart)
    agent.followup("go")
    ticks = 0
    while rounds < 50:
        await trio.lowlevel.checkpoint()
        ticks += 1
        assert ticks < 1000
    stop = True
    await agent.when_idle()
    assert ticks >= 25


@pytest.mark.clause("C8a", "C3a")
async def test_race_of_cancel_against_the_claim_goes_both_ways(
    model: ScriptedModel,
) -> None:
    """Cancel after n checkpoints: no turn, then an aborted one, then a finished one."""
    seen: list[str] = []
    for ticks in range(40):
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", ScriptedModel(["a", "b"]))
            agent = (await kernel.create("s", model="scripted")).agent
            sent = agent.followup("go")
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            receipt = agent.cancel()
            await agent.when_idle()
            check_log(agent.session.events)
            kinds = endings(agent)
            if receipt.turn is not None:
                assert kinds == [(1, "aborted")]
                seen.append("aborted")
            elif receipt.effective:
                assert kinds == []
                assert receipt.dropped == (sent.id,)
                seen.append("no turn")
            else:
                assert kinds == [(1, "completed")]
                seen.append("completed")
    assert set(seen) == {"no turn", "aborted", "completed"}


@pytest.mark.clause("C8a", "S2a")
async def test_waiters_are_released_when_the_only_work_was_cancelled_before_it_ran(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Somebody who waits for idle, or for the outcome, must not wait for ever."""
    sent = agent.followup("go")
    released: list[str] = []

    async def idle() -> None:
        await agent.when_idle()
        released.append("idle")

    async def outcome() -> None:
        released.append((await agent.outcome(sent.id)).kind)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(idle)
        nursery.start_soon(outcome)
        agent.cancel()
    assert sorted(released) == ["discarded", "idle"]
    assert model.requests == []


@pytest.mark.clause("C13a", "C8a")
async def test_gate_of_a_model_is_never_reached_by_cancelled_work(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A stop between acceptance and the model call is not lost."""
    gate = Gate()
    model.add([gate])
    agent.on(
        ak.Appended,
        lambda p: agent.cancel() if isinstance(p.event.data, ak.TurnStarted) else None,
    )
    agent.followup("go")
    await agent.when_idle()
    assert gate.arrivals == 0
    assert model.requests == []
    assert endings(agent) == [(1, "aborted")]
