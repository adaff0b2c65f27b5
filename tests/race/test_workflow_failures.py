"""What people and models are told of a workflow that failed, and which values pass."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import pytest

import agentkernel as ak
from agentkernel.bridges.subagents import Persona
from agentkernel.bridges.workflow import (
    Flow,
    WorkflowAgentError,
    WorkflowOptions,
    WorkflowTool,
    run_workflow,
)
from agentkernel.testing import ScriptedModel, call
from tests.race.flows import OPTIONS, Echo, opened, results

Branch = Callable[[Flow], Awaitable[ak.JsonValue]]
Stage = Callable[[Flow, object], Awaitable[object]]

PLAIN = ak.ToolSpec("study", "Studies.", {"type": "object"})


async def broken(flow: Flow) -> ak.JsonValue:
    raise KeyError("alpha")


async def torn(flow: Flow) -> ak.JsonValue:
    raise ValueError("beta")


async def told(fn: Callable[[Flow], object]) -> str:
    """Run something as a workflow of a tool; say what the model was told."""

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        value = fn(flow)
        if isinstance(value, Awaitable):
            value = await cast("Awaitable[object]", value)
        return cast("ak.JsonValue", value)

    model = ScriptedModel([call("study")], default=["done"])
    async with opened(model) as kernel:
        tool = WorkflowTool(PLAIN, study, options=WorkflowOptions(model="m"))
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
            [result] = results(agent)
    if result.error is None:
        return "".join(b.text for b in result.content if isinstance(b, ak.TextBlock))
    assert result.error.code == "WORKFLOW_FAILED"
    said, found, _ = result.error.message.partition(" To go on from here")
    assert found
    return said


@pytest.mark.case("CONC-04")
async def test_a_failure_names_the_types_and_the_texts_of_what_was_raised() -> None:
    """A model learns nothing from the number of exceptions in a group."""

    def quiet(_flow: Flow) -> object:
        raise ValueError

    assert await told(broken) == "The workflow failed: KeyError: 'alpha'."
    assert await told(quiet) == "The workflow failed: ValueError."
    both = await told(lambda flow: flow.parallel([broken, torn]))
    assert sorted(
        both.removeprefix("The workflow failed: ").strip(".").split("; ")
    ) == [
        "KeyError: 'alpha'",
        "ValueError: beta",
    ]


@pytest.mark.case("CONC-04")
async def test_a_group_of_branches_that_failed_says_of_each_why() -> None:
    """Whoever runs the workflow reads the same; the exceptions are those raised."""

    async def work(flow: Flow) -> None:
        await flow.parallel([broken, torn])

    async with opened(Echo()) as kernel:
        with pytest.raises(ExceptionGroup) as caught:
            await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    assert caught.value.message.startswith("2 branches of the workflow failed: ")
    assert "KeyError: 'alpha'" in caught.value.message
    assert "ValueError: beta" in caught.value.message
    assert {type(e) for e in caught.value.exceptions} == {KeyError, ValueError}


async def test_an_agent_that_failed_is_named_with_its_place_and_phase() -> None:
    """Of thirty agents side by side, one has to know which."""

    async def work(flow: Flow) -> None:
        flow.phase("read")
        await flow.parallel(
            [
                lambda branch: branch.agent("one", persona=Persona("reader")),
                lambda branch: branch.agent("two", persona=Persona("writer")),
            ]
        )

    class Failing(Echo):
        async def _chunks(self, text: str) -> AsyncIterator[ak.Chunk]:
            if text == "two":
                raise ak.ModelError("overloaded")
            async for chunk in super()._chunks(text):
                yield chunk

    async with opened(Failing()) as kernel:
        with pytest.raises(WorkflowAgentError) as caught:
            await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    error = caught.value
    assert (error.label, error.position, error.phase) == ("writer", "1.1.1", "read")
    assert str(error).startswith("agent 'writer' at 1.1.1, in phase 'read': ")
    assert str(error).endswith("it failed. overloaded")


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([math.nan], "$[0]: nan"),
        ({"a": {1, 2}}, "$.a: set"),
        (object(), "$: object"),
        ({"a": [{"b": math.inf}]}, "$.a[0].b: inf"),
        ({1: "one"}, "$: the key 1"),
    ],
)
async def test_a_result_that_json_cannot_carry_is_refused_with_its_place(
    value: object, place: str
) -> None:
    """Nothing becomes null, or another type, behind the function's back."""
    assert place in await told(lambda _flow: value)


async def test_a_result_that_json_can_carry_is_shown_as_it_is() -> None:
    """Texts as texts, half a surrogate pair as the sign for what is unreadable."""
    assert await told(lambda _flow: "fine") == "fine"
    assert (
        await told(lambda _flow: ["\ud800", (1, 2.5), None])
        == '["\ufffd",[1,2.5],null]'
    )
    assert await told(lambda _flow: "\udcff") == "\ufffd"


@pytest.mark.clause("D4")
async def test_what_agents_are_asked_may_hold_any_string() -> None:
    """By the one rule for text that no encoder takes, in prompt, persona and phase."""
    model = Echo()

    async def work(flow: Flow) -> ak.JsonValue:
        flow.phase("\udcff")
        persona = Persona("\udcff", system="be \udcff")
        return await flow.agent("read \udcff", persona=persona)

    async with opened(model) as kernel:
        for started in (1, 0):
            done = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
            assert (done.value, done.started) == ("READ \ufffd", started)
    assert model.asked == ["read \ufffd"]


async def test_a_prompt_that_is_no_text_is_refused_before_anything_is_begun() -> None:
    """With what is wrong, not with what an encoder thinks of it."""

    async def work(flow: Flow) -> None:
        await flow.agent(cast("str", 5))

    async with opened(Echo()) as kernel:
        with pytest.raises(TypeError, match="a prompt is text, not int"):
            await run_workflow(kernel, work, session_id="w", options=OPTIONS)
        assert len(await kernel.store.sessions()) == 1


@pytest.mark.filterwarnings("error")
async def test_a_branch_or_stage_that_is_no_function_is_refused_as_such() -> None:
    """A coroutine was made for another flow, and nobody is going to await it."""

    async def parallel(flow: Flow) -> None:
        await flow.parallel(cast("list[Branch]", [broken, flow.agent("p")]))

    async def pipeline(flow: Flow) -> None:
        await flow.pipeline(["a"], cast("Stage", flow.agent("p")))

    async with opened(Echo()) as kernel:
        for work, words in (
            (parallel, "a branch is a function of a flow, not coroutine"),
            (pipeline, "a stage is a function of a flow and a value, not coroutine"),
        ):
            with pytest.raises(TypeError, match=words):
                await run_workflow(kernel, work, session_id="w", options=OPTIONS)
            gc.collect()
