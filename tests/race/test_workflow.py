"""Workflows: many agents, one record; what had ended is not done again."""

from __future__ import annotations

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona
from agentkernel.bridges.workflow import (
    Flow,
    Progress,
    WorkflowAgentError,
    WorkflowLimitError,
    WorkflowLimits,
    WorkflowOptions,
    WorkflowRecordError,
    WorkflowTool,
    run_workflow,
)
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from tests.race.flows import OPTIONS, SPEC, Echo, asks, opened
from tests.race.parts import Probe, stored, texts


async def six(flow: Flow) -> list[ak.JsonValue]:
    """Six agents in two phases."""
    flow.phase("first")
    words = await flow.parallel(asks("a", "b", "c"))
    flow.phase("second")
    return list(await flow.parallel(asks(*(f"then {w}" for w in words))))


async def test_a_workflow_runs_agents_in_phases_and_records_them() -> None:
    """Positions do not depend on who is first; the record says who did what."""
    model = Echo()
    told: list[Progress] = []
    async with opened(model) as kernel:
        ways = WorkflowOptions(model="m", on_progress=told.append)
        done = await run_workflow(kernel, six, session_id="w", options=ways)
        assert done.value == ["THEN A", "THEN B", "THEN C"]
        assert (done.started, done.tokens) == (6, 42)
        assert not kernel.agents
        events = await stored(kernel.store, "w")
        check_log(events)
    names = [e.data.name for e in events if isinstance(e.data, ak.Extension)]
    assert names[0] == "workflow/started"
    assert names[-1] == "workflow/ended"
    assert names.count("workflow/agent-started") == 6
    assert names.count("workflow/agent-ended") == 6
    assert names.count("workflow/phase") == 2
    children = [e.data for e in events if isinstance(e.data, ak.SubagentDescribed)]
    assert len({fact.child for fact in children}) == 6
    phases = [(p.kind, p.phase) for p in told]
    assert phases.count(("ended", "first")) == phases.count(("ended", "second")) == 3


async def test_a_restarted_workflow_uses_what_had_ended_and_does_the_rest() -> None:
    """Cut after every event of its record, as a crash would: nothing is done twice."""
    first = Echo()
    async with opened(first) as kernel:
        whole = await run_workflow(kernel, six, session_id="w", options=OPTIONS)
        events = await stored(kernel.store, "w")
    reused: set[int] = set()
    for cut in range(1, len(events) + 1):
        store = ak.MemoryStore()
        async with store:
            claim = await store.claim("w", token="gone", create=True)  # noqa: S106  # the name of a claim
            await store.write([ak.Append(claim, events[:cut])])
            await store.release(claim)
        ended = sum(
            isinstance(e.data, ak.Extension) and e.data.name == "workflow/agent-ended"
            for e in events[:cut]
        )
        model = Echo()
        told: list[Progress] = []
        async with opened(model, store) as kernel:
            ways = WorkflowOptions(model="m", on_progress=told.append)
            again = await run_workflow(kernel, six, session_id="w", options=ways)
            assert again.value == whole.value
            assert again.started == len(model.asked) == 6 - ended
            check_log(await stored(kernel.store, "w"))
        kinds = [p.kind for p in told]
        assert kinds.count("reused") == ended
        reused.add(ended)
    assert reused == set(range(7))


async def test_what_is_asked_differently_is_done_anew() -> None:
    """A result belongs to its place, prompt, persona and schema, all of them."""
    model = Echo()

    async with opened(model) as kernel:
        for prompt, persona in (
            ("a", Persona()),
            ("a", Persona()),
            ("b", Persona()),
            ("b", Persona(system="Be kind.")),
        ):

            async def run(
                flow: Flow, prompt: str = prompt, persona: Persona = persona
            ) -> ak.JsonValue:
                return await flow.agent(prompt, persona=persona)

            await run_workflow(kernel, run, session_id="w", options=OPTIONS)
    assert model.asked == ["a", "b", "b"]


async def test_branches_that_ask_the_same_keep_their_own_results() -> None:
    """A restart gives each branch what it was told, though nothing else differs."""

    async def work(flow: Flow) -> list[ak.JsonValue]:
        return await flow.parallel(asks("same", "same", "same"))

    model = ScriptedModel(["one"], ["two"], ["three"])
    async with opened(model) as kernel:
        first = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
        again = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    assert again.value == first.value
    assert set(again.value) == {"one", "two", "three"}
    assert again.started == 0


async def test_a_pipeline_lets_no_item_wait_for_another() -> None:
    """The second item is through all stages while the first is held in its first."""
    gate = Gate()
    model = Echo({"one": gate})

    async def stage(flow: Flow, value: object) -> object:
        return await flow.agent(str(value))

    async def twice(flow: Flow, value: object) -> object:
        if value == "TWO":
            gate.open()
        return await flow.agent(f"{value}!")

    async def work(flow: Flow) -> list[object]:
        return await flow.pipeline(["one", "two"], stage, twice)

    async with opened(model) as kernel:
        done = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    assert done.value == ["ONE!", "TWO!"]
    assert model.asked.index("TWO!") < model.asked.index("ONE!")


async def test_limits_hold() -> None:
    """At once, in all, and in known tokens; what is over them is refused."""
    model = Echo()

    async def many(flow: Flow) -> int:
        await flow.parallel(asks(*(str(n) for n in range(9))))
        return 9

    async def endless(flow: Flow) -> None:
        while True:
            await flow.agent("more")

    async with opened(model) as kernel:
        ways = WorkflowOptions(model="m", limits=WorkflowLimits(at_once=2))
        await run_workflow(kernel, many, session_id="w", options=ways)
        assert model.most == 2
        for limits, fits in (
            (WorkflowLimits(agents=3), 3),
            (WorkflowLimits(tokens=20), 3),
        ):
            model.asked.clear()
            ways = WorkflowOptions(model="m", limits=limits)
            with pytest.raises(WorkflowLimitError, match="is reached"):
                await run_workflow(
                    kernel, endless, session_id=f"{fits}{limits}", options=ways
                )
            assert len(model.asked) == fits


async def test_an_agent_that_fails_is_an_error_and_ends_its_siblings() -> None:
    """As itself, not in a group; and it is tried again by a restart."""
    gate = Gate()
    model = ScriptedModel([gate, "never"], [ak.ModelError("broken")], default=["ok"])

    async def work(flow: Flow) -> list[ak.JsonValue]:
        async def second(f: Flow) -> ak.JsonValue:
            await gate.reached()
            return await f.agent("two")

        return await flow.parallel([lambda f: f.agent("one"), second])

    async with opened(model) as kernel:
        with pytest.raises(WorkflowAgentError, match="it failed"):
            await run_workflow(kernel, work, session_id="w", options=OPTIONS)
        assert not kernel.agents
        assert not model.open_streams
        done = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    assert done.value == ["ok", "ok"]
    assert done.started == 2


async def test_the_record_is_not_any_session() -> None:
    """A model that names another session must not write into it."""
    async with opened(ScriptedModel(default=["ok"])) as kernel:
        async with kernel.open("s", model="m") as agent:
            agent.followup("hello")
            await agent.when_idle()
        with pytest.raises(WorkflowRecordError):
            await run_workflow(kernel, six, session_id="s", options=OPTIONS)


async def test_a_stop_reaches_every_agent_of_a_workflow_that_a_model_started() -> None:
    """All of them end `aborted`; the call is answered; the record stays usable."""
    gate = Gate()
    model, child = (
        ScriptedModel([call("study", topic="x")], default=["fine"]),
        ScriptedModel(default=[gate]),
    )

    async def study(flow: Flow, arguments: ak.JsonObject) -> ak.JsonValue:
        assert arguments == {"topic": "x"}
        words = await flow.parallel(asks("a", "b", "c"))
        return list(words)

    async with opened(model) as kernel:
        kernel.models.register("child", child)
        tool = WorkflowTool(SPEC, study, options=WorkflowOptions(model="child"))
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            while gate.arrivals < 3:
                await trio.testing.wait_all_tasks_blocked()
            causes: list[str] = []
            kernel.on(ak.CancelRequested, lambda p: causes.append(p.cause.kind))
            below = [a for a in kernel.agents if a.parent not in {None, agent}]
            agent.cancel()
            assert causes == ["user", *["parent"] * 3]
            await agent.when_idle()
            assert kernel.agents == (agent,)
            assert not child.open_streams
            for one in below:
                check_log(one.session.events)
                [ended] = [
                    e.data
                    for e in one.session.events
                    if isinstance(e.data, ak.TurnEnded)
                ]
                assert ended.reason == ak.Ending("aborted")
            check_log(agent.session.events)


async def test_a_model_goes_on_with_a_workflow_that_failed() -> None:
    """The error names the record; what had ended is not run again."""
    child = ScriptedModel(["one"], [ak.ModelError("broken")], ["two"])
    model = ScriptedModel([call("study", topic="x")], ["it failed"])

    async def study(flow: Flow, arguments: ak.JsonObject) -> ak.JsonValue:
        return [await flow.agent("a"), await flow.agent("b")]

    async with opened(model) as kernel:
        kernel.models.register("child", child)
        tool = WorkflowTool(SPEC, study, options=WorkflowOptions(model="child"))
        async with kernel.open("s", model="m", tools=[tool, Probe("x")]) as agent:
            agent.followup("go")
            await agent.when_idle()
            results = model.requests[1].messages[-1]
            assert isinstance(results, ak.ToolResults)
            assert results.results[0].error is not None
            text = results.results[0].error.message
            record = text.rpartition("resume='")[2].partition("'")[0]
            model.add(
                [call("study", topic="x", resume="other-1")],
                [call("study", topic="x", resume=record)],
                ["done"],
            )
            agent.followup("go on")
            await agent.when_idle()
            assert "WorkflowRecordError" in str(model.requests[3].messages[-1])
            assert texts(model.requests[4].messages)[-1] == '["one","two"]'
    assert len(child.requests) == 3
