"""What a stop does to a child that somebody waits for, wherever it strikes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Report, Subagents, agent_tool
from agentkernel.testing import (
    Act,
    Gate,
    Scenario,
    ScriptedModel,
    Stage,
    call,
    cancel_everywhere,
    check_log,
)
from tests.race.parts import Probe, facts
from tests.race.test_subagents import described, family

NextStep = Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]]


def results(agent: ak.Agent) -> list[str | None]:
    """The error codes of an agent's tool results."""
    returned = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
    return [None if f.error is None else f.error.code for f in returned]


def child_of(agent: ak.Agent) -> ak.Agent:
    [child] = [a for a in agent.kernel.agents if a.parent is agent]
    return child


@pytest.mark.clause("S4", "C7c")
async def test_a_task_that_a_stop_of_the_child_has_parked_comes_to_an_end() -> None:
    """Nobody wakes a child whose parent waits, so what is parked there is taken back."""
    reached = trio.Event()
    child = ScriptedModel(default=["never"])
    parent = ScriptedModel([call("agent", prompt="go")], ["so be it"])
    tool = agent_tool(Persona("w", model="child"))
    async with family([tool], parent=parent, child=child) as agent:

        async def hold(
            payload: ak.PreStep, following: NextStep
        ) -> ak.Enter | ak.Reject:
            if payload.agent is not agent:
                reached.set()
                await trio.sleep_forever()
            return await following(payload)

        agent.kernel.on(ak.PreStep, hold)
        sent = agent.followup("start")
        await reached.wait()
        receipt = child_of(agent).cancel(ak.USER, keep_inbox=True, turn=1)
        assert len(receipt.kept) == 1
        with trio.fail_after(60):
            assert (await agent.outcome(sent.id)).text == "so be it"
        assert results(agent) == ["CHILD_DISCARDED"]
        assert described(agent)[-1][1] == "aborted"
    assert not child.requests


async def test_a_task_behind_a_turn_that_failed_comes_to_an_end() -> None:
    """A failed turn parks what waits behind it: that would be for ever, too."""
    child = ScriptedModel([ak.ModelError("broken")], default=["never"])
    subagents = Subagents([Persona("w", model="child")])
    async with family(parent=ScriptedModel(), child=child) as agent:
        agent.kernel.on(ak.ErrorReported, lambda _payload: None)
        with trio.fail_after(60):
            report = await subagents.run(
                agent, "go", on_open=lambda one: one.followup("something first")
            )
    assert report.ending == "discarded"
    assert len(child.requests) == 1


async def test_a_child_that_is_woken_again_at_once_does_its_task() -> None:
    """Whoever has stopped it and lets it go on is its user, and is not hindered."""
    reached = trio.Event()
    child = ScriptedModel(["done after all"])
    subagents = Subagents([Persona("w", model="child")])
    reports: list[Report] = []
    async with family(parent=ScriptedModel(), child=child) as agent:

        async def hold(
            payload: ak.PreStep, following: NextStep
        ) -> ak.Enter | ak.Reject:
            if not reached.is_set():
                reached.set()
                await trio.sleep_forever()
            return await following(payload)

        def idle(payload: ak.StatusChanged) -> None:
            if payload.status == "idle" and payload.agent.inbox.next_turn:
                payload.agent.wake()

        agent.kernel.on(ak.PreStep, hold)
        agent.kernel.on(ak.StatusChanged, idle)

        async def run() -> None:
            reports.append(await subagents.run(agent, "go"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await reached.wait()
            child_of(agent).cancel(keep_inbox=True)
    assert [report.text for report in reports] == ["done after all"]


@pytest.mark.clause("C11a")
async def test_no_reminder_is_sent_once_the_turn_has_been_stopped() -> None:
    """The signal may fire when the child is between two turns: nothing follows it."""
    child = ScriptedModel(["not what was asked for"], default=["never"])
    subagents = Subagents([Persona("w", model="child")])
    came: list[Report | Exception] = []
    told = trio.Event()

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        agent = invocation.agent

        async def outside() -> None:
            try:
                report = await subagents.run(
                    agent, "go", schema=dict, signal=invocation.signal
                )
                came.append(report)
            except ak.TurnCancelled as error:
                came.append(error)
            told.set()

        def idle(payload: ak.StatusChanged) -> None:
            if payload.agent is not agent and payload.status == "idle":
                agent.cancel()

        agent.kernel.on(ak.StatusChanged, idle)
        agent.start_soon(outside)
        await trio.sleep_forever()
        raise AssertionError

    parent = ScriptedModel([call("work")], default=["never"])
    async with family([Probe("work", body)], parent=parent, child=child) as agent:
        agent.followup("start")
        await agent.when_idle()
        await told.wait()
        [outcome] = came
        assert isinstance(outcome, ak.TurnCancelled)
        assert described(agent)[-1][1] == "completed"
    assert len(child.requests) == 1


class Judge:
    """Waits for a child that has to answer by a schema."""

    spec = ak.ToolSpec("judge", "Judges.", {"type": "object"})
    parallel_safe = True
    max_seconds = None

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        report = await Subagents([Persona("j", model="child", fork=True)]).run(
            call.agent, "judge", schema=dict, signal=call.signal, call_id=call.call_id
        )
        return ak.ToolOutput.of(report.ending)


async def reminded_fork(stage: Stage) -> None:
    """A child with its parent's history is reminded of its answer."""
    model = ScriptedModel(["hi"], [call("judge")], ["done"], default=["more"])
    await stage.start(model, tools=[Judge()], yielding=False)
    child = ScriptedModel(["no"], [call("answer", a=1)], ["ok"], default=["below"])
    stage.kernel.models.register("child", child)
    stage.send("first")
    await stage.settle()
    stage.send("go")
    await stage.settle()


async def child_below_child(stage: Stage) -> None:
    """A child has a child of its own."""
    tool = agent_tool(Persona("w", model="child"))
    model = ScriptedModel([call("agent", prompt="go")], ["done"], default=["more"])
    await stage.start(model, tools=[tool], yielding=False)
    child = ScriptedModel([call("agent", prompt="deeper")], default=["below"])
    stage.kernel.models.register("child", child)
    stage.send("go")
    await stage.settle()


def stop_children(stage: Stage) -> None:
    for agent in stage.kernel.agents:
        if agent is not stage.agent:
            agent.cancel()


def park_children(stage: Stage) -> None:
    for agent in stage.kernel.agents:
        if agent is not stage.agent:
            agent.cancel(keep_inbox=True)


@pytest.mark.clause("S4", "C7a")
@pytest.mark.case("SUB-01")
@pytest.mark.parametrize("act", [stop_children, park_children])
@pytest.mark.parametrize("story", [reminded_fork, child_below_child])
def test_a_stop_of_a_child_anywhere_never_holds_its_parent(
    story: Scenario, act: Act
) -> None:
    """The parent's turn goes on to its end, and its log is whole."""

    async def watched(stage: Stage) -> None:
        await story(stage)
        assert stage.kernel.agents == (stage.agent,)
        check_log(stage.agent.session.events)

    seen = cancel_everywhere(watched, act, at=("append", "task-step", "notification"))
    assert set(seen.endings) == {"completed"}


async def test_a_child_of_a_stopped_turn_is_not_even_opened() -> None:
    """The signal is looked at before the session is made, not only behind it."""
    gate = Gate()
    created: list[str] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
            with pytest.raises(ak.TurnCancelled):
                await Subagents().run(invocation.agent, "go", signal=invocation.signal)
        return ak.ToolOutput.of("ok")

    parent = ScriptedModel([call("work")], default=["never"])
    async with family([Probe("work", body)], parent=parent) as agent:
        agent.followup("start")
        await gate.reached()
        agent.kernel.on(ak.AgentCreated, lambda p: created.append(p.agent.id))
        agent.cancel()
        gate.open()
        await agent.when_idle()
    assert not created
