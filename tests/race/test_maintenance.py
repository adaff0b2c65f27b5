"""Maintenance: one function on an idle agent, and everything that may meet it."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel
from tests.race.parts import opened, texts, types

pytestmark = pytest.mark.clause("T9")


async def test_maintenance_runs_with_a_signal_and_without_a_turn(
    autojump_clock: MockClock,
) -> None:
    """The agent is running meanwhile, and no turn is in the log."""
    async with opened(ScriptedModel()) as agent:
        statuses: list[str] = []
        agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))

        async def work(signal: ak.TurnSignal) -> int:
            await trio.lowlevel.checkpoint()
            assert agent.status == "running"
            assert not signal.cancelled
            assert [b.kind for b in agent.blockers()] == ["maintenance"]
            return 7

        assert await agent.run_maintenance(work) == 7
        await agent.when_idle()
        assert statuses == ["running", "idle"]
        assert "turn/start" not in types(agent)
        assert agent.blockers() == ()


async def test_a_busy_agent_refuses_maintenance(autojump_clock: MockClock) -> None:
    """It is for idle agents: who wants it waits for idle first."""
    gate = Gate()

    async def never(_signal: ak.TurnSignal) -> None:
        raise AssertionError("maintenance ran beside a turn")

    async with opened(ScriptedModel([gate, "ok"])) as agent:
        agent.followup("go")
        with pytest.raises(ak.AgentBusyError):
            await agent.run_maintenance(never)
        await gate.reached()
        with pytest.raises(ak.AgentBusyError):
            await agent.run_maintenance(never)
        gate.open()


async def test_two_maintenances_do_not_overlap(autojump_clock: MockClock) -> None:
    """Nor may one start another, which would wait for itself."""
    async with opened(ScriptedModel()) as agent:

        async def inner(_signal: ak.TurnSignal) -> None:
            await trio.lowlevel.checkpoint()

        async def outer(_signal: ak.TurnSignal) -> str:
            with pytest.raises(ak.AgentBusyError):
                await agent.run_maintenance(inner)
            with pytest.raises(ak.OwnTurnError):
                await agent.when_idle()
            return "done"

        assert await agent.run_maintenance(outer) == "done"


@pytest.mark.case("COMP-03")
async def test_a_cancel_stops_maintenance_and_drops_its_late_value(
    autojump_clock: MockClock,
) -> None:
    """The caller hears of the stop once the function has really ended."""
    started, cleaned = trio.Event(), trio.Event()
    async with opened(ScriptedModel()) as agent:

        async def work(signal: ak.TurnSignal) -> str:
            started.set()
            with trio.CancelScope(shield=True):
                await signal.wait()
                await trio.sleep(3)
                cleaned.set()
            return "late"

        async def maintain() -> None:
            with pytest.raises(ak.MaintenanceCancelled):
                await agent.run_maintenance(work)
            assert cleaned.is_set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintain)
            await started.wait()
            receipt = agent.cancel()
            assert receipt.effective
            assert receipt.turn is None
            assert agent.status == "running"
        await agent.when_idle()
        assert "turn/start" not in types(agent)


async def test_a_cancel_before_the_function_began_keeps_it_from_beginning(
    autojump_clock: MockClock,
) -> None:
    """An observer of `running` may stop it: the holder is there already."""
    async with opened(ScriptedModel()) as agent:
        began: list[int] = []

        async def work(_signal: ak.TurnSignal) -> None:
            began.append(1)
            await trio.lowlevel.checkpoint()

        def stop(payload: ak.StatusChanged) -> None:
            if payload.status == "running":
                assert agent.cancel().effective

        agent.on(ak.StatusChanged, stop)
        with pytest.raises(ak.MaintenanceCancelled):
            await agent.run_maintenance(work)
        assert not began
        await agent.when_idle()


async def test_input_during_maintenance_is_held_and_runs_after_it(
    autojump_clock: MockClock,
) -> None:
    """No message is lost to it, and none runs beside it."""
    gate = Gate()
    model = ScriptedModel(["ok"])
    async with opened(model) as agent:

        async def work(_signal: ak.TurnSignal) -> None:
            await gate.wait()
            assert not model.requests

        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.run_maintenance, work)
            await gate.reached()
            sent = agent.followup("held")
            await wait_all_tasks_blocked()
            assert not model.requests
            gate.open()
        assert (await agent.outcome(sent.id)).kind == "completed"


@pytest.mark.parametrize("keep_inbox", [False, True])
async def test_after_a_cancelled_maintenance_only_latched_input_runs(
    autojump_clock: MockClock, *, keep_inbox: bool
) -> None:
    """What was held before the stop is dropped or parked; what came after it runs."""
    gate = Gate()
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:

        async def work(_signal: ak.TurnSignal) -> None:
            await gate.wait()

        async def maintain() -> None:
            with pytest.raises(ak.MaintenanceCancelled):
                await agent.run_maintenance(work)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintain)
            await gate.reached()
            before = agent.followup("before")
            receipt = agent.cancel(keep_inbox=keep_inbox)
            assert (receipt.kept if keep_inbox else receipt.dropped) == (before.id,)
        await agent.when_idle()
        assert not model.requests

        if keep_inbox:
            agent.inbox.remove(before.id)
        again = Gate()

        async def more(_signal: ak.TurnSignal) -> None:
            await again.wait()

        async def maintain_again() -> None:
            with pytest.raises(ak.MaintenanceCancelled):
                await agent.run_maintenance(more)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(maintain_again)
            await again.reached()
            agent.cancel(keep_inbox=keep_inbox)
            agent.followup("after")
        await agent.when_idle()
        assert [texts(r.messages) for r in model.requests] == [["after"]]


async def test_an_exception_of_maintenance_is_the_callers_alone(
    autojump_clock: MockClock,
) -> None:
    """It is raised as itself, and nobody else is told; the agent goes on."""
    reported: list[object] = []
    async with opened(ScriptedModel(["ok"])) as agent:
        agent.on(ak.ErrorReported, reported.append)

        async def work(_signal: ak.TurnSignal) -> None:
            await trio.lowlevel.checkpoint()
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            await agent.run_maintenance(work)
        await agent.when_idle()
        assert not reported
        sent = agent.followup("go")
        assert (await agent.outcome(sent.id)).kind == "completed"


async def test_a_cancelled_caller_stops_maintenance_and_waits_for_it(
    autojump_clock: MockClock,
) -> None:
    """Its scope ends only when nothing of the function runs any more."""
    ended = trio.Event()
    async with opened(ScriptedModel()) as agent:

        async def work(signal: ak.TurnSignal) -> None:
            try:
                await trio.sleep_forever()
            finally:
                assert signal.reason == ak.StopReason("user")
                ended.set()

        with trio.move_on_after(1) as scope:
            await agent.run_maintenance(work)
        assert scope.cancelled_caught
        assert ended.is_set()
        await agent.when_idle()


async def test_disposal_meets_maintenance_at_any_moment_without_a_hang(
    autojump_clock: MockClock,
) -> None:
    """Also before the driver's task has run for the first time."""
    seen: Counter[str] = Counter()
    for _ in range(60):
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            handle = await kernel.create("s")

            async def work(_signal: ak.TurnSignal) -> None:
                seen["began"] += 1
                await trio.sleep_forever()

            async def maintain(handle: ak.AgentHandle = handle) -> None:
                try:
                    await handle.agent.run_maintenance(work)
                except (
                    ak.MaintenanceCancelled,
                    ak.AgentBusyError,
                    ak.AgentDisposedError,
                ) as error:
                    seen[type(error).__name__] += 1

            with trio.fail_after(60):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(maintain)
                    nursery.start_soon(handle.dispose)
    assert seen["MaintenanceCancelled"] > seen["began"]
    assert seen["AgentBusyError"]


@pytest.mark.clause("I1a", "I1c")
async def test_a_caller_that_gives_up_holds_nothing_back_from_what_was_wanted(
    autojump_clock: MockClock,
) -> None:
    """The turn behind it is as any other: what is steered into it joins it."""
    gate = Gate()

    async def work(_signal: ak.TurnSignal) -> None:
        await trio.sleep_forever()

    async with opened(ScriptedModel([gate, "one"], ["two"])) as agent:
        with trio.move_on_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(agent.run_maintenance, work)
                await wait_all_tasks_blocked()
                agent.followup("go")
        await gate.reached()
        sent = agent.steer("and this")
        assert [m.id for m in agent.inbox.next_step] == [sent.id]
        gate.open()
        await agent.when_idle()
        assert types(agent).count("turn/start") == 1
