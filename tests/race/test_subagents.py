"""Awaited children: their answers, their limits, and what a stop does to a tree."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import (
    NO_ANSWER,
    ChildRefusedError,
    Persona,
    Report,
    Subagents,
    agent_tool,
)
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from tests.race.parts import Probe, facts, invalidity, stored, texts


@asynccontextmanager
async def family(
    tools: list[ak.Tool] | None = None, **models: ScriptedModel
) -> AsyncGenerator[ak.Agent]:
    """An agent `s` with the model `parent`; the other models belong to children."""
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        for name, model in models.items():
            kernel.models.register(name, model)
        async with kernel.open("s", model="parent", tools=tools or []) as agent:
            with trio.fail_after(3600):
                yield agent


def described(agent: ak.Agent) -> list[tuple[str, str | None]]:
    """Which children a log names, and how they ended."""
    return [
        (fact.child, None if fact.ending is None else fact.ending.kind)
        for fact in facts(agent)
        if isinstance(fact, ak.SubagentDescribed)
    ]


async def log_of(agent: ak.Agent, child: str) -> list[ak.SessionEvent]:
    return await stored(agent.kernel.store, child)


def turn_endings(events: list[ak.SessionEvent]) -> list[str]:
    return [e.data.reason.kind for e in events if isinstance(e.data, ak.TurnEnded)]


async def test_a_child_reports_and_its_session_stays_resumable() -> None:
    """The parent's call gets the text; the child's session is closed, not lost."""
    child_model = ScriptedModel(["forty-two"], ["still here"])
    parent = ScriptedModel([call("agent", prompt="what is it?")], ["I see"])
    worker = Persona("worker", "works", system="You work.", model="child")
    async with family([agent_tool(worker)], parent=parent, child=child_model) as agent:
        agent.followup("ask somebody")
        await agent.when_idle()
        assert texts(parent.requests[1].messages)[-1] == "forty-two"
        assert child_model.requests[0].system == "You work."
        assert texts(child_model.requests[0].messages) == ["what is it?"]
        [(child, begun), (same, ended)] = described(agent)
        assert (child, begun, ended) == (same, None, "completed")
        assert [live.id for live in agent.kernel.agents] == ["s"]
        events = await log_of(agent, child)
        check_log(events)
        header = events[0].data
        assert isinstance(header, ak.SessionHeader)
        assert header.lineage == ak.Lineage(parent="s", depth=1)
        async with agent.kernel.open(child) as resumed:
            sent = resumed.followup("are you there?")
            outcome = await resumed.outcome(sent.id)
        assert outcome.text == "still here"
        assert texts(child_model.requests[1].messages)[0] == "what is it?"


@pytest.mark.case("SUB-07")
@pytest.mark.parametrize("order", [(2, 0, 1), (0, 1, 2), (1, 2, 0)])
async def test_parallel_children_answer_their_own_calls(
    order: tuple[int, int, int],
) -> None:
    """Whatever the order in which they end, and one of them failing."""
    gates = [Gate(), Gate(), Gate()]
    scripts: list[list[str | Gate | Exception]] = [
        [gates[0], "zero"],
        [gates[1], ak.ModelError("broken")],
        [gates[2], "two"],
    ]
    personas = [Persona(f"p{i}", model=f"m{i}") for i in range(3)]
    parent = ScriptedModel(
        [call("agent", prompt="go", agent=f"p{i}") for i in range(3)], ["done"]
    )
    models = {f"m{i}": ScriptedModel(script) for i, script in enumerate(scripts)}
    async with family([agent_tool(*personas)], parent=parent, **models) as agent:
        agent.followup("three at once")
        for gate in gates:
            await gate.reached()
        for index in order:
            gates[index].open()
            await trio.testing.wait_all_tasks_blocked()
        await agent.when_idle()
        check_log(agent.session.events)
    [results] = [
        m for m in parent.requests[1].messages if isinstance(m, ak.ToolResults)
    ]
    assert [r.error and r.error.code for r in results.results] == [
        None,
        "CHILD_ERROR",
        None,
    ]
    assert texts(parent.requests[1].messages)[-1] == "zero|CHILD_ERROR|two"
    assert invalidity(parent.requests[1].messages) is None


@pytest.mark.clause("S4")
@pytest.mark.case("SUB-01")
async def test_a_stop_of_the_parent_ends_everything_below_it() -> None:
    """Child and grandchild end `aborted`, as asked for by their parent."""
    gate = Gate()
    running: list[ak.StopReason | None] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        invocation.signal.on_cancel(running.append)
        await gate.wait()
        raise AssertionError

    tool = agent_tool(Persona("deep", model="child"))
    parent = ScriptedModel([call("agent", prompt="go")], ["never"])
    child = ScriptedModel(
        [call("agent", prompt="go deeper")], [call("hold")], default=["never"]
    )
    async with family([tool, Probe("hold", body)], parent=parent, child=child) as agent:
        agent.followup("start")
        await gate.reached()
        causes: list[str] = []
        agent.kernel.on(ak.CancelRequested, lambda p: causes.append(p.cause.kind))
        receipt = agent.cancel()
        assert receipt.turn == 1
        assert running == [ak.StopReason("parent")]
        await agent.when_idle()
        assert agent.kernel.agents == (agent,)
        assert causes == ["user", "parent", "parent"]
        [first, *_] = described(agent)
        below = await log_of(agent, first[0])
        grandchildren = [
            e.data.child for e in below if isinstance(e.data, ak.SubagentDescribed)
        ]
        for events in (below, await log_of(agent, grandchildren[0])):
            check_log(events)
            assert turn_endings(events) == ["aborted"]
        assert described(agent)[-1] == (first[0], "aborted")
        results = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert [r.error and r.error.code for r in results] == ["ABORTED"]
        check_log(agent.session.events)
    assert len(parent.requests) == 1
    assert len(child.requests) == 2


async def test_cancelling_only_the_child_is_an_ordinary_result_for_the_parent() -> None:
    """The parent's turn goes on, and is told that the child was stopped."""
    gate = Gate()
    parent = ScriptedModel([call("agent", prompt="go")], ["so be it"])
    child = ScriptedModel(["half of ", gate])
    tool = agent_tool(Persona("w", model="child"))
    async with family([tool], parent=parent, child=child) as agent:
        sent = agent.followup("start")
        await gate.reached()
        [below] = [a for a in agent.kernel.agents if a.parent is agent]
        below.cancel()
        outcome = await agent.outcome(sent.id)
        assert (outcome.kind, outcome.text) == ("completed", "so be it")
    [results] = [
        m for m in parent.requests[1].messages if isinstance(m, ak.ToolResults)
    ]
    assert results.results[0].error == ak.ToolFailure(
        "CHILD_ABORTED", "The agent did not finish: it was stopped."
    )
    assert results.results[0].content[-1] == ak.TextBlock("half of ")


async def test_a_fork_begins_where_the_last_turn_ended_and_inherits_no_input() -> None:
    """The open turn, its call and what is queued stay the parent's."""
    gate = Gate()
    parent = ScriptedModel(["hello"], [call("agent", prompt="go")], ["end"], ["third"])
    child = ScriptedModel([gate, "forked"])
    tool = agent_tool(Persona("w", model="child", fork=True))
    async with family([tool], parent=parent, child=child) as agent:
        agent.followup("first")
        await agent.when_idle()
        agent.followup("second")
        agent.followup("queued")
        await gate.reached()
        assert texts(child.requests[0].messages) == ["first", "hello", "go"]
        gate.open()
        await agent.when_idle()
        events = await log_of(agent, described(agent)[0][0])
        check_log(events)
        header = events[0].data
        assert isinstance(header, ak.SessionHeader)
        assert (header.lineage.forked_from, header.lineage.parent) == ("s", "s")
    assert texts(parent.requests[3].messages)[-1] == "queued"


async def test_a_fork_in_the_first_turn_has_no_history() -> None:
    """There is nothing to inherit yet; a long open turn does not hide that."""
    parent = ScriptedModel(["x"] * 3000 + [call("agent", prompt="go")], ["end"])
    child = ScriptedModel(["forked"])
    tool = agent_tool(Persona("w", model="child", fork=True))
    async with family([tool], parent=parent, child=child) as agent:
        agent.followup("first")
        await agent.when_idle()
    assert texts(child.requests[0].messages) == ["go"]


@pytest.mark.case("SUB-09")
async def test_a_fork_of_an_agent_in_a_tool_leaves_the_call_to_the_original() -> None:
    """The real result reaches the original alone; the fork's request is valid."""
    gate = Gate()

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("the real result")

    parent = ScriptedModel([call("hold")], ["fork says"], ["parent says"])
    async with family([Probe("hold", body)], parent=parent) as agent:
        sent = agent.followup("start")
        await gate.reached()
        async with await agent.kernel.fork(agent) as fork:
            other = fork.followup("and you?")
            assert (await fork.outcome(other.id)).text == "fork says"
            gate.open()
            assert (await agent.outcome(sent.id)).text == "parent says"
            assert invalidity(parent.requests[1].messages) is None
            assert "LEFT_TO_ORIGINAL" in texts(parent.requests[1].messages)
            assert "the real result" in texts(parent.requests[2].messages)
            assert "the real result" not in texts(fork.session.messages)


@pytest.mark.case("SUB-10")
async def test_a_fork_of_a_parent_with_children_shares_nothing_with_it() -> None:
    """Children are snapshots in a fork: they live in, and report to, the original."""
    gate = Gate()
    parent = ScriptedModel(
        [call("agent", prompt="one")], [call("agent", prompt="two")], default=["fine"]
    )
    child = ScriptedModel(["first child"], [gate, "second child"])
    tool = agent_tool(Persona("w", model="child"))
    async with family([tool], parent=parent, child=child) as agent:
        agent.followup("start")
        await gate.reached()
        early = next(e.seq for e in agent.session.events if e.type == "tool/result")
        async with (
            await agent.kernel.fork(agent, at=early) as first,
            await agent.kernel.fork(agent) as second,
            await agent.kernel.fork(second) as third,
        ):
            forks = (first, second, third)
            assert len({agent.id, *(fork.id for fork in forks)}) == 4
            assert not [a for a in agent.kernel.agents if a.parent in forks]
            before = [described(fork) for fork in forks]
            gate.open()
            await agent.when_idle()
            assert described(agent)[-1][1] == "completed"
            assert [described(fork) for fork in forks] == before
            for fork in forks:
                fork.followup(f"to {fork.id}")
                await fork.when_idle()
                check_log(await stored(agent.kernel.store, fork.id))
                assert invalidity(fork.session.messages) is None
            assert third.session.header.lineage.forked_from == second.id
            assert "second child" not in "".join(texts(second.session.messages))
            everybody = "".join(texts(agent.session.messages))
            assert not [fork for fork in forks if fork.id in everybody]
        for fork in forks:
            async with await agent.kernel.resume(fork.id) as resumed:
                assert f"to {fork.id}" in texts(resumed.session.messages)


@pytest.mark.case("SUB-08")
async def test_a_child_that_waits_for_a_place_and_is_cancelled_never_starts() -> None:
    """It takes no place with it: the next one in line gets the place."""
    gate = Gate()
    child = ScriptedModel([gate, "one"], ["three"])
    subagents = Subagents([Persona("w", model="child")], max_children=1)
    reports: dict[int, Report] = {}
    async with family(parent=ScriptedModel(), child=child) as agent:

        async def run(number: int, scope: trio.CancelScope) -> None:
            with scope:
                reports[number] = await subagents.run(agent, f"task {number}")

        scopes = [trio.CancelScope() for _ in range(3)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, 0, scopes[0])
            await gate.reached()
            nursery.start_soon(run, 1, scopes[1])
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(run, 2, scopes[2])
            await trio.testing.wait_all_tasks_blocked()
            scopes[1].cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert scopes[1].cancelled_caught
            gate.open()
        assert {n: r.text for n, r in reports.items()} == {0: "one", 2: "three"}
        assert len(described(agent)) == 4


@pytest.mark.case("SUB-06")
async def test_a_child_that_ignores_its_stop_holds_its_place_until_it_has_ended() -> (
    None
):
    """What the log says of it, and whether its place is free, agree at any time."""
    gate = Gate()
    stuck: list[ak.AgentStuck] = []

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ak.ToolOutput.of("committed")

    child = ScriptedModel([call("hold")], default=["next"])
    below: ak.Agent | None = None
    subagents = Subagents([Persona("w", model="child")], max_children=1)
    async with family(
        [Probe("hold", body)], parent=ScriptedModel(), child=child
    ) as agent:
        agent.kernel.on(ak.AgentStuck, stuck.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subagents.run, agent, "first")
            await gate.reached()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.sleep(10)
                [below] = [a for a in agent.kernel.agents if a.parent is agent]
                assert below.status == "running"
                assert [b.name for b in below.blockers()] == ["hold"]
                assert [p.agent for p in stuck] == [below]
                assert described(agent) == [(below.id, None)]
                gate.open()
        assert below is not None
        assert described(agent) == [(below.id, None), (below.id, "aborted")]
        assert below.cancel() == ak.CancelReceipt(effective=False)
        assert (await subagents.run(agent, "second")).text == "next"


async def test_depth_is_limited_and_the_last_ones_are_not_offered_children() -> None:
    """A model is not shown a tool that would refuse every call of it."""
    parent = ScriptedModel([call("agent", prompt="go")], ["end"])
    child = ScriptedModel([call("agent", prompt="go")], ["two"], ["one"])
    tool = agent_tool(Persona("w", model="child"), max_depth=2)
    async with family([tool], parent=parent, child=child) as agent:
        agent.followup("start")
        await agent.when_idle()
        assert [spec.name for spec in child.requests[0].tools] == ["agent"]
        assert child.requests[1].tools == ()
        async with await agent.kernel.create(parent=agent) as one:
            async with await agent.kernel.create(parent=one, model="child") as two:
                with pytest.raises(ChildRefusedError, match="too deep"):
                    await tool.subagents.run(two, "deeper")


async def test_a_persona_has_the_tools_that_it_is_given_and_no_others() -> None:
    """Neither of its parent's nor of the kernel's."""
    child = ScriptedModel(["done"])
    persona = Persona("w", model="child", tools=("read",))
    async with family(
        [Probe("read"), Probe("write")], parent=ScriptedModel(), child=child
    ) as agent:
        agent.kernel.tools.add(Probe("shell"))
        await Subagents([persona]).run(agent, "go")
    assert [spec.name for spec in child.requests[0].tools] == ["read"]


class City(msgspec.Struct):
    name: str
    people: int = 0


@pytest.mark.parametrize(
    "script",
    [
        [[call("answer", name="Bern", people=7)], ["done"]],
        [['```json\n{"name": "Bern", "people": 7}\n```']],
        [["Bern, I think"], [call("answer", name="Bern", people=7)], ["done"]],
        [
            [call("answer", name="Bern", people="many")],
            [call("answer", name="Bern", people=7)],
            ["done"],
        ],
    ],
    ids=["tool", "text", "reminded", "corrected"],
)
async def test_a_structured_answer_fits_its_schema(script: list[list[str]]) -> None:
    """However the model comes to it: by the tool, in its text, or when reminded."""
    child = ScriptedModel(*script)
    subagents = Subagents([Persona("w", model="child")])
    async with family(parent=ScriptedModel(), child=child) as agent:
        report = await subagents.run(agent, "which city?", schema=City)
    assert report.ok
    assert report.answer == {"name": "Bern", "people": 7}
    assert [spec.name for spec in child.requests[0].tools] == ["answer"]


async def test_a_child_without_a_fitting_answer_is_asked_once_more_and_fails() -> None:
    """A value that was not checked never reaches the caller."""
    child = ScriptedModel(["no"], ['{"nam": 1}'], ["never"])
    subagents = Subagents([Persona("w", model="child")])
    schema: ak.JsonObject = {"type": "array", "items": {"type": "integer"}}
    async with family(parent=ScriptedModel(), child=child) as agent:
        report = await subagents.run(agent, "numbers?", schema=schema)
    assert report.failure is not None
    assert report.failure.code == NO_ANSWER
    assert report.answer is None
    assert len(child.requests) == 2


async def test_a_grandchild_does_not_answer_for_its_parent() -> None:
    """The answering tool of a child is its own: it is not copied downwards."""
    child = ScriptedModel(
        [call("agent", prompt="go")], [call("answer", value=1)], ["d"]
    )
    deep = ScriptedModel(["deep"])
    tool = agent_tool(Persona("deep", model="deep"))
    async with family([tool], parent=ScriptedModel(), child=child, deep=deep) as agent:
        report = await Subagents([Persona("w", model="child")]).run(
            agent, "go", schema={"type": "integer"}
        )
        assert report.answer == 1
    assert "answer" not in [spec.name for spec in deep.requests[0].tools]
    assert "answer" in [spec.name for spec in child.requests[0].tools]


async def test_tokens_of_a_child_are_summed_over_its_steps() -> None:
    """What is not known stays unknown, and is not counted as zero."""
    child = ScriptedModel(
        [call("read"), ak.UsageChunk(ak.Usage(input_tokens=3))],
        ["end", ak.UsageChunk(ak.Usage(input_tokens=4, output_tokens=1))],
    )
    subagents = Subagents([Persona("w", model="child")])
    async with family([Probe("read")], parent=ScriptedModel(), child=child) as agent:
        report = await subagents.run(agent, "go")
    assert report.usage == ak.Usage(input_tokens=7, output_tokens=1)


async def test_ending_the_parent_ends_its_children_first() -> None:
    """Both turns say `disposed`, and the child leaves the registry before."""
    gate = Gate()
    gone: list[str] = []
    parent = ScriptedModel([call("agent", prompt="go")])
    child = ScriptedModel([gate])
    tool = agent_tool(Persona("w", model="child"))
    async with family([tool], parent=parent, child=child) as agent:
        agent.kernel.on(ak.AgentDisposed, lambda p: gone.append(p.agent.id))
        agent.followup("start")
        await gate.reached()
        [below] = [a for a in agent.kernel.agents if a is not agent]
    assert gone == [below.id, "s"]
    assert described(agent)[-1] == (below.id, "disposed")
    for one in (agent, below):
        assert turn_endings(list(one.session.events)) == ["disposed"]
        check_log(one.session.events)
