"""Where a turn's authority ends, what a receipt says of it, what is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import (
    FaultyStore,
    Gate,
    Hold as StoreHold,
    ScriptedModel,
    call,
)
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

Hold = Callable[[ak.TurnSignal], Awaitable[None]]


@pytest.mark.clause("C3c", "C10a", "C12a")
async def test_receipt_names_the_turn_exactly_when_it_ends_aborted(
    model: ScriptedModel,
) -> None:
    """Cancel at the n-th thing that the agent says, for every n: both must agree.

    The outcomes are counted: the race has to go both ways, or it was none.
    """
    heard = (
        ak.Appended,
        ak.StatusChanged,
        ak.InboxInserted,
        ak.InboxClaimed,
        ak.InboxDiscarded,
    )
    outcomes: list[str] = []
    n = 0
    while True:
        n += 1
        script = ScriptedModel([call("t")], ["one ", "two"], default=["ok"])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", script)
            tool = BodyTool("t", returns_done)
            agent = (await kernel.create("s", model="scripted", tools=[tool])).agent
            count = 0
            receipts: list[tuple[ak.CancelReceipt, bool]] = []

            def act(_: object) -> None:
                nonlocal count
                count += 1
                if count == n:  # noqa: B023  # used within its round
                    ended = bool(facts(agent, ak.TurnEnded))  # noqa: B023  # used within its round
                    receipts.append((agent.cancel(), ended))  # noqa: B023  # used within its round

            for event in heard:
                agent.on(event, act)
            agent.followup("go")
            await agent.when_idle()
            check_log(agent.session.events)
            if not receipts:
                break
            ((receipt, ended),) = receipts
            kinds = endings(agent)
            if receipt.turn is not None:
                assert kinds == [(receipt.turn, "aborted")], n
                assert not ended
                outcomes.append("aborted")
            else:
                assert kinds in ([], [(1, "completed")]), n
                outcomes.append("completed" if kinds else "no turn")
    assert n > 20
    assert {"aborted", "completed", "no turn"} == set(outcomes)
    # Once a turn can no longer be stopped, no later moment can stop it.
    assert outcomes == sorted(outcomes, key=["no turn", "aborted", "completed"].index)


@pytest.mark.clause("C3c", "D1b")
async def test_nothing_comes_between_the_last_check_and_the_end_of_a_turn(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The last thing before `turn/end` can still stop it; the next thing cannot."""
    agent.on(
        ak.Appended,
        lambda p: (
            receipts.append(agent.cancel())
            if isinstance(p.event.data, ak.StepEnded | ak.TurnEnded)
            else None
        ),
    )
    receipts: list[ak.CancelReceipt] = []
    agent.followup("go")
    await agent.when_idle()
    assert [(r.effective, r.turn) for r in receipts] == [(True, 1), (False, None)]
    assert endings(agent) == [(1, "aborted")]
    assert [e.type for e in agent.session.events][-2:] == ["step/end", "turn/end"]


@pytest.mark.clause("C3d", "C3e", "C8b", "C12b")
async def test_cancel_during_a_slow_flush_leaves_the_finished_turn_alone(
    model: ScriptedModel,
) -> None:
    """The turn is over while its flush is blocked, although the agent is running."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        holds: list[StoreHold] = []
        agent.on(
            ak.Appended,
            lambda p: (
                holds.append(store.hold("write"))
                if isinstance(p.event.data, ak.TurnEnded)
                else None
            ),
        )
        sent = agent.followup("go")
        await wait_all_tasks_blocked()
        (hold,) = holds
        assert hold.reached.is_set()
        signal = model.requests[0].signal
        assert signal is not None
        assert agent.status == "running"
        for keep in (False, True):
            assert not agent.cancel(keep_inbox=keep).effective
        assert not agent.cancel(turn=1).effective
        assert not signal.cancelled
        assert agent.session.durable_seq != agent.session.last_seq
        hold.open()
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "completed"
        assert not signal.cancelled


@pytest.mark.clause("C3d")
async def test_observer_of_a_turns_end_cannot_change_it(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """`turn/end` is what it is when it is told; the signal has let go before."""
    model.add(["one"], ["two"])
    receipts: list[ak.CancelReceipt] = []

    def late(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, ak.TurnEnded):
            receipts.append(agent.cancel(turn=payload.event.data.turn))
            receipts.append(agent.cancel(keep_inbox=True))

    agent.on(ak.Appended, late)
    agent.followup("a")
    await agent.when_idle()
    assert [r.effective for r in receipts] == [False, False]
    assert endings(agent) == [(1, "completed")]
    assert not any(r.signal.cancelled for r in model.requests if r.signal)


@pytest.mark.clause("C12b", "C12d")
@pytest.mark.case("CAN-13")
async def test_stop_meant_for_one_turn_never_kills_the_next(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A button pressed late names a turn that is gone; a number comes with turn/start."""
    gate = Gate()
    model.add(["first"], [gate, "second"])
    agent.on(
        ak.StatusChanged,
        lambda p: (
            early.append(agent.cancel(turn=1).effective)
            if p.status == "running" and not early
            else None
        ),
    )
    early: list[bool] = []
    agent.followup("one")
    agent.followup("two")
    await gate.reached()
    assert early == [False]
    assert endings(agent) == [(1, "completed")]
    for turn in (1, 3):
        assert agent.cancel(turn=turn) == ak.CancelReceipt(effective=False)
    gate.open()
    await agent.when_idle()
    assert endings(agent) == [(1, "completed"), (2, "completed")]
    model.add([Gate()])
    agent.followup("three")
    await wait_all_tasks_blocked()
    assert agent.cancel(turn=3).turn == 3
    await agent.when_idle()


@pytest.mark.clause("C7a", "C7b", "I4a")
@pytest.mark.case("INB-01")
async def test_kept_input_is_parked_in_order_and_drained_from_the_front(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Nothing starts by itself; the next wake begins with what was parked."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    kept = [agent.followup(text).id for text in ("b", "c")]
    steered = agent.steer("s").id
    receipt = agent.cancel(keep_inbox=True)
    assert receipt == ak.CancelReceipt(effective=True, turn=1, kept=(steered, *kept))
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert agent.status == "idle"
    assert len(model.requests) == 1
    assert agent.session.durable_seq == agent.session.last_seq
    agent.followup("d")
    await agent.when_idle()
    assert entered(agent) == ["runs", "s", "b", "c", "d"]
    assert endings(agent) == [
        (1, "aborted"),
        *((n, "completed") for n in (2, 3, 4)),
    ]


@pytest.mark.clause("C7c", "I2b")
@pytest.mark.case("INB-03")
async def test_claimed_input_that_entered_no_step_goes_back_to_the_front(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Once it was taken by a later step, and once by a turn that entered nothing."""
    gate = Gate()
    model.add([call("t")], ["ok"])
    held = Gate()
    steps: list[int] = []

    async def hold(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        steps.append(payload.step)
        if payload.step == 2:
            await held.wait()
        return await following(payload)

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    agent.on(ak.PreStep, hold)
    agent.followup("a")
    await gate.reached()
    later = agent.followup("b")
    first, second = agent.steer("s1"), agent.steer("s2")
    gate.open()
    await held.reached()
    taken = len(agent.inbox.next_step)
    receipt = agent.cancel(keep_inbox=True)
    assert receipt.kept == (first.id, second.id, later.id)
    assert taken == 0
    assert [m.id for m in agent.inbox.next_step] == [first.id, second.id]
    await agent.when_idle()
    held.open()
    assert agent.wake()
    await agent.when_idle()
    assert entered(agent) == ["a", "s1", "s2", "b"]
    check_log(agent.session.events)


@pytest.mark.clause("C13a", "C5b")
@pytest.mark.parametrize("where", ["pre-step", "model", "tool", "turn-stopping"])
async def test_cancel_may_come_from_inside_the_turn(
    where: str, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Whoever takes part may stop the turn that they are in, without a deadlock."""
    receipts: list[ak.CancelReceipt] = []

    def stop() -> None:
        receipts.append(agent.cancel())

    async def through(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        stop()
        return await following(payload)

    async def stopping(_: ak.TurnStopping) -> None:
        stop()

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        stop()
        return ak.ToolOutput.of("done")

    class Stopping:
        @asynccontextmanager
        async def stream(
            self, _: ak.ModelRequest
        ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
            stop()
            yield self._chunks()

        async def _chunks(self) -> AsyncIterator[ak.Chunk]:
            yield ak.TextChunk("no checkpoint at all")
            yield ak.FinishChunk("stop")

    if where == "pre-step":
        agent.on(ak.PreStep, through)
    elif where == "model":
        agent.models.register("scripted", Stopping())
    elif where == "tool":
        model.add([call("t")])
        agent.tools.add(BodyTool("t", body))
    else:
        agent.on(ak.TurnStopping, stopping)
    agent.followup("go")
    await agent.when_idle()
    assert [r.turn for r in receipts] == [1]
    assert endings(agent) == [(1, "aborted")]
    assert len(model.requests) == (1 if where in {"tool", "turn-stopping"} else 0)
    assert codes(agent) == ([None] if where == "tool" else [])
    check_log(agent.session.events)
