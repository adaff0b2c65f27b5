"""A store that fails, hangs or fills up under an agent that works."""

from __future__ import annotations

import math
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.faulty import FaultyStore, Hold
from tests.race.parts import Probe, facts, once, opened, stored, types


@pytest.mark.clause("D3a")
@pytest.mark.parametrize("waits", [True, False])
async def test_a_failed_flush_is_reported_and_releases_who_waits(
    autojump_clock: MockClock,
    *,
    waits: bool,
) -> None:
    """The turn has ended, the agent is idle, and `flush` says what is durable."""
    store = FaultyStore(ak.MemoryStore(), waits=waits)
    async with opened(ScriptedModel(default=["ok"]), store=store) as agent:
        errors: list[ak.ErrorReported] = []
        agent.on(ak.ErrorReported, errors.append)
        await wait_all_tasks_blocked()
        durable = agent.session.durable_seq
        store.fail("write", times=math.inf)
        sent = agent.followup("go")
        await agent.when_idle()
        assert agent.status == "idle"
        assert [type(e.error) for e in errors] == [ak.StorageError]
        with pytest.raises(ak.StorageError) as caught:
            await agent.session.flush()
        assert caught.value.durable_seq == durable
        assert agent.session.durable_seq == durable
        store.mend()
        await agent.session.flush(sent.seq)
        assert agent.session.durable_seq >= sent.seq


@pytest.mark.clause("D3b", "D3c")
@pytest.mark.case("STORE-05", "STORE-06")
@pytest.mark.parametrize("after", [False, True])
async def test_nothing_is_lost_or_doubled_when_the_store_comes_back(
    autojump_clock: MockClock,
    *,
    after: bool,
) -> None:
    """Disk full, five more messages, then room again: no restart, no gap."""
    inner = ak.MemoryStore()
    store = FaultyStore(inner)
    model = ScriptedModel(default=["ok"])
    async with opened(model, store=store) as agent:
        await wait_all_tasks_blocked()
        store.fail("write", times=math.inf, after=after)
        first = agent.followup("m0")
        await agent.when_idle()
        requests = len(model.requests)
        sent = [first]
        for number in range(1, 6):
            sent.append(agent.followup(f"m{number}"))
            with pytest.raises(ak.StorageError):
                await agent.session.flush(sent[-1].seq)
            await agent.when_idle()
        assert len(model.requests) == requests
        assert [m.text for m in agent.inbox.next_turn][-5:] == [
            f"m{n}" for n in range(1, 6)
        ]
        store.mend()
        for one in sent:
            assert (await agent.outcome(one.id)).kind == "completed"
        await agent.when_idle()
        live = agent.session.events
        assert await stored(inner) == list(live)
        assert [e.seq for e in live] == list(range(1, len(live) + 1))
        assert len(model.requests) == 6


@pytest.mark.clause("D3b", "D3c")
async def test_a_wake_during_the_outage_runs_on_recovery_without_another(
    autojump_clock: MockClock,
) -> None:
    """The writer goes on trying by itself, more and more slowly."""
    store = FaultyStore(ak.MemoryStore())
    model = ScriptedModel(default=["ok"])
    async with opened(model, store=store) as agent:
        await wait_all_tasks_blocked()
        store.fail("write", times=6)
        agent.inject("note")
        await wait_all_tasks_blocked()
        sent = agent.followup("go")
        await agent.when_idle()
        assert not model.requests
        began = trio.current_time()
        assert (await agent.outcome(sent.id)).kind == "completed"
        assert trio.current_time() > began
        assert agent.session.durable_seq == agent.session.last_seq
        await wait_all_tasks_blocked()


@pytest.mark.clause("D3c", "C5a")
async def test_a_cancel_during_the_outage_takes_the_wanted_drain_back(
    autojump_clock: MockClock,
) -> None:
    """Recovery must not start what was stopped meanwhile."""
    store = FaultyStore(ak.MemoryStore())
    model = ScriptedModel(default=["ok"])
    async with opened(model, store=store) as agent:
        await wait_all_tasks_blocked()
        store.fail("write", times=math.inf)
        sent = agent.followup("go")
        await agent.when_idle()
        assert not model.requests or agent.inbox.next_turn == ()
        later = agent.followup("later")
        await agent.when_idle()
        receipt = agent.cancel(keep_inbox=True)
        assert receipt.effective
        store.mend()
        await agent.session.flush()
        await agent.when_idle()
        assert [m.id for m in agent.inbox.next_turn] == [later.id]
        assert (await agent.outcome(sent.id)).kind == "completed"


@pytest.mark.clause("D3d")
async def test_a_write_that_hangs_is_reported_and_named(
    autojump_clock: MockClock,
) -> None:
    """The agent is truthfully running, and says what it waits for."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(["ok"]), store=store) as agent:
        stuck: list[tuple[float, list[str]]] = []
        agent.on(
            ak.AgentStuck,
            lambda p: stuck.append((trio.current_time(), [b.kind for b in p.blockers])),
        )
        holds: list[Hold] = []
        once(agent, "turn/end", lambda: holds.append(store.hold("write")))
        agent.followup("go")
        await wait_all_tasks_blocked()
        (hold,) = holds
        assert hold.reached.is_set()
        began = trio.current_time()
        await trio.sleep(60)
        assert agent.status == "running"
        assert [b.kind for b in agent.blockers()] == ["flush"]
        assert [(at - began, kinds) for at, kinds in stuck] == [(5, ["flush"])]
        hold.open()
        await agent.when_idle()
        assert agent.blockers() == ()


@pytest.mark.clause("D2d", "C3d")
async def test_a_slow_write_does_not_shield_a_tool_from_a_later_stop(
    autojump_clock: MockClock,
) -> None:
    """Slowness of the disk is not stubbornness of the tool."""
    gate = Gate()

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if invocation.arguments["n"] == 1:
            await gate.wait()
        return ak.ToolOutput.of("ok")

    store = FaultyStore(ak.MemoryStore())
    model = ScriptedModel([call("p", n=1), call("p", n=2)], ["end"])
    async with opened(
        model, [Probe("p", body, parallel_safe=True)], store=store
    ) as agent:
        agent.followup("go")
        await gate.reached()
        hold = store.hold("write")
        agent.steer("write this")
        await hold.reached.wait()
        await trio.sleep(3)
        agent.cancel()
        await wait_all_tasks_blocked()
        assert types(agent)[-1] == "turn/end"
        hold.open()
        await agent.when_idle()


@pytest.mark.clause("D2a")
async def test_events_of_many_sessions_that_come_during_a_write_share_the_next(
    autojump_clock: MockClock,
) -> None:
    """One writer, one barrier for all: commits do not add up."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        handles = [await kernel.create(f"s{n}") for n in range(5)]
        await wait_all_tasks_blocked()
        hold = store.hold("write")
        handles[0].agent.inject("first")
        await hold.reached.wait()
        for handle in handles:
            handle.agent.inject("more")
        writes = store.calls["write"]
        hold.open()
        async with trio.open_nursery() as nursery:
            for handle in handles:
                nursery.start_soon(handle.agent.session.flush)
        assert store.calls["write"] == writes + 1
        for handle in handles:
            session = handle.agent.session
            assert session.durable_seq == session.last_seq


@pytest.mark.clause("D2b")
@pytest.mark.parametrize("waits", [True, False])
async def test_flush_refuses_an_event_that_does_not_exist(
    autojump_clock: MockClock,
    *,
    waits: bool,
) -> None:
    """It could neither return nor ever be true."""
    store = FaultyStore(ak.MemoryStore(), waits=waits)
    async with opened(ScriptedModel(), store=store) as agent:
        with trio.fail_after(60), pytest.raises(ValueError, match="does not exist"):
            await agent.session.flush(agent.session.last_seq + 1)
        await agent.session.flush(agent.session.last_seq)


@pytest.mark.clause("D2b", "D2d")
async def test_a_cancelled_flush_leaves_the_write_to_go_on(
    autojump_clock: MockClock,
) -> None:
    """Who stops waiting has not stopped the disk."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(), store=store) as agent:
        await wait_all_tasks_blocked()
        hold = store.hold("write")
        sent = agent.inject("note")
        with trio.move_on_after(1) as scope:
            await agent.session.flush(sent.seq)
        assert scope.cancelled_caught
        assert agent.session.durable_seq < sent.seq
        hold.open()
        await wait_all_tasks_blocked()
        assert agent.session.durable_seq == sent.seq


@pytest.mark.clause("D2b", "I2c")
@pytest.mark.parametrize("edit", ["remove", "replace", "move", "cancel"])
async def test_an_edit_of_the_queue_is_on_its_way_to_disk_at_once(
    autojump_clock: MockClock, edit: str
) -> None:
    """A message that its user has withdrawn does not come back after a crash."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(), store=store) as agent:
        sent = agent.inject("note")
        await wait_all_tasks_blocked()
        assert agent.session.durable_seq == agent.session.last_seq
        if edit == "remove":
            agent.inbox.remove(sent.id)
        elif edit == "replace":
            agent.inbox.replace(sent.id, "other")
        elif edit == "move":
            agent.inbox.move(sent.id, 0, queue="next_turn")
        else:
            agent.cancel()
        assert agent.session.durable_seq < agent.session.last_seq
        await wait_all_tasks_blocked()
        assert agent.session.durable_seq == agent.session.last_seq


@pytest.mark.clause("D3a", "D5b")
async def test_a_session_that_could_not_be_begun_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    """Neither its id nor its events haunt the store once that works again."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        store.fail("write", times=1)
        with pytest.raises(ak.StorageError):
            await kernel.create("s")
        writes = store.calls["write"]
        await trio.sleep(60)
        assert store.calls["write"] == writes
        handle = await kernel.create("s")
        await trio.sleep(60)
        assert handle.agent.session.last_seq == 1
        assert len(await stored(store)) == 1


@pytest.mark.clause("T3b", "D3a")
async def test_a_call_that_cannot_be_recorded_is_not_executed(
    autojump_clock: MockClock,
) -> None:
    """A crash would have forgotten that it ran."""
    store = FaultyStore(ak.MemoryStore())
    tool = Probe("t")
    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [tool], store=store) as agent:
        once(agent, "tool/call", lambda: store.fail("write"))
        agent.followup("go")
        await agent.when_idle()
        assert not tool.calls
        (result,) = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert result.error is not None
        assert result.error.code == "STORAGE"
        await agent.session.flush()
        assert await stored(store.inner) == list(agent.session.events)


@pytest.mark.clause("D5b")
@pytest.mark.parametrize("takeover", [False, True])
async def test_a_session_is_not_opened_again_by_the_kernel_that_has_it_open(
    *, takeover: bool
) -> None:
    """A takeover is for an owner that is gone; this one is here, and is named."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel(["answer"], ["again"]))
        async with kernel.open("s", model="m") as agent:
            with pytest.raises(
                ak.SessionBusyError, match=r"kernel\.get\('s'\)"
            ) as busy:
                await kernel.resume("s", model="m", takeover=takeover)
            assert busy.value.holder is None
            async with agent.ask("go") as reply:
                pass
            assert reply.outcome.text == "answer"
        async with kernel.open("s", model="m", takeover=takeover) as agent:
            async with agent.ask("go") as reply:
                pass
            assert reply.outcome.text == "again"


@pytest.mark.clause("D5b")
@pytest.mark.parametrize("takeover", [False, True])
async def test_of_two_who_open_a_session_at_once_in_one_kernel_one_does(
    *, takeover: bool
) -> None:
    """Also by a takeover: neither takes it from the other."""
    opened: list[ak.AgentHandle] = []
    refused: list[ak.SessionBusyError] = []
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel(["answer"]))
        await (await kernel.create("s", model="m")).dispose()

        async def open_it() -> None:
            try:
                opened.append(await kernel.resume("s", takeover=takeover))
            except ak.SessionBusyError as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(open_it)
        assert [error.holder for error in refused] == [None, None]
        [handle] = opened
        async with handle.agent.ask("go") as reply:
            pass
        assert reply.outcome.text == "answer"


@pytest.mark.clause("D5b")
async def test_a_takeover_ends_the_agent_of_the_old_owner(
    autojump_clock: MockClock,
) -> None:
    """It hears of it with its next write, and appends nothing more to the store."""
    store = ak.MemoryStore()
    gate = Gate()
    async with ak.open_kernel(store) as old:
        old.models.register("m", ScriptedModel(["a", gate, "b"]))
        handle = await old.create("s", model="m")
        handle.agent.followup("go")
        await gate.reached()
        async with ak.open_kernel(store) as new:
            with pytest.raises(ak.SessionBusyError):
                await new.resume("s")
            mine = await new.resume("s", takeover=True)
            durable = mine.agent.session.last_seq
            gate.open()
            with pytest.raises(ak.SessionDisplacedError):
                await handle.dispose()
            await mine.agent.session.flush()
            events = await stored(store)
            assert len(events) == mine.agent.session.last_seq >= durable
            assert [e.seq for e in events] == list(range(1, len(events) + 1))


@pytest.mark.parametrize("error", [OSError("gone"), SystemExit(3)], ids=repr)
async def test_an_agent_leaves_whatever_its_store_raises(
    autojump_clock: MockClock, error: BaseException
) -> None:
    """A store is anybody's; one that cannot give a claim back must not be waited for."""

    async def live(store: ak.SessionStore, *, owned: bool) -> None:
        async with ak.open_kernel(store) as kernel:
            handle = await kernel.create("s")
            if owned:
                await handle.dispose()

    expected = ak.StorageError if isinstance(error, Exception) else type(error)
    for owned in (True, False):
        store = FaultyStore(ak.MemoryStore())
        store.fail("release", error=cast("Exception", error))
        with trio.fail_after(60), pytest.raises(expected):
            await live(store, owned=owned)


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("error", [SystemExit(3), BaseException("odd")], ids=repr)
@pytest.mark.parametrize("nth", range(1, 5))
async def test_what_a_store_raises_and_is_no_exception_leaves_the_kernel(
    autojump_clock: MockClock, nth: int, error: BaseException, *, waits: bool
) -> None:
    """It ends the block as itself, and what waits for a write is released."""
    store = FaultyStore(ak.MemoryStore(), waits=waits)
    store.fail("write", nth=nth, error=cast("Exception", error))

    async def live() -> None:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("m", ScriptedModel(default=["a", 0.1, "b"]))
            async with kernel.open("s", model="m") as agent:
                for _ in range(5):
                    agent.followup("go")
                    await agent.when_idle()

    with trio.fail_after(60), pytest.raises(type(error)) as caught:
        await live()
    assert caught.value is error


async def test_the_block_tells_of_a_loss_that_nobody_else_was_told_of(
    autojump_clock: MockClock,
) -> None:
    """A child that goes with its parent has no owner who would hear of it."""
    store = FaultyStore(ak.MemoryStore())

    async def live() -> None:
        async with ak.open_kernel(store) as kernel:
            parent = await kernel.create("parent")
            child = await kernel.create("child", parent=parent.agent)
            child.agent.inject("kept?")
            store.fail("write", times=math.inf)
            await parent.dispose()
            store.mend()

    with pytest.raises(ak.StorageError, match="scripted"):
        await live()
    async with ak.open_kernel(store) as kernel:
        owned = await kernel.create("owned")
        owned.agent.inject("kept?")
        store.fail("write", times=math.inf)
        with pytest.raises(ak.StorageError, match="scripted"):
            await owned.dispose()
        store.mend()
