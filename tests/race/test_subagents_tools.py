"""Which tools a child has: what it is given, what is of use to it, and for how long."""

from __future__ import annotations

import json

import msgspec
import pytest

import agentkernel as ak
from agentkernel.bridges.subagents import (
    MAX_DEPTH,
    ChildRefusedError,
    Persona,
    Subagents,
    agent_tool,
)
from agentkernel.bridges.workflow import Flow, WorkflowOptions, WorkflowTool
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import Probe, texts
from tests.race.test_subagents import family


def shown(model: ScriptedModel, request: int = 0) -> list[str]:
    """The names of the tools that a model was shown."""
    return sorted(spec.name for spec in model.requests[request].tools)


async def test_a_tool_of_the_parent_that_is_called_answer_is_one_like_the_others() -> (
    None
):
    """Only the way in which a parent itself has to answer is its own."""
    child = ScriptedModel(["x"], [call("answer", value=1)], ["done"])
    subagents = Subagents([Persona("w", model="child", tools=("answer",))])
    async with family([Probe("answer")], parent=ScriptedModel(), child=child) as agent:
        await subagents.run(agent, "go")
        report = await subagents.run(agent, "go", schema=int)
    assert shown(child) == shown(child, 1) == ["answer"]
    assert child.requests[0].tools[0].description == "does answer"
    assert report.answer == 1


async def test_a_persona_with_tools_that_nobody_has_is_refused_by_name() -> None:
    """A slip in a name must not make an agent without tools."""
    persona = Persona("w", model="child", tools=("raed", "write", "nope"))
    parent = ScriptedModel([call("agent", prompt="go")], ["so be it"])
    child = ScriptedModel(default=["never"])
    tools: list[ak.Tool] = [Probe("read"), Probe("write"), agent_tool(persona)]
    async with family(tools, parent=parent, child=child) as agent:
        with pytest.raises(ChildRefusedError, match=r"'w'.*: nope, raed$"):
            await Subagents([persona]).run(agent, "go")
        agent.followup("start")
        await agent.when_idle()
        assert len(await agent.kernel.store.sessions()) == 1
    [results] = [
        m for m in parent.requests[1].messages if isinstance(m, ak.ToolResults)
    ]
    assert "nope, raed" in str(results.results[0].content)
    assert not child.requests


@pytest.mark.parametrize("fork", [False, True])
async def test_a_child_keeps_to_its_tools_when_its_session_is_resumed(
    *, fork: bool
) -> None:
    """Also in another kernel, that knows nothing of the one who limited it."""
    child = ScriptedModel(default=["x"])
    store = ak.MemoryStore()
    persona = Persona("w", model="child", tools=("safe",), fork=fork)
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("child", child)
        kernel.tools.add(Probe("safe"))
        kernel.tools.add(Probe("danger"))
        async with kernel.open("s", model="child") as agent:
            report = await Subagents([persona]).run(agent, "go")
            free = await Subagents([Persona(model="child")]).run(agent, "go")
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("child", child)
        kernel.tools.add(Probe("safe"))
        kernel.tools.add(Probe("danger"))
        for name, tools in ((report.child, [Probe("handed_in")]), (free.child, [])):
            async with kernel.open(name, tools=tools) as resumed:
                resumed.followup("more")
                await resumed.when_idle()
                below = await Subagents().run(resumed, "deeper")
            async with kernel.open(below.child) as resumed:
                resumed.followup("still more")
                await resumed.when_idle()
    assert shown(child, 0) == ["safe"]
    assert shown(child, 2) == shown(child, 3) == ["handed_in", "safe"]
    assert shown(child, 4) == ["safe"]
    assert shown(child, 5) == ["danger", "safe"]


async def test_a_resumed_child_is_still_not_shown_a_tool_that_would_refuse_it() -> None:
    """Its depth has not changed; the tool is everybody's, by way of the kernel."""
    child = ScriptedModel(default=["x"])
    async with family(parent=ScriptedModel(), child=child) as agent:
        tool = agent_tool(Persona("w", model="child"), max_depth=1)
        agent.kernel.tools.add(tool)
        agent.kernel.tools.add(Probe("read"))
        report = await tool.subagents.run(agent, "go")
        async with agent.kernel.open(report.child) as resumed:
            resumed.followup("more")
            await resumed.when_idle()
    assert shown(child) == shown(child, 1) == ["read"]


async def test_a_persona_may_name_a_tool_that_comes_with_its_task() -> None:
    """It is the child's own: its parent need not have it."""
    child = ScriptedModel(["x"])
    persona = Persona("w", model="child", tools=("own", "read"))
    tools = (Probe("own"), Probe("second"))
    async with family([Probe("read")], parent=ScriptedModel(), child=child) as agent:
        assert (await Subagents([persona]).run(agent, "go", tools=tools)).ok
    assert shown(child) == ["own", "read", "second"]


async def test_a_child_below_a_workflow_is_shown_no_tool_that_would_refuse_it() -> None:
    """A workflow's record takes a level, so the limit is passed and not just met."""
    parent = ScriptedModel([call("study")], ["done"])
    child = ScriptedModel(["studied"])

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        return await flow.agent("study this")

    spec = ak.ToolSpec("study", "Studies.", {"type": "object"})
    tools: list[ak.Tool] = [
        WorkflowTool(spec, study, options=WorkflowOptions(model="child")),
        agent_tool(max_depth=1),
        agent_tool(max_depth=3, name="deeper"),
    ]
    async with family(tools, parent=parent, child=child) as agent:
        agent.followup("start")
        await agent.when_idle()
    assert {"agent", "deeper"}.intersection(shown(child)) == {"deeper"}


async def test_a_tree_as_deep_as_may_be_is_stopped_in_one_call() -> None:
    """The bound on the depth is one that a stop can go down in a single tick."""
    gate = Gate()
    steps = [[call("agent", prompt="go")] for _ in range(MAX_DEPTH)]
    model = ScriptedModel(*steps, [gate], default=["never"])
    stopped: list[str] = []
    tool = agent_tool(max_depth=MAX_DEPTH)
    async with family([tool], parent=model) as agent:
        agent.followup("start")
        await gate.reached()
        agent.kernel.on(ak.CancelRequested, lambda p: stopped.append(p.agent.id))
        agent.cancel()
        assert len(stopped) == MAX_DEPTH + 1
        await agent.when_idle()
        assert agent.kernel.agents == (agent,)


def test_a_tree_that_no_stop_could_go_down_is_refused() -> None:
    """The limit is checked when it is set, not when it is too late."""
    with pytest.raises(ValueError, match=str(MAX_DEPTH)):
        agent_tool(max_depth=MAX_DEPTH + 1)


class Verdict(msgspec.Struct):
    winner: str
    points: int = 0


async def test_a_model_is_given_the_answer_of_its_child_by_a_schema() -> None:
    """It is told of the form beforehand, and gets what was checked, as JSON."""
    parent = ScriptedModel(
        [call("judge", prompt="who?"), call("judge", prompt="and why?")], ["I see"]
    )
    child = ScriptedModel(
        [call("answer", winner="me")], ["said so"], ["no idea"], ["none"]
    )
    tool = agent_tool(
        Persona("j", model="child"), name="judge", schema=Verdict, max_children=1
    )
    async with family([tool], parent=parent, child=child) as agent:
        agent.followup("start")
        await agent.when_idle()
    [spec] = parent.requests[0].tools
    assert '"winner"' in spec.description
    [results] = [
        m for m in parent.requests[1].messages if isinstance(m, ak.ToolResults)
    ]
    answered, failed = results.results
    assert json.loads(texts([results])[0].split("|")[0]) == {
        "winner": "me",
        "points": 0,
    }
    assert answered.error is None
    assert failed.error is not None
    assert failed.error.code == "CHILD_NO_ANSWER"
    assert failed.content[-1] == ak.TextBlock("none")


def test_a_schema_that_is_not_valid_is_refused_with_the_tool() -> None:
    """Not when a model first calls it."""
    with pytest.raises(ValueError, match="not valid"):
        agent_tool(schema={"type": "strin"})
