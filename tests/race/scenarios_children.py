"""Stories with others at work: children, jobs, workflows; played by sweeps."""

from __future__ import annotations

from functools import partial
from typing import Final

import agentkernel as ak
from agentkernel.bridges.jobs import Job, JobResult, Jobs
from agentkernel.bridges.subagents import Persona, agent_tool
from agentkernel.bridges.workflow import Flow, WorkflowOptions, WorkflowTool
from agentkernel.testing import Scenario, ScriptedModel, Stage, call
from tests.race.scenarios import HeldTool


async def child_and_grandchild(stage: Stage) -> None:
    """A child waits for a grandchild, which is in a tool."""
    gate = stage.gate()
    tool = agent_tool(Persona("w", model="child"))
    model = ScriptedModel([call("agent", prompt="go")], ["done"], default=["more"])
    child = ScriptedModel(
        [call("agent", prompt="deeper")], [call("look")], ["deep"], default=["below"]
    )
    await stage.start(model, tools=[tool, HeldTool("look", gate)])
    stage.kernel.models.register("child", child)
    stage.send("go")
    await stage.until(gate.reached)
    gate.open()
    await stage.settle()


async def job_ends_with_the_turn(stage: Stage) -> None:
    """A job ends in the tick in which its owner goes idle."""
    gate = stage.gate()
    await stage.start(ScriptedModel(["one"], default=["more"]))
    jobs = Jobs(stage.kernel)

    async def body(_job: Job) -> JobResult:
        await gate.wait()
        return JobResult("the job is done")

    def idle(payload: ak.StatusChanged) -> None:
        if payload.status == "idle":
            gate.open()

    stage.agent.on(ak.StatusChanged, idle)
    try:
        job = jobs.start(stage.agent, body, kind="test", title="work")
    except ak.AgentDisposedError:
        return
    stage.send("go")
    await stage.settle()
    gate.open()
    await job.wait()
    await stage.settle()


async def six_children_in_two_phases(stage: Stage) -> None:
    """A workflow that the model starts: three agents, and three after them."""

    async def ask(number: int, flow: Flow) -> ak.JsonValue:
        return await flow.agent(f"task {number}")

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        words: list[ak.JsonValue] = []
        for phase in ("first", "second"):
            flow.phase(phase)
            words += await flow.parallel([partial(ask, n) for n in range(3)])
        return words

    spec = ak.ToolSpec("study", "Studies.", {"type": "object"})
    tool = WorkflowTool(spec, study, options=WorkflowOptions(model="child"))
    model = ScriptedModel([call("study")], ["done"], default=["more"])
    # Six children have checkpoints enough.
    await stage.start(model, tools=[tool], yielding=False)
    stage.kernel.models.register("child", ScriptedModel(default=["word"]))
    stage.send("go")
    await stage.settle()


CHILDREN: Final[tuple[Scenario, ...]] = (
    child_and_grandchild,
    job_ends_with_the_turn,
    six_children_in_two_phases,
)
