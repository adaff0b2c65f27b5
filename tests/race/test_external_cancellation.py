"""The block that owns the kernel is cancelled, or fails: everything is recorded first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, Hold, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings


@pytest.mark.clause("C10b", "C10a", "I4c")
async def test_cancelling_the_block_is_the_disposal_of_every_agent(
    model: ScriptedModel,
) -> None:
    """Recorded, queue and claim kept, then the cancellation goes on its way."""
    store = ak.MemoryStore()
    agents: list[ak.Agent] = []
    with trio.CancelScope() as scope:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            for name in ("a", "b"):
                agent = (await kernel.create(name, model="scripted")).agent
                model.add(["partial", Gate()])
                agent.followup("go")
                agent.followup("queued")
                agents.append(agent)
                await wait_all_tasks_blocked()
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    for agent in agents:
        assert endings(agent) == [(1, "disposed")]
        assert agent.session.closed
        stored = await store.read(agent.id)
        assert len(stored) == agent.session.last_seq
        check_log(stored)
        assert [m.text for m in agent.inbox.next_turn] == ["queued"]
    signals = [request.signal for request in model.requests]
    assert [s.reason for s in signals if s] == [ak.StopReason("disposed")] * 2


@pytest.mark.clause("C10b", "C11b")
async def test_joined_thread_learns_of_an_external_cancellation_through_its_signal(
    model: ScriptedModel,
) -> None:
    """A thread that looks at nothing but the signal ends, so the block can."""
    rounds: list[str] = []
    agents: list[ak.Agent] = []

    def works(signal: ak.TurnSignal) -> None:
        rounds.append("began")
        while not signal.cancelled:
            trio.from_thread.run_sync(lambda: None)
        rounds.append(signal.reason.kind if signal.reason else "?")

    async def threaded(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(works, invocation.signal)
        return ak.ToolOutput.of("done")

    with trio.CancelScope() as scope:
        async with ak.open_kernel(ak.MemoryStore()) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            agents.append(agent)
            agent.tools.add(BodyTool("t", threaded))
            model.add([call("t")])
            agent.followup("go")
            while not rounds:
                await trio.lowlevel.checkpoint()
            scope.cancel()
            await trio.sleep_forever()
    assert rounds == ["began", "disposed"]
    assert codes(agents[0]) == [None]


@pytest.mark.clause("C10b")
async def test_signals_fire_in_the_first_pass_of_the_scheduler(
    model: ScriptedModel,
) -> None:
    """One task does it for all agents; what the body still does comes after or beside."""
    passes: list[int] = []
    start = 0

    class Counts(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    counter = Counts()
    with trio.CancelScope() as scope:
        async with ak.open_kernel(ak.MemoryStore()) as kernel:
            kernel.models.register("scripted", model)
            for name in ("a", "b", "c"):
                agent = (await kernel.create(name, model="scripted")).agent
                model.add([Gate()])
                agent.followup("go")
                await wait_all_tasks_blocked()
                signal = model.requests[-1].signal
                assert signal is not None
                signal.on_cancel(lambda _: passes.append(counter.count))
            trio.lowlevel.add_instrument(counter)
            scope.cancel()
            start = counter.count
            try:
                await trio.sleep_forever()
            finally:
                trio.lowlevel.remove_instrument(counter)
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
    assert len(passes) == 3
    assert set(passes) == {start + 1}


@pytest.mark.clause("C3d", "C3c", "C10b")
async def test_external_cancellation_during_a_slow_flush_changes_no_finished_turn(
    model: ScriptedModel,
) -> None:
    """The write goes on, and the turn is as complete on disk as it was in memory."""
    store = FaultyStore(ak.MemoryStore())
    holds: list[Hold] = []
    agents: list[ak.Agent] = []
    with trio.CancelScope() as scope:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            agent.on(
                ak.Appended,
                lambda p: (
                    holds.append(store.hold("write"))
                    if isinstance(p.event.data, ak.TurnEnded)
                    else None
                ),
            )
            agents.append(agent)
            agent.followup("go")
            await wait_all_tasks_blocked()
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
                    assert not agent.session.closed
                holds[0].open()
    assert endings(agents[0]) == [(1, "completed")]
    assert len(await store.inner.read("s")) == agents[0].session.last_seq


@pytest.mark.clause("C10a", "C10b")
async def test_ending_is_decided_from_the_holder_when_no_cancelled_was_ever_raised(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A stop without a checkpoint after it raises nothing, and is a stop all the same."""

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        agent.cancel()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]


@pytest.mark.clause("C10a")
@pytest.mark.parametrize("seam", ["pre-step", "turn-stopping"])
async def test_cancellation_of_a_scope_inside_the_turn_is_nobodys_stop(
    seam: str, agent: ak.Agent, model: ScriptedModel
) -> None:
    """`cancelled_caught` of some scope says nothing about the turn's ending."""

    async def own_scope() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_forever()

    async def pre(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        await own_scope()
        return await following(payload)

    async def stopping(_: ak.TurnStopping) -> None:
        await own_scope()

    if seam == "pre-step":
        agent.on(ak.PreStep, pre)
    else:
        agent.on(ak.TurnStopping, stopping)
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]


@pytest.mark.clause("S3c")
@pytest.mark.parametrize(
    "error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)]
)
async def test_exception_of_the_body_leaves_the_block_as_itself(
    model: ScriptedModel, error: BaseException
) -> None:
    """No group, no nursery of ours around it; the turns were recorded."""
    store = ak.MemoryStore()

    async def block() -> None:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            model.add([Gate()])
            agent.followup("go")
            await wait_all_tasks_blocked()
            raise error

    with pytest.raises(type(error)) as caught:
        await block()
    assert caught.value is error
    report = check_log(await store.read("s"))
    assert report.turns == {1: ak.Ending("disposed")}


@pytest.mark.clause("S3c", "C10b")
async def test_block_inside_a_nursery_of_the_application_ends_with_it(
    model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A sibling fails: the application gets its own error, and the log is whole."""
    store = ak.MemoryStore()

    async def runs() -> None:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            model.add(["text", Gate()])
            agent.followup("go")
            await trio.sleep_forever()

    async def fails() -> None:
        await trio.sleep(1)
        raise ValueError("sibling")

    with pytest.RaisesGroup(pytest.RaisesExc(ValueError, match="sibling")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(runs)
            nursery.start_soon(fails)
    report = check_log(await store.read("s"))
    assert [e.kind if e else None for e in report.turns.values()] == ["disposed"]


@pytest.mark.clause("C10b", "S3b")
async def test_race_of_an_external_cancellation_leaves_a_whole_log_every_time() -> None:
    """Cancelled after n checkpoints: completed, disposed and unstarted all occur."""
    seen: set[str] = set()
    for ticks in range(45):
        store = ak.MemoryStore()
        model = ScriptedModel([call("t")], ["a", "b"])

        async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
            await trio.lowlevel.checkpoint()
            return ak.ToolOutput.of("done")

        with trio.CancelScope() as scope:
            async with ak.open_kernel(store) as kernel:
                kernel.models.register("scripted", model)
                tool = BodyTool("t", body)
                agent = (await kernel.create("s", model="scripted", tools=[tool])).agent
                agent.followup("go")
                for _ in range(ticks):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        report = check_log(await store.read("s"))
        kinds = [e.kind if e else "open" for e in report.turns.values()]
        seen.add(kinds[0] if kinds else "unstarted")
        assert model.open_streams == 0
    assert seen == {"unstarted", "disposed", "completed"}
