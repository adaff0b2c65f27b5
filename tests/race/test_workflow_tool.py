"""The tool that starts workflows: its arguments, its records, its errors."""

from __future__ import annotations

import pytest

import agentkernel as ak
from agentkernel.bridges.workflow import (
    Flow,
    WorkflowOptions,
    WorkflowTool,
)
from agentkernel.testing import ScriptedModel, call
from tests.race.flows import opened, results

CHILD = WorkflowOptions(model="child")


def text_of(result: ak.ToolResult) -> str:
    return "".join(b.text for b in result.content if isinstance(b, ak.TextBlock))


def record_in(result: ak.ToolResult) -> str:
    """Find the record that a failure names."""
    assert result.error is not None
    return result.error.message.rpartition("resume='")[2].partition("'")[0]


STRICT = ak.ToolSpec(
    "study",
    "Studies a topic.",
    {
        "type": "object",
        "properties": {"topic": {"type": "string"}, "n": {"type": "integer"}},
        "required": ["topic"],
        "additionalProperties": False,
    },
)


@pytest.mark.clause("T3d")
async def test_arguments_that_do_not_fit_never_reach_the_function() -> None:
    """Missing, of another type, or not foreseen: the model is told, nothing is run."""
    ran: list[ak.JsonObject] = []

    async def study(_flow: Flow, arguments: ak.JsonObject) -> ak.JsonValue:
        ran.append(arguments)
        return "fine"

    wrong = (
        call("study"),
        call("study", topic=5),
        call("study", topic="x", bogus=1),
        call("study", topic="x", resume=5),
        call("study", topic="x", resume=""),
    )
    model = ScriptedModel(
        *[[one] for one in wrong],
        [call("study", topic="x", resume=None)],
        ["done"],
    )
    async with opened(model) as kernel:
        tool = WorkflowTool(STRICT, study, options=CHILD)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
            *refused, done = results(agent)
            announced = [
                e for e in agent.session.events if isinstance(e.data, ak.ToolCalled)
            ]
        sessions = await kernel.store.sessions()
    codes = [result.error and result.error.code for result in refused]
    assert codes == ["INVALID_ARGUMENTS"] * len(wrong)
    assert ["topic" in text_of(r) for r in refused[:2]] == [True, True]
    assert "bogus" in text_of(refused[2])
    assert ["resume" in text_of(r) for r in refused[3:]] == [True, True]
    assert text_of(done) == "fine"
    assert ran == [{"topic": "x"}]
    assert len(announced) == 1
    assert len(sessions) == 2


def test_a_schema_that_is_none_is_refused_when_the_tool_is_made() -> None:
    """Not when a model calls it."""

    async def study(_flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        raise AssertionError

    spec = ak.ToolSpec("study", "Studies.", {"type": "no such type"})
    with pytest.raises(ValueError, match="type"):
        WorkflowTool(spec, study)
