"""The tool that starts workflows: its arguments, its records, its errors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.workflow import (
    Flow,
    WorkflowAgentError,
    WorkflowLimits,
    WorkflowOptions,
    WorkflowTool,
    run_workflow,
    workflow_ending,
)
from agentkernel.bridges.workflow.record import ENDED, Record
from agentkernel.testing import (
    Act,
    Gate,
    ScriptedModel,
    Stage,
    call,
    cancel_broadly,
    cancel_everywhere,
    cancel_scope,
    check_log,
    dispose,
)
from tests.race.flows import Echo, asks, copied, opened, results
from tests.race.parts import stored

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


async def two(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
    """One agent after the other."""
    return [await flow.agent("a"), await flow.agent("b")]


PLAIN = ak.ToolSpec("study", "Studies.", {"type": "object"})


@pytest.mark.parametrize("of", ["lead-2", "other"])
async def test_an_agent_cannot_go_on_from_the_record_of_another(of: str) -> None:
    """Whatever their names have in common: the record says whose it is."""
    child = ScriptedModel(["secret"], [ak.ModelError("broken")])
    theirs = ScriptedModel([call("study")], ["failed"])
    mine = ScriptedModel()
    async with opened(mine) as kernel:
        kernel.models.register("child", child)
        kernel.models.register("theirs", theirs)
        tool = WorkflowTool(PLAIN, two, options=CHILD)
        async with (
            kernel.open("lead", model="m", tools=[tool]) as lead,
            kernel.open(of, model="theirs", tools=[tool]) as other,
        ):
            other.followup("go")
            await other.when_idle()
            record = record_in(results(other)[0])
            for wanted in (record, record.removeprefix("lead-"), "latest"):
                mine.add([call("study", resume=wanted)], ["done"])
                lead.followup("go")
                await lead.when_idle()
                assert "WorkflowRecordError" in text_of(results(lead)[-1])
                assert "secret" not in text_of(results(lead)[-1])
    assert len(child.requests) == 2


async def test_a_record_that_never_was_is_an_error_and_none_is_made() -> None:
    """A model that misspells a record must not have everything done anew."""
    model = ScriptedModel([call("study", resume="s-nonsense")], ["done"])
    child = ScriptedModel()
    async with opened(model) as kernel:
        kernel.models.register("child", child)
        tool = WorkflowTool(PLAIN, two, options=CHILD)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
            assert "s-nonsense" in text_of(results(agent)[0])
            assert "WorkflowRecordError" in text_of(results(agent)[0])
        assert len(await kernel.store.sessions()) == 1
    assert not child.requests


@pytest.mark.parametrize("how", ["timeout", "stop", "crash", "call id"])
async def test_a_call_that_names_no_record_can_be_gone_on_with(
    how: str, autojump_clock: trio.testing.MockClock
) -> None:
    """It ran into its limit, was stopped, or a crash took it: `latest` finds its record.

    The results of those calls are the kernel's: they cannot name a record, so the
    model could not go on. The id of a call does as well.
    """
    gate = Gate()
    child = ScriptedModel(["first"], [gate, "never"], ["second"])
    store: ak.SessionStore = ak.MemoryStore()
    tool = WorkflowTool(
        PLAIN, two, options=CHILD, max_seconds=10 if how == "timeout" else None
    )
    model = ScriptedModel([call("study")], default=["ok"])
    async with opened(model, store) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await gate.reached()
            if how == "crash":
                store = await copied(store, running=True)
            if how != "timeout":
                agent.cancel()
            await agent.when_idle()
            [result] = results(agent)
            assert result.error is not None
            assert "resume" not in result.error.message
    wanted = result.call_id if how == "call id" else "latest"
    model = ScriptedModel(
        [call("study", resume=wanted)], [call("study", resume="latest")], ["done"]
    )
    child.add(["second"])
    async with opened(model, store) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go on")
            await agent.when_idle()
            *_, done, nothing_left = results(agent)
    assert text_of(done) == '["first","second"]'
    assert "WorkflowRecordError" in text_of(nothing_left)
    assert len(child.requests) == 3


@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_latest_finds_what_had_completed_if_its_result_was_lost(how: str) -> None:
    """Once the agent has been given that result, there is nothing to go on from.

    A record that had completed used to be passed over whatever had become of the
    call, and what its agents had cost was lost.
    """
    child = ScriptedModel(["first"], ["second"])
    store: ak.SessionStore = ak.MemoryStore()
    left: ak.SessionStore = store
    tool = WorkflowTool(PLAIN, two, options=CHILD)
    async with opened(ScriptedModel([call("study")], default=["ok"]), store) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="m", tools=[tool]) as agent:

            def stop(payload: ak.Appended) -> None:
                fact = payload.event.data
                if isinstance(fact, ak.Extension) and fact.name == ENDED:
                    agent.cancel()

            if how == "stop":
                kernel.on(ak.Appended, stop)
            agent.followup("go")
            await agent.when_idle()
            [lost] = results(agent)
            at = next(
                e.seq
                for e in agent.session.events
                if isinstance(e.data, ak.ToolReturned)
            )
    if how == "crash":
        left = await copied(store, {"s": at - 1})
    else:
        assert lost.error is not None
        assert lost.error.code == "ABORTED"
    model = ScriptedModel(
        [call("study", resume="latest")], [call("study", resume="latest")], ["done"]
    )
    async with opened(model, left) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go on")
            await agent.when_idle()
            *_, done, nothing_left = results(agent)
    assert text_of(done) == '["first","second"]'
    assert "WorkflowRecordError" in text_of(nothing_left)
    assert len(child.requests) == 2


async def test_latest_is_of_the_same_tool_and_not_at_work() -> None:
    """Another tool's record, and one that a call beside it works with, are left alone."""
    gate = Gate()

    async def failing(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        await flow.agent("a")
        raise ValueError("broken")

    async def held(_flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        await gate.wait()
        return "held"

    other = ak.ToolSpec("other", "Does.", {"type": "object"})
    model = ScriptedModel(
        [call("study"), call("other", resume="latest")],
        [call("other")],
        [call("study", resume="latest")],
        ["done"],
    )
    async with opened(model) as kernel:
        kernel.models.register("child", ScriptedModel(default=["word"]))
        tools = [
            WorkflowTool(PLAIN, failing, options=CHILD),
            WorkflowTool(other, failing, options=CHILD),
        ]
        async with kernel.open("s", model="m", tools=tools) as agent:
            agent.followup("go")
            await agent.when_idle()
            ordered = sorted(results(agent), key=lambda r: r.call_id)
            failed, none, others, again = ordered
            assert "WorkflowRecordError" in text_of(none)
            assert record_in(again) == record_in(failed) != record_in(others)
        model.add([call("study"), call("study", resume="latest")], ["done"])
        tool = WorkflowTool(PLAIN, held, options=CHILD)
        async with kernel.open("t", model="m", tools=[tool]) as agent:
            agent.followup("go")
            while not results(agent):
                await trio.testing.wait_all_tasks_blocked()
            assert "WorkflowRecordError" in text_of(results(agent)[0])
            gate.open()
            await agent.when_idle()


async def test_a_result_that_cannot_be_encoded_names_the_record() -> None:
    """The agents' work is not lost with it."""

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        await flow.agent("a")
        return object()  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # the point of it

    model = ScriptedModel([call("study")], [call("study", resume="latest")], ["done"])
    child = ScriptedModel(["word"])
    async with opened(model) as kernel:
        kernel.models.register("child", child)
        tool = WorkflowTool(PLAIN, study, options=CHILD)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
            first, second = results(agent)
            assert record_in(first) == record_in(second) == f"s-{first.call_id}"
    assert len(child.requests) == 1


async def nested_depth(
    limits: WorkflowLimits, *, nested: bool = False
) -> tuple[int, list[str]]:
    """Have every agent call the tool; say how deep that got, and what was answered."""
    deepest = 0
    told: list[str] = []

    def created(payload: ak.AgentCreated) -> None:
        nonlocal deepest
        deepest = max(deepest, payload.agent.session.header.lineage.depth)

    def appended(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ToolReturned):
            told.append(text_of(fact.message))

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        return await flow.agent("study this as well")

    class Eager(Echo):
        async def _chunks(self, text: str) -> AsyncIterator[ak.Chunk]:
            if text in {"go", "study this as well"}:
                yield ak.ToolCallChunk("study", "{}")
                yield ak.FinishChunk("tool-calls")
                return
            async for chunk in super()._chunks("told"):
                yield chunk

    ways = WorkflowOptions(limits=limits)
    async with opened(Eager()) as kernel:
        kernel.on(ak.AgentCreated, created)
        kernel.on(ak.Appended, appended)
        tool = WorkflowTool(PLAIN, study, options=ways, nested=nested)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
    return deepest, told


async def test_agents_of_a_workflow_do_not_have_the_tool_that_started_it() -> None:
    """A model that finds itself at the same work must not start it again, for ever."""
    deepest, told = await nested_depth(WorkflowLimits())
    assert deepest == 2
    assert "no tool named 'study'" in told[0]


async def test_workflows_inside_of_each_other_have_a_limit_of_their_depth() -> None:
    """Where they are allowed, each takes two levels; the innermost call is an error."""
    deepest, told = await nested_depth(WorkflowLimits(depth=5), nested=True)
    assert deepest == 4
    assert told[0].startswith("WorkflowLimitError: agents of depth 6 are too deep")
    assert "resume" not in told[0], "there is no record to go on from"
    assert told[1:] == ["TOLD", "TOLD"]


def test_a_limit_that_nothing_fits_is_refused_by_its_own_name() -> None:
    """Not by the name of a limit of something else, when the workflow runs."""
    for name, least in {"at_once": 1, "agents": 0, "tokens": 0, "depth": 1}.items():
        with pytest.raises(ValueError, match=f"{name} must be at least {least}"):
            msgspec.structs.replace(WorkflowLimits(), **{name: least - 1})
        msgspec.structs.replace(WorkflowLimits(), **{name: least})


@pytest.mark.clause("C10e")
@pytest.mark.case("CONC-03")
async def test_an_error_that_coincides_with_a_stop_is_published() -> None:
    """As it is for any tool: the outcome stays that of the stop."""
    begun = trio.Event()

    async def study(_flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            raise RuntimeError("boom")

    published: list[str] = []
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel([call("study")], default=["more"]))
        tool = WorkflowTool(PLAIN, study, options=CHILD)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.on(ak.ErrorReported, lambda p: published.append(repr(p.error)))
            agent.followup("go")
            await begun.wait()
            agent.cancel()
            await agent.when_idle()
            [result] = results(agent)
    assert result.error is not None
    assert result.error.code == "ABORTED"
    assert published == ["RuntimeError('boom')"]


@pytest.mark.clause("C10e")
async def test_what_a_stop_did_to_an_agent_is_no_error_of_the_workflow() -> None:
    """Not even to a function that shields itself, and so learns how its agent ended."""
    gate = Gate()

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        with trio.CancelScope(shield=True):
            await flow.agent("a")
        return "never"

    published: list[str] = []
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel([call("study")], default=["more"]))
        kernel.models.register("child", ScriptedModel([gate, "never"]))
        tool = WorkflowTool(PLAIN, study, options=CHILD)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.on(ak.ErrorReported, lambda p: published.append(repr(p.error)))
            agent.followup("go")
            await gate.reached()
            agent.cancel()
            await agent.when_idle()
            assert workflow_ending(await stored(kernel.store, "s-call_1_1_1")) == (
                "cancelled"
            )
    assert not published


class InTool:
    """A tool of the application's own that runs a workflow."""

    parallel_safe = True
    max_seconds = None
    spec = PLAIN

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        return arguments

    async def run(self, invocation: ak.ToolInvocation, /) -> ak.ToolOutput:
        async def work(flow: Flow) -> list[ak.JsonValue]:
            flow.phase("first")
            return await flow.parallel(asks("a", "b", "c"))

        ways = WorkflowOptions(
            model="child",
            parent=invocation.agent,
            signal=invocation.signal,
            limits=WorkflowLimits(at_once=2),
        )
        done = await run_workflow(
            invocation.agent.kernel,
            work,
            session_id=f"w-{invocation.call_id}",
            options=ways,
        )
        return ak.ToolOutput.of(str(done.value))


def check_record(payload: ak.AgentDisposed) -> None:
    """A record that has begun is closed, whoever ended what: so are its agents."""
    events = payload.agent.session.events
    record = Record()
    record.take(events)
    assert record.ending != "interrupted"
    assert not record.open
    named = [e.data for e in events if isinstance(e.data, ak.SubagentDescribed)]
    ended = {fact.child for fact in named if fact.ending is not None}
    assert ended == {fact.child for fact in named}


async def in_a_tool(stage: Stage) -> None:
    """A workflow in a tool of the application's own."""
    model = ScriptedModel([call("study")], ["done"], default=["more"])
    await stage.start(model, tools=[InTool()], yielding=False)
    stage.kernel.on(ak.AgentDisposed, check_record)
    stage.kernel.models.register("child", ScriptedModel(default=["word"]))
    stage.send("go")
    await stage.settle()


@pytest.mark.clause("C10e", "S3b")
@pytest.mark.parametrize("act", [dispose, cancel_scope, cancel_broadly])
def test_the_end_of_an_agent_is_no_error_of_a_workflow_that_it_waits_for(
    act: Act,
) -> None:
    """At no point of its opening, its work or its end is an error published.

    And the record is closed in time: by the function that is being stopped, or by the
    end of the record's own agent, if that comes first.
    """
    seen = cancel_everywhere(in_a_tool, act, at=("task-step",))
    assert seen.endings["completed"]


async def pipelines(stage: Stage) -> None:
    """A workflow that asks for something else when an agent of it has failed."""

    async def step(flow: Flow, value: object) -> object:
        return await flow.agent(f"do {value}")

    async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
        try:
            return str(await flow.pipeline(["a", "b"], step, step))
        except WorkflowAgentError:
            return (await flow.report("instead")).text

    model = ScriptedModel([call("study")], ["done"], default=["more"])
    tool = WorkflowTool(PLAIN, study, options=CHILD)
    await stage.start(model, tools=[tool], yielding=False)
    stage.expects_errors = True
    stage.kernel.models.register("child", ScriptedModel(default=["word"]))
    stage.kernel.on(ak.AgentDisposed, check_record)
    stage.kernel.on(ak.AgentDisposed, lambda p: check_log(p.agent.session.events))
    stage.send("go")
    await stage.settle()
    if not stage.ended:
        assert stage.kernel.agents == (stage.agent,)


def below(stage: Stage, *, keep_inbox: bool) -> None:
    for agent in stage.kernel.agents:
        if agent is not stage.agent:
            agent.cancel(keep_inbox=keep_inbox)


def cancel_below(stage: Stage) -> None:
    """Act: cancel every agent of the workflow, and its record's."""
    below(stage, keep_inbox=False)


def cancel_below_and_keep(stage: Stage) -> None:
    """Act: the same, with their tasks parked: nobody is going to wake them."""
    below(stage, keep_inbox=True)


def cancel_the_youngest(stage: Stage) -> None:
    """Act: cancel one agent, the last that was started."""
    for agent in stage.kernel.agents[1:][-1:]:
        agent.cancel()


@pytest.mark.clause("S3b")
@pytest.mark.case("SUB-01")
@pytest.mark.parametrize(
    "act", [cancel_below, cancel_below_and_keep, cancel_the_youngest]
)
def test_a_workflow_comes_to_its_end_whoever_stops_an_agent_of_it(act: Act) -> None:
    """The agent has failed, for the function to say what that means; nothing hangs."""
    seen = cancel_everywhere(pipelines, act, seeds=[1], at=("append", "notification"))
    assert seen.endings["completed"] == seen.runs + 1


@pytest.mark.long
@pytest.mark.parametrize(
    "act", [cancel_below, cancel_below_and_keep, cancel_the_youngest]
)
def test_a_workflow_comes_to_its_end_at_every_step(act: Act) -> None:
    """The same at each task step, under another order of them."""
    seen = cancel_everywhere(pipelines, act, seeds=[2], at=("task-step",))
    assert seen.endings["completed"] == seen.runs + 1
