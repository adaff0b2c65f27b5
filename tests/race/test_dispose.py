"""The end of an agent: shared, idempotent, truthful, children first."""

from __future__ import annotations

from functools import partial
from typing import Literal

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from agentkernel.testing.schedules import mark, run_under_schedules
from tests.race.rig import BodyTool, codes, endings, facts


@pytest.mark.clause("S3a")
async def test_disposal_is_shared_and_may_be_repeated(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """All callers wait for the same end; a later one finds it done."""
    handle = await kernel.create("d", model="scripted")
    gone: list[ak.Agent] = []
    kernel.on(ak.AgentDisposed, lambda p: gone.append(p.agent))
    model.add([Gate()])
    handle.agent.followup("go")
    await wait_all_tasks_blocked()
    ended: list[bool] = []

    async def dispose() -> None:
        await handle.dispose()
        ended.append(handle.agent.session.closed)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(dispose)
    await handle.dispose()
    assert ended == [True, True, True]
    assert gone == [handle.agent]
    assert endings(handle.agent) == [(1, "disposed")]
    assert handle.agent not in kernel.agents
    with pytest.raises(ak.UnknownNameError):
        kernel.get("d")


@pytest.mark.clause("S3a", "C11b")
async def test_cancelled_caller_abandons_the_wait_and_not_the_disposal(
    kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The tool takes its time; the disposal goes on without its first caller."""
    handle = await kernel.create("d", model="scripted")
    gate = Gate()

    async def slow(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ak.ToolOutput.of("done")

    handle.agent.tools.add(BodyTool("t", slow))
    model.add([call("t")])
    handle.agent.followup("go")
    await gate.reached()
    with trio.move_on_after(1) as scope:
        await handle.dispose()
    assert scope.cancelled_caught
    assert handle.agent.status == "running"
    before = handle.agent.session.closed
    assert [b.name for b in handle.agent.blockers()] == ["t"]
    gate.open()
    await handle.dispose()
    assert (before, handle.agent.session.closed) == (False, True)
    assert codes(handle.agent) == [None]
    assert endings(handle.agent) == [(1, "disposed")]


@pytest.mark.clause("C10a", "C2c", "C3c", "I4c")
@pytest.mark.case("CAN-11")
@pytest.mark.parametrize("first", ["cancel", "dispose"])
async def test_disposal_wins_the_ending_and_never_rewrites_the_reason(
    first: str, kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """Cancel, then dispose, in one tick, and the other way round."""
    handle = await kernel.create("d", model="scripted")
    agent = handle.agent
    model.add([Gate()])
    agent.followup("go")
    queued = agent.followup("queued")
    await wait_all_tasks_blocked()
    signal = model.requests[0].signal
    assert signal is not None
    receipts: list[ak.CancelReceipt] = []
    if first == "cancel":
        assert agent.cancel(keep_inbox=True).turn == 1
    else:
        signal.on_cancel(lambda _: receipts.append(agent.cancel(keep_inbox=True)))
    await handle.dispose()
    assert [r.effective for r in receipts] == ([] if first == "cancel" else [False])
    kind: Literal["user", "disposed"] = "user" if first == "cancel" else "disposed"
    assert signal.reason == ak.StopReason(kind)
    assert endings(agent) == [(1, "disposed")]
    record = agent.session.record(queued.id)
    assert record is not None
    assert record.state == "pending"
    check_log(agent.session.events)


@pytest.mark.clause("C6e", "S3a", "S3b")
@pytest.mark.case("LIFE-03")
def test_send_and_dispose_in_one_tick_lose_nothing_in_any_order() -> None:
    """It is logged and parked, or refused; nothing runs once the disposal is over."""

    async def scenario() -> str:
        store = ak.MemoryStore()
        model = ScriptedModel(default=["ok"])
        async with ak.open_kernel(store, strict=True) as kernel:
            kernel.models.register("scripted", model)
            handle = await kernel.create("s", model="scripted")
            agent = handle.agent
            sent: list[str] = []

            async def send() -> None:
                for _ in range(3):
                    try:
                        sent.append(agent.followup("m").id)
                    except ak.AgentDisposedError:
                        mark("refused")
                    else:
                        mark("sent")
                    await trio.lowlevel.checkpoint()

            async def dispose() -> None:
                await handle.dispose()
                mark("disposed")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                nursery.start_soon(dispose)
                nursery.start_soon(send)
            asked, logged = len(model.requests), agent.session.last_seq
            await wait_all_tasks_blocked()
            assert len(model.requests) == asked
            assert agent.session.last_seq == logged
            events = await store.read("s")
            report = check_log(events)
            assert set(sent) == set(report.messages)
            assert all(ending is not None for ending in report.turns.values())
        return f"{len(sent)} sent, {len(report.turns)} turns"

    runs = run_under_schedules(scenario, seeds=range(60))
    assert runs.distinct_orders > 1
    assert len(runs.count()) > 1


@pytest.mark.clause("S3b", "C10a")
async def test_leaving_the_block_interrupts_all_at_once_and_releases_children_first(
    model: ScriptedModel,
) -> None:
    """Every signal has fired before the first turn ends; a parent outlives its child."""
    store = ak.MemoryStore()
    fired: list[str] = []
    order: list[str] = []

    def note_fired(name: str, _: ak.StopReason) -> None:
        fired.append(name)

    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        names = ["parent", "child", "grandchild", "other"]
        agents: dict[str, ak.Agent] = {}
        for name in names:
            parent = {"child": "parent", "grandchild": "child"}.get(name)
            handle = await kernel.create(
                name, model="scripted", parent=agents[parent] if parent else None
            )
            agents[name] = handle.agent
            model.add([Gate()])
            handle.agent.followup("go")
            await wait_all_tasks_blocked()
            signal = model.requests[-1].signal
            assert signal is not None
            signal.on_cancel(partial(note_fired, name))
        assert agents["grandchild"].parent is agents["child"]

        def note(payload: ak.Appended) -> None:
            if isinstance(payload.event.data, ak.TurnEnded):
                assert len(fired) == len(names)

        kernel.on(ak.Appended, note)
        kernel.on(ak.AgentDisposed, lambda p: order.append(p.agent.id))
    assert set(fired) == set(names)
    assert order.index("grandchild") < order.index("child") < order.index("parent")
    assert set(order) == set(names)
    for agent in agents.values():
        assert endings(agent) == [(1, "disposed")]


@pytest.mark.clause("S3b")
async def test_disposal_of_a_parent_ends_its_children_and_nobody_else(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """The relation is the one that `create(parent=…)` states."""
    parent = await kernel.create("parent", model="scripted")
    child = await kernel.create("child", model="scripted", parent=parent.agent)
    other = await kernel.create("other", model="scripted")
    model.add([Gate()])
    child.agent.followup("go")
    await wait_all_tasks_blocked()
    await parent.dispose()
    assert child.agent.session.closed
    assert endings(child.agent) == [(1, "disposed")]
    assert kernel.agents == (other.agent,)
    with pytest.raises(ak.AgentDisposedError):
        await kernel.create("late", model="scripted", parent=parent.agent)


@pytest.mark.clause("S3a", "L1b")
async def test_listeners_of_a_disposed_agent_die_with_it(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """A session that is opened again starts without them."""
    handle = await kernel.create("d", model="scripted")
    heard: list[object] = []
    handle.agent.on(ak.StatusChanged, heard.append)
    await handle.dispose()
    again = (await kernel.resume("d", model="scripted")).agent
    again.followup("go")
    await again.when_idle()
    assert heard == []


@pytest.mark.clause("S3a", "D3a")
async def test_disposal_with_a_store_that_fails_is_finished_and_says_so(
    model: ScriptedModel,
) -> None:
    """Everything else has been done when the error is raised."""
    store = FaultyStore(ak.MemoryStore())
    with pytest.raises(ak.StorageError):  # noqa: PT012  # leaving the block is what raises
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            handle = await kernel.create("s", model="scripted")
            handle.agent.inject("not written")
            store.fail("write", times=float("inf"))
            with pytest.raises(ak.StorageError):
                await handle.dispose()
            assert kernel.agents == ()
            assert handle.agent.session.closed
            raise_again = await kernel.create("other")
            assert raise_again.agent.id == "other"


@pytest.mark.clause("D3a")
@pytest.mark.parametrize("boom", [False, True])
async def test_every_session_that_was_not_written_to_its_end_is_named_on_leaving(
    *, boom: bool
) -> None:
    """One failure is raised, or the body's own; the others are notes of it."""
    store = FaultyStore(ak.MemoryStore())
    with pytest.raises(KeyError if boom else ak.StorageError) as left:  # noqa: PT012  # leaving the block is what raises
        async with ak.open_kernel(store) as kernel:
            for name in ("one", "two"):
                await kernel.create(name)
            handle = await kernel.create("told")
            store.fail("write", times=float("inf"))
            for agent in kernel.agents:
                agent.inject("not written")
            with pytest.raises(ak.StorageError, match="last durable event: 1"):
                await handle.dispose()
            if boom:
                raise KeyError("boom")
    error: BaseException = left.value
    notes = "\n".join(error.__notes__)
    assert "session 'one' was not written to its end: no space left" in notes
    assert "session 'two' was not written to its end: no space left" in notes
    assert "told" not in notes


@pytest.mark.clause("C4a", "S4", "C10a")
async def test_nested_child_is_stopped_through_its_parents_signal(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Identity is shadowed, control is passed on: the child's cause is the parent."""
    children: list[ak.Agent] = []
    reasons: list[ak.StopReason | None] = []

    async def spawns(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        handle = await kernel.create("child", model="scripted", parent=invocation.agent)
        async with handle as child:
            children.append(child)
            child.followup("work")
            try:
                await child.when_idle()
            except trio.Cancelled:
                child.cancel(ak.PARENT)
                reasons.append(model.requests[-1].signal.reason)  # type: ignore[union-attr]  # inside a turn  # pyright: ignore[reportOptionalMemberAccess]
                with trio.CancelScope(shield=True):
                    await child.when_idle()
                raise
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", spawns))
    model.add([call("t")], [Gate()])
    agent.followup("go")
    await wait_all_tasks_blocked()
    own, childs = (r.signal for r in model.requests)
    assert own is not childs
    agent.cancel()
    await agent.when_idle()
    assert reasons == [ak.StopReason("parent")]
    assert endings(agent) == [(1, "aborted")]
    assert endings(children[0]) == [(1, "aborted")]
    assert codes(agent) == ["ABORTED"]


@pytest.mark.clause("C3c", "S3a")
async def test_race_of_cancel_against_dispose_ends_quiet_in_every_order() -> None:
    """n checkpoints apart: one ending, no leftovers, and both endings were seen."""
    seen: set[str] = set()
    for ticks in range(14):
        model = ScriptedModel(["a", Gate()])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", model)
            handle = await kernel.create("s", model="scripted")
            agent = handle.agent
            agent.followup("go")
            await wait_all_tasks_blocked()
            agent.cancel()
            for _ in range(ticks):
                await trio.lowlevel.checkpoint()
            await handle.dispose()
            check_log(agent.session.events)
            ((_, kind),) = endings(agent)
            seen.add(kind)
            assert model.open_streams == 0
            assert len(facts(agent, ak.TurnEnded)) == 1
    assert seen == {"aborted", "disposed"}


@pytest.mark.clause("C10c")
async def test_an_observer_that_must_leave_takes_the_agent_that_it_was_told_of_along(
    model: ScriptedModel,
) -> None:
    """Nobody has a handle of it, so it ends before the opening raises."""

    def leave(_payload: ak.AgentCreated) -> None:
        raise SystemExit(3)

    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("scripted", model)
        unregister = kernel.on(ak.AgentCreated, leave)
        with pytest.raises(SystemExit):
            await kernel.create("s", model="scripted")
        assert kernel.agents == ()
        unregister()
        async with (
            kernel.open("s", model="scripted") as agent,
            agent.ask("go") as reply,
        ):
            pass
        assert reply.outcome.kind == "completed"
