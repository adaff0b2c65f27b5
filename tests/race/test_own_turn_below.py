"""Who works in a child's turn, for a turn that waits for that child, must not wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Subagents, agent_tool
from agentkernel.bridges.workflow import Flow, WorkflowOptions, WorkflowTool
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import Probe
from tests.race.test_subagents import family

Ask = Callable[[ak.Agent], Awaitable[object]]


async def _idle(agent: ak.Agent) -> None:
    await agent.when_idle()


async def _outcome(agent: ak.Agent) -> None:
    [message] = [m for m in agent.session.messages if isinstance(m, ak.UserMessage)]
    await agent.outcome(message.id)


async def _ask(agent: ak.Agent) -> None:
    async with agent.ask("and wait for it"):
        raise AssertionError


async def _study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
    async def one(flow: Flow) -> ak.JsonValue:
        return await flow.agent("look up")

    return [*await flow.parallel([one])]


STUDY = WorkflowTool(
    ak.ToolSpec("study", "Studies.", {"type": "object"}),
    _study,
    options=WorkflowOptions(model="child"),
)


@asynccontextmanager
async def looking_up(
    verb: Ask, *steps: str, start: str = "agent"
) -> AsyncGenerator[tuple[ak.Agent, list[str]]]:
    """A parent whose children go down as `steps` say; the last one looks up."""
    refused: list[str] = []

    async def up(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        try:
            await verb(agent)
        except ak.OwnTurnError as error:
            refused.append(error.verb)
        return ak.ToolOutput.of("done")

    tools: list[ak.Tool] = [
        Probe("up", up),
        STUDY,
        agent_tool(Persona("w", model="child")),
    ]
    child = ScriptedModel(*[[call(step, prompt="go")] for step in steps], default=["x"])
    parent = ScriptedModel([call(start, prompt="go")], default=["end"])
    async with family(tools, parent=parent, child=child) as agent:
        yield agent, refused


@pytest.mark.clause("C13b")
@pytest.mark.parametrize("verb", [_idle, _outcome, _ask])
@pytest.mark.parametrize(
    ("start", "steps"),
    [("agent", ["up"]), ("agent", ["agent", "up"]), ("study", ["up"])],
    ids=["child", "grandchild", "workflow"],
)
async def test_a_child_that_is_waited_for_cannot_wait_for_who_waits(
    verb: Ask, start: str, steps: list[str]
) -> None:
    """They would wait for each other for ever; the error comes at once."""
    async with looking_up(verb, *steps, start=start) as (agent, refused):
        sent = agent.followup("go")
        with trio.fail_after(60):
            assert (await agent.outcome(sent.id)).kind == "completed"
    assert refused == [verb.__name__.lstrip("_").replace("idle", "when_idle")]


@pytest.mark.clause("C13b")
async def test_a_turn_cannot_wait_for_what_becomes_of_its_own_message() -> None:
    """What has become of others, and is known, it may ask."""
    kinds: list[str] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        agent = invocation.agent
        first, second = [
            m for m in agent.session.messages if isinstance(m, ak.UserMessage)
        ]
        kinds.append((await agent.outcome(first.id)).kind)
        with pytest.raises(ak.OwnTurnError):
            await agent.outcome(second.id)
        return ak.ToolOutput.of("done")

    parent = ScriptedModel(["one"], [call("look")], ["two"])
    async with family([Probe("look", body)], parent=parent) as agent:
        agent.followup("first")
        agent.followup("second")
        with trio.fail_after(60):
            await agent.when_idle()
    assert kinds == ["completed"]


@pytest.mark.clause("C13b")
async def test_a_child_that_no_turn_waits_for_may_wait_for_its_parent() -> None:
    """It is a task of the parent's that waits for it, and no part of a turn."""
    gate = Gate()
    done: list[str] = []
    subagents = Subagents([Persona("w", model="child")])

    async def up(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        parent = invocation.agent.parent
        assert parent is not None
        assert parent.status == "running"
        gate.open()
        await parent.when_idle()
        done.append(parent.status)
        return ak.ToolOutput.of("done")

    child = ScriptedModel([call("up")], ["x"])
    parent = ScriptedModel([gate, "end"])
    async with family([Probe("up", up)], parent=parent, child=child) as agent:

        async def job() -> None:
            report = await subagents.run(agent, "go", detached=True)
            done.append(report.ending)

        agent.followup("start")
        await gate.reached()
        agent.start_soon(job)
        while len(done) < 2:
            await trio.lowlevel.checkpoint()
    assert done == ["idle", "completed"]


@pytest.mark.clause("C13b")
async def test_a_child_may_be_told_and_watched_by_who_is_in_no_turn() -> None:
    """A parent in a turn of its own, and a child that somebody else waits for."""
    gate = Gate()

    async def up(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        gate.open()
        await agent.when_idle()
        return ak.ToolOutput.of("done")

    child = ScriptedModel([call("up")], ["fine"])
    parent = ScriptedModel([gate, "end"])
    async with family([Probe("up", up)], parent=parent, child=child) as agent:
        agent.followup("start")
        await gate.reached()
        report = await Subagents([Persona("w", model="child")]).run(agent, "go")
        assert report.text == "fine"


@pytest.mark.clause("C13b")
@pytest.mark.parametrize("by", ["when_idle", "outcome"])
async def test_it_is_the_wait_that_counts_and_not_that_there_was_one(by: str) -> None:
    """A turn that waits for its child by whatever verb, and one that has waited."""
    second = trio.Event()
    said: list[str] = []

    async def up(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if said:
            second.set()
        try:
            await agent.when_idle()
        except ak.OwnTurnError:
            said.append("refused")
        else:
            said.append("waited")
        return ak.ToolOutput.of("done")

    async def work(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        sent = below.followup("first")
        if by == "when_idle":
            await below.when_idle()
        else:
            await below.outcome(sent.id)
        below.followup("second")
        await second.wait()
        return ak.ToolOutput.of("done")

    child = ScriptedModel([call("up")], ["first"], [call("up")], default=["x"])
    parent = ScriptedModel([call("work")], default=["end"])
    tools: list[ak.Tool] = [Probe("up", up), Probe("work", work)]
    async with family(tools, parent=parent, child=child) as agent:
        async with await agent.kernel.create(model="child", parent=agent) as below:
            agent.followup("go")
            with trio.fail_after(60):
                await agent.when_idle()
                await below.when_idle()
    assert said == ["refused", "waited"]
