"""`when_idle`, subscriptions and observers: what others see of a stop, truthfully."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, Hold, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, endings, entered, returns_done


@pytest.mark.clause("S2a", "S2c")
async def test_when_idle_returns_at_once_for_an_idle_agent_and_is_a_checkpoint(
    agent: ak.Agent,
) -> None:
    """A caller can rely on both."""
    with trio.testing.assert_checkpoints():
        await agent.when_idle()


@pytest.mark.clause("S2a", "C6c", "C3e")
async def test_when_idle_follows_latched_and_replacing_turns(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A transient idle is not the end that the waiter asked for."""
    first, second = Gate(), Gate()
    model.add([first], [second])
    done: list[str] = []

    async def waits() -> None:
        await agent.when_idle()
        done.append("idle")

    agent.followup("old")
    await first.reached()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        agent.cancel()
        agent.followup("new")
        await second.reached()
        await wait_all_tasks_blocked()
        assert done == []
        second.open()
    assert done == ["idle"]
    assert endings(agent) == [(1, "aborted"), (2, "completed")]


@pytest.mark.clause("S2a", "C6c")
async def test_when_idle_is_not_released_between_a_turn_and_a_send_of_an_idle_observer(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """An observer of `idle` that sends starts a turn that belongs to the wait."""
    gate = Gate()
    model.add(["first"], [gate])
    sent: list[ak.Sent] = []
    agent.on(
        ak.StatusChanged,
        lambda p: (
            sent.append(agent.followup("second"))
            if p.status == "idle" and not sent
            else None
        ),
    )
    done: list[str] = []

    async def waits() -> None:
        await agent.when_idle()
        done.append("idle")

    agent.followup("first")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await gate.reached()
        await wait_all_tasks_blocked()
        assert done == []
        gate.open()
    assert entered(agent) == ["first", "second"]


@pytest.mark.clause("S2b", "I4a")
@pytest.mark.case("LIFE-04")
async def test_parked_input_does_not_delay_idle(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Idle says that nothing runs, not that nothing waits."""
    model.add([Gate()])
    agent.followup("runs")
    agent.followup("parked")
    await wait_all_tasks_blocked()
    agent.cancel(keep_inbox=True)
    await agent.when_idle()
    assert len(agent.inbox.next_turn) == 1


@pytest.mark.clause("S2a", "I6")
@pytest.mark.case("LIFE-04")
async def test_idle_is_one_consistent_view_when_a_notice_comes_with_the_turns_end(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The notice of that tick runs before idle, and a send right after is accepted."""
    notice = ak.UserMessage("n", (ak.TextBlock("child ended"),), kind="notice")
    agent.on(
        ak.Appended,
        lambda p: (
            agent.steer(notice)
            if isinstance(p.event.data, ak.TurnEnded) and p.event.data.turn == 1
            else None
        ),
    )
    agent.followup("go")
    await agent.when_idle()
    assert entered(agent) == ["go", "child ended"]
    assert agent.status == "idle"
    agent.followup("next")
    await agent.when_idle()
    assert entered(agent)[-1] == "next"


@pytest.mark.clause("S2c")
async def test_many_waiters_are_released_and_a_cancelled_one_disturbs_nobody(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Waiting is looking on."""
    gate = Gate()
    model.add([gate])
    released: list[int] = []

    async def waits(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await agent.when_idle()
            released.append(number)

    scopes = [trio.CancelScope() for _ in range(10)]
    agent.followup("go")
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(waits, number, scope)
        await wait_all_tasks_blocked()
        for scope in scopes[::2]:
            scope.cancel()
        await wait_all_tasks_blocked()
        assert agent.status == "running"
        gate.open()
    assert sorted(released) == [1, 3, 5, 7, 9]
    assert endings(agent) == [(1, "completed")]


@pytest.mark.clause("S2a")
async def test_when_idle_after_disposal_began_waits_for_the_drivers_exit(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """Idle of a disposed agent means that its session is closed."""
    handle = await kernel.create("d", model="scripted")
    agent = handle.agent
    gate = Gate()

    async def slow(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", slow))
    model.add([call("t")])
    agent.followup("go")
    await gate.reached()
    closed: list[bool] = []

    async def waits() -> None:
        await agent.when_idle()
        closed.append(agent.session.closed)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.dispose)
        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        assert closed == []
        gate.open()
    assert closed == [True]
    await agent.when_idle()


@pytest.mark.clause("C3e", "D3a")
async def test_status_is_running_until_the_flush_behind_the_turn_has_settled(
    model: ScriptedModel,
) -> None:
    """Settled means written, or reported as not written."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        holds: list[Hold] = []
        errors: list[str] = []
        statuses: list[tuple[str, int]] = []
        agent.on(ak.ErrorReported, lambda p: errors.append(p.where))
        agent.on(ak.StatusChanged, lambda p: statuses.append((p.status, len(errors))))

        def hold(payload: ak.Appended) -> None:
            if isinstance(payload.event.data, ak.TurnEnded) and not holds:
                holds.append(store.hold("write"))
                store.fail("write", nth=store.calls["write"] + 1)

        agent.on(ak.Appended, hold)
        agent.followup("go")
        await wait_all_tasks_blocked()
        assert endings(agent) == [(1, "completed")]
        assert agent.status == "running"
        assert [b.kind for b in agent.blockers()] == ["flush"]
        holds[0].open()
        await agent.when_idle()
        assert statuses == [("running", 0), ("idle", 1)]


@pytest.mark.clause("C11d", "D3d")
async def test_write_that_hangs_is_reported_and_named(
    model: ScriptedModel, mock_clock: MockClock
) -> None:
    """A stop that waits for the disk is truthful about it."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True, stuck_after=3) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        stuck: list[list[tuple[str, float]]] = []
        agent.on(
            ak.AgentStuck,
            lambda p: stuck.append([(b.kind, b.age) for b in p.blockers]),
        )
        model.add([Gate()])
        agent.followup("go")
        await wait_all_tasks_blocked()
        hold = store.hold("write")
        agent.cancel()
        await wait_all_tasks_blocked()
        assert hold.reached.is_set()
        mock_clock.jump(2.5)
        await wait_all_tasks_blocked()
        assert stuck == []
        mock_clock.jump(0.5)
        await wait_all_tasks_blocked()
        assert stuck == [[("flush", 3.0)]]
        assert [b.kind for b in agent.blockers()] == ["flush"]
        hold.open()
        await agent.when_idle()
        assert agent.blockers() == ()


@pytest.mark.clause("C4a", "T8", "D1b")
@pytest.mark.case("EVT-01")
async def test_throwing_observer_starves_nobody_and_is_reported_once(
    model: ScriptedModel,
) -> None:
    """Three observers of every event; the middle one, also for errors, raises."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        first: list[int] = []
        last: list[int] = []
        errors: list[str] = []

        def raises(_: object) -> None:
            raise ValueError("every time")

        agent.on(ak.Appended, lambda p: first.append(p.event.seq))
        agent.on(ak.Appended, raises)
        agent.on(ak.ErrorReported, raises)
        agent.on(ak.ErrorReported, lambda p: errors.append(type(p.error).__name__))
        agent.on(ak.Appended, lambda p: last.append(p.event.seq))
        agent.tools.add(BodyTool("t", returns_done))
        model.add([call("t")])
        sent = agent.followup("go")
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "completed"
        assert first == last == [e.seq for e in agent.session.events][1:]
        assert errors == ["ValueError"]


@pytest.mark.clause("L2", "S3b")
@pytest.mark.case("LIFE-05")
async def test_leaving_a_subscription_changes_nothing_and_leaving_the_owner_stops_all(
    model: ScriptedModel,
) -> None:
    """Reading is not owning: only the scope that owns the agent ends it."""
    running: list[str] = []
    hold = Gate()

    async def works(_: ak.ToolInvocation) -> ak.ToolOutput:
        running.append("began")
        try:
            await hold.wait()
        finally:
            running.append("ended")
        return ak.ToolOutput.of("done")

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("scripted", model)
        tool = BodyTool("t", works)
        model.add([call("t")])
        async with kernel.open("s", model="scripted", tools=[tool]) as agent:
            agent.followup("go")
            async with agent.session.subscribe() as events:
                async for _ in events:
                    break
            await wait_all_tasks_blocked()
            assert agent.status == "running"
            assert running == ["began"]
        assert running == ["began", "ended"]
        assert endings(agent) == [(1, "disposed")]
        asked = len(model.requests)
        await wait_all_tasks_blocked()
        assert len(model.requests) == asked
        check_log(agent.session.events)


@pytest.mark.clause("L2", "D2d", "C3d")
@pytest.mark.case("LIFE-06")
async def test_what_a_durable_reader_saw_last_is_on_disk_when_it_leaves(
    model: ScriptedModel,
) -> None:
    """The reader goes on the final event and cancels its own scope: nothing is lost."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        seen: list[int] = []

        async def reads(scope: trio.CancelScope) -> None:
            with scope:
                async with agent.session.subscribe(durable=True) as events:
                    async for item in events:
                        assert isinstance(item, ak.SessionEvent)
                        seen.append(item.seq)
                        if isinstance(item.data, ak.TurnEnded):
                            stored = await store.inner.read("s")
                            assert stored[-1].seq == item.seq
                            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads, trio.CancelScope())
            await wait_all_tasks_blocked()
            hold = store.hold("write")
            agent.followup("go")
            await wait_all_tasks_blocked()
            assert seen == [1]
            hold.open()
        assert seen == [e.seq for e in await store.inner.read("s")]


@pytest.mark.clause("S2c", "C12c")
async def test_public_waits_are_checkpoints_and_verbs_are_not(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The two kinds are never mixed."""
    with trio.testing.assert_no_checkpoints():
        sent = agent.followup("a")
        agent.steer("b")
        agent.inject("c")
        agent.cancel(keep_inbox=True)
        agent.wake()
    with trio.testing.assert_checkpoints():
        await agent.when_idle()
    with trio.testing.assert_checkpoints():
        await agent.outcome(sent.id)
    with trio.testing.assert_checkpoints():
        await agent.session.flush()
