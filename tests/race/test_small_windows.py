"""Windows that are a tick wide, each of which a fault could hide in unseen."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import (
    FaultyStore,
    Gate,
    Hold,
    ScriptedModel,
    call,
    check_log,
    mark,
    run_under_schedules,
)
from tests.race.parts import Probe, facts, once, opened


@pytest.mark.clause("I1a", "I1d")
async def test_an_injected_item_leaves_an_idle_agent_idle(agent: ak.Agent) -> None:
    """Not even for a moment: whoever shows the status would show work."""
    statuses: list[str] = []
    agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
    agent.inject("a note")
    assert agent.status == "idle"
    await wait_all_tasks_blocked()
    assert statuses == []


@pytest.mark.clause("C3a", "C5a")
async def test_a_stop_has_something_to_hit_from_the_wake_on(agent: ak.Agent) -> None:
    """Also when the work has been withdrawn since: the agent was said to run."""
    sent = agent.followup("go")
    agent.inbox.remove(sent.id)
    assert agent.status == "running"
    assert agent.cancel().effective
    assert not agent.cancel().effective
    await agent.when_idle()
    assert ak.TurnStarted(1) not in facts(agent)


@pytest.mark.clause("C8a", "D2c")
async def test_idle_waits_for_the_write_of_what_was_cancelled_before_it_ran(
    model: ScriptedModel,
) -> None:
    """There was no turn, so no turn's flush: idle has one of its own."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent:
        await agent.session.flush()
        held = store.hold("write")
        sent = agent.followup("go")
        assert agent.cancel().dropped == (sent.id,)
        await wait_all_tasks_blocked()
        status, durable = agent.status, agent.session.durable_seq
        held.open()
        assert status == "running"
        assert durable < agent.session.last_seq
        await agent.when_idle()
        assert agent.session.durable_seq == agent.session.last_seq


@pytest.mark.clause("C11a")
async def test_a_later_listener_of_a_serial_event_is_not_begun_behind_a_stop(
    agent: ak.Agent,
) -> None:
    """The first stops the turn and never reaches a checkpoint."""
    began: list[str] = []

    async def first(payload: ak.TurnStopping) -> None:
        began.append("first")
        payload.agent.cancel()

    async def second(_payload: ak.TurnStopping) -> None:
        began.append("second")

    agent.on(ak.TurnStopping, first)
    agent.on(ak.TurnStopping, second)
    outcome = await agent.outcome(agent.followup("go").id)
    assert (began, outcome.kind) == (["first"], "aborted")


@pytest.mark.clause("C11a", "T3c")
def test_a_stop_in_the_last_pass_before_a_body_keeps_it_from_beginning() -> None:
    """The call was announced and is durable; a stop in that pass still comes first.

    Whether it lands before or behind the body's begin is up to the task order: both
    happen, and each is told to the model as it was.
    """

    async def race() -> str:
        tool = Probe("t", body)
        async with opened(ScriptedModel([call("t")]), [tool]) as agent:
            announced = trio.Event()
            once(agent, "tool/call", announced.set)

            async def stop() -> None:
                await announced.wait()
                mark("stop")
                agent.cancel()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stop)
                agent.followup("go")
            await agent.when_idle()
            (result,) = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
            assert result.error is not None
            check_log(agent.session.events)
        begun = bool(tool.calls)
        assert result.error.code == ("ABORTED" if begun else "ABORTED_BEFORE_DISPATCH")
        return result.error.code

    began_after: list[str] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if invocation.signal.cancelled:
            began_after.append(invocation.call_id)
        await trio.sleep_forever()
        raise AssertionError

    counts = run_under_schedules(race, seeds=range(40)).count()
    assert began_after == [], "a body began although its turn had been stopped"
    assert len(counts) == 2, counts


@pytest.mark.clause("T3a")
async def test_call_ids_are_unique_in_the_whole_session(agent: ak.Agent) -> None:
    """Also across turns, and in a resumed session: results are keyed by them."""
    tool = Probe("t")
    agent.tools.add(tool)
    again = call("t", id="same")
    model = ScriptedModel([again], ["ok"], [again], ["ok"], [again], ["ok"])
    agent.models.register("scripted", model)
    for text in ("one", "two", "three"):
        await agent.outcome(agent.followup(text).id)
    ids = [invocation.call_id for invocation in tool.calls]
    assert len(set(ids)) == len(ids) == 3


@pytest.mark.clause("C7a", "C7c", "I4b")
async def test_what_is_put_back_comes_before_what_arrived_meanwhile(
    agent: ak.Agent,
) -> None:
    """A followup that was claimed is older than those behind it, and stays so."""
    held = Gate()

    async def hold(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        await held.wait()
        return await following(payload)

    agent.on(ak.PreStep, hold)
    older, note = agent.followup("older"), agent.inject("note")
    await held.reached()
    newer, steered = agent.followup("newer"), agent.steer("steered")
    receipt = agent.cancel(keep_inbox=True)
    assert receipt.kept == (note.id, steered.id, older.id, newer.id)
    assert [m.id for m in agent.inbox.next_turn] == [older.id, newer.id]
    assert [m.id for m in agent.inbox.next_step] == [note.id, steered.id]
    await agent.when_idle()
    check_log(agent.session.events)


@pytest.mark.clause("C5c")
async def test_an_exit_that_an_observer_of_a_stop_asks_for_is_no_veto(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """It is raised, as itself, when the stop has been made."""
    gate = Gate()
    model.add(["begun", gate])

    def leave(_payload: ak.CancelRequested) -> None:
        raise SystemExit(3)

    agent.on(ak.CancelRequested, leave)
    sent, waiting = agent.followup("go"), agent.followup("next")
    await gate.reached()
    with pytest.raises(SystemExit):
        agent.cancel()
    stopped = agent.inbox.next_turn == ()
    gate.open()
    assert stopped
    assert (await agent.outcome(sent.id)).kind == "aborted"
    assert (await agent.outcome(waiting.id)).kind == "discarded"


@pytest.mark.clause("I5b", "D2c")
async def test_no_outcome_is_told_while_its_turns_flush_is_held(
    autojump_clock: MockClock, model: ScriptedModel
) -> None:
    """The turn has ended in memory; what it is worth is known when it is written."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent:
        await agent.session.flush()
        sent = agent.followup("go")
        holds: list[Hold] = []
        told: list[str] = []
        once(agent, "turn/end", lambda: holds.append(store.hold("write", times=2)))

        async def wait() -> None:
            told.append((await agent.outcome(sent.id)).kind)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            early, held = list(told), len(holds)
            for hold in holds:
                hold.open()
        assert (early, held, told) == ([], 1, ["completed"])


@pytest.mark.clause("C12b")
async def test_a_stop_for_a_turn_that_is_over_changes_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The button was pressed for the answer before: this one goes on."""
    gate = Gate()
    model.add(["one"], ["two ", gate])
    await agent.outcome(agent.followup("first").id)
    second = agent.followup("second")
    await gate.reached()
    receipt = agent.cancel(turn=1)
    gate.open()
    assert receipt == ak.CancelReceipt(effective=False)
    assert (await agent.outcome(second.id)).kind == "completed"


@pytest.mark.clause("T3b")
async def test_no_body_begins_while_the_write_of_its_call_is_held(
    autojump_clock: MockClock,
) -> None:
    """A crash in that moment would forget that it ran."""
    store = FaultyStore(ak.MemoryStore())
    tool = Probe("t")
    model = ScriptedModel([call("t")], ["done"])
    async with opened(model, [tool], store=store) as agent:
        await agent.session.flush()
        holds: list[Hold] = []
        once(agent, "tool/call", lambda: holds.append(store.hold("write", times=3)))
        sent = agent.followup("go")
        await trio.sleep(1)
        began, held = len(tool.calls), len(holds)
        for hold in holds:
            hold.open()
        assert (began, held) == (0, 1)
        assert (await agent.outcome(sent.id)).kind == "completed"
        assert len(tool.calls) == 1


@pytest.mark.clause("C11d", "D3d")
async def test_what_is_stuck_is_told_and_named(autojump_clock: MockClock) -> None:
    """A stop that a tool ignores: its owner hears of it, with name and age."""
    release = trio.Event()

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await release.wait()
        return ak.ToolOutput.of("late")

    async with opened(ScriptedModel([call("t")]), [Probe("t", body)]) as agent:
        told: list[tuple[str, str]] = []
        agent.on(
            ak.AgentStuck, lambda p: told.extend((b.kind, b.name) for b in p.blockers)
        )
        agent.followup("go")
        await wait_all_tasks_blocked()
        agent.cancel()
        await trio.sleep(60)
        release.set()
        await agent.when_idle()
        assert told == [("tool", "t")]


@pytest.mark.clause("C11c")
async def test_a_body_that_swallows_its_stop_is_soon_at_rest() -> None:
    """In real time: the loop below would take the processor for ever.

    It ends by itself after very many rounds, which a body at rest does not reach.
    """
    many = 200_000
    rounds = 0
    release = trio.Event()

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        nonlocal rounds
        while not release.is_set() and rounds < many:
            try:
                await release.wait()
            except trio.Cancelled:
                rounds += 1
        return ak.ToolOutput.of("late")

    async with ak.open_kernel(ak.MemoryStore(), stuck_after=0.05) as kernel:
        kernel.models.register("m", ScriptedModel([call("t")]))
        tool = Probe("t", body)
        agent = (await kernel.create("s", model="m", tools=[tool])).agent
        stuck = trio.Event()
        agent.on(ak.AgentStuck, lambda _: stuck.set())
        agent.followup("go")
        await wait_all_tasks_blocked()
        agent.cancel()
        await stuck.wait()
        # From now on it is looked at, and known by its next hundred rounds.
        for _ in range(200):
            await trio.lowlevel.checkpoint()
        before = rounds
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        after = rounds
        release.set()
        await agent.when_idle()
    assert before == after < many
