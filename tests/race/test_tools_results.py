"""The one result of each call: order, errors, stops, and arguments that cannot run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.faulty import FaultyStore, Hold
from tests.race.parts import (
    Probe,
    facts,
    invalidity,
    once,
    opened,
    texts,
    types,
)


def results(agent: ak.Agent) -> list[ak.ToolReturned]:
    return [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]


def codes(agent: ak.Agent) -> list[str]:
    """List the results by call: the error's code, or the text."""
    found = {r.call_id: r for r in results(agent)}
    calls = [
        c
        for f in facts(agent)
        if isinstance(f, ak.AssistantReplied)
        for c in f.message.calls
    ]
    shown: list[str] = []
    for one in calls:
        result = found[one.call_id]
        if result.error is not None:
            shown.append(result.error.code)
        else:
            shown.append(
                "".join(
                    b.text
                    for b in result.message.content
                    if isinstance(b, ak.TextBlock)
                )
            )
    return shown


def ok(text: str = "ok") -> ak.ToolOutput:
    return ak.ToolOutput.of(text)


class OddError(BaseException):
    """Outside the usual family."""


@pytest.mark.clause("T2b")
async def test_safe_calls_overlap_up_to_the_limit_and_others_are_barriers(
    autojump_clock: MockClock,
) -> None:
    """Six safe calls two at a time, then an unsafe one alone, then a safe one."""
    running: list[str] = []
    overlaps: list[tuple[str, ...]] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        running.append(invocation.name)
        overlaps.append(tuple(running))
        await trio.sleep(1)
        running.remove(invocation.name)
        return ok()

    model = ScriptedModel([*([call("p")] * 6), call("b"), call("p")], ["end"])
    tools = [Probe("p", body, parallel_safe=True), Probe("b", body)]
    options = ak.AgentOptions(max_parallel_tool_calls=2)
    async with opened(model, tools, options=options) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert trio.current_time() == 5
    assert max(len(o) for o in overlaps) == 2
    assert [o for o in overlaps if "b" in o] == [("b",)]
    assert overlaps[-1] == ("p",)


@pytest.mark.clause("T2b")
def test_ten_safe_calls_overlap_by_default() -> None:
    """A model that asks for thirty does not get thirty at once."""
    assert ak.AgentOptions().max_parallel_tool_calls == 10


@pytest.mark.clause("T2c")
@pytest.mark.case("PAIR-08")
async def test_results_are_recorded_as_they_end_and_shown_in_call_order(
    autojump_clock: MockClock,
) -> None:
    """The model sees one block behind its message, steering and notes after it."""
    store = FaultyStore(ak.MemoryStore())

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        seconds = invocation.arguments["s"]
        assert isinstance(seconds, int)
        await trio.sleep(seconds)
        return ok(f"after {seconds}")

    model = ScriptedModel([call("p", s=n) for n in (3, 1, 2)], ["end"])
    tool = Probe("p", body, parallel_safe=True)
    async with opened(model, [tool], store=store) as agent:
        agent.followup("go")
        await trio.sleep(1.5)
        agent.steer("steered")
        agent.inject("noted")
        assert [r.call_id for r in results(agent)] == ["call_1_1_2"]
        await wait_all_tasks_blocked()
        assert agent.session.durable_seq == agent.session.last_seq
        await agent.when_idle()
        assert [r.call_id[-1] for r in results(agent)] == ["2", "3", "1"]
        shown = model.requests[1].messages
        assert texts(shown) == ["go", "", "after 3|after 1|after 2", "steered", "noted"]


@pytest.mark.clause("T2d")
@pytest.mark.case("PAIR-06")
async def test_a_tool_that_raises_leaves_its_siblings_alone(
    autojump_clock: MockClock,
) -> None:
    """They run to their own end, and the model is asked again."""

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if invocation.arguments["s"] == 0:
            raise ValueError("broken")
        await trio.sleep(2)
        return ok()

    model = ScriptedModel([call("p", s=n) for n in (1, 0, 1)], ["end"])
    async with opened(model, [Probe("p", body, parallel_safe=True)]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["ok", "TOOL_ERROR", "ok"]
        assert len(model.requests) == 2
        (failed,) = [r for r in results(agent) if r.error]
        assert failed.error is not None
        assert "broken" in failed.error.message


@pytest.mark.clause("T2d", "T3c")
@pytest.mark.case("PAIR-03")
@pytest.mark.parametrize(
    "error",
    [
        OddError("odd"),
        asyncio.CancelledError(),
        BaseExceptionGroup("two", [OddError("a"), ValueError("b")]),
        ak.TurnCancelled(),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_whatever_a_body_raises_becomes_its_result(
    autojump_clock: MockClock, error: BaseException
) -> None:
    """Without a stop nothing is a stop, and nothing is swallowed."""

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        raise error

    model = ScriptedModel([call("t")], ["end"], ["more"])
    async with opened(model, [Probe("t", body)]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["TOOL_ERROR"]
        agent.followup("more")
        await agent.when_idle()
        endings = [f.reason.kind for f in facts(agent) if isinstance(f, ak.TurnEnded)]
        assert endings == ["completed", "completed"]


@pytest.mark.clause("T3a")
@pytest.mark.case("PAIR-09")
async def test_a_provider_that_repeats_its_ids_confuses_nobody(
    autojump_clock: MockClock,
) -> None:
    """Each call runs once, has its own id, and keeps the provider's beside it."""
    store = ak.MemoryStore()
    tool = Probe("t", parallel_safe=True)
    model = ScriptedModel(
        [call("t", id="x", n=1), call("t", id="x", n=2)],
        [call("t", id="x", n=3)],
        ["end"],
    )
    async with opened(model, [tool], store=store) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert sorted(str(c.arguments["n"]) for c in tool.calls) == ["1", "2", "3"]
        calls = [
            c
            for f in facts(agent)
            if isinstance(f, ak.AssistantReplied)
            for c in f.message.calls
        ]
        assert len({c.call_id for c in calls}) == 3
        assert {c.provider_id for c in calls} == {"x"}
        assert invalidity(model.requests[2].messages) is None
        live = tuple(agent.session.messages)
    async with opened(model, [tool], store=store) as agent:
        assert tuple(agent.session.messages) == live


@pytest.mark.clause("T3b", "D2d")
async def test_a_body_starts_when_its_call_is_durable_and_a_stop_need_not_wait(
    autojump_clock: MockClock,
) -> None:
    """A crash may forget what was planned, never what was begun."""
    store = FaultyStore(ak.MemoryStore())
    tool = Probe("t")
    model = ScriptedModel([call("t")], default=["end"])
    async with opened(model, [tool], store=store) as agent:
        holds: list[Hold] = []
        once(agent, "tool/call", lambda: holds.append(store.hold("write")))
        agent.followup("go")
        await wait_all_tasks_blocked()
        (hold,) = holds
        assert hold.reached.is_set()
        assert types(agent)[-1] == "tool/call"
        assert not tool.calls
        agent.cancel()
        await wait_all_tasks_blocked()
        assert types(agent)[-1] == "turn/end"
        assert agent.status == "running"
        assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
        hold.open()
        await agent.when_idle()
        assert not tool.calls
        assert agent.session.durable_seq == agent.session.last_seq


@pytest.mark.clause("T3c")
@pytest.mark.case("PAIR-01", "PAIR-04", "CAN-04")
async def test_a_stop_answers_each_call_by_how_far_it_had_come(
    autojump_clock: MockClock,
) -> None:
    """Returned, started, waiting for a slot, waiting behind a barrier."""
    gate = Gate()

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if invocation.arguments["n"] == 0:
            return ok("done")
        await gate.wait()
        return ok()

    model = ScriptedModel(
        [*(call("p", n=n) for n in range(4)), call("b", n=4)], default=["end"]
    )
    tools = [Probe("p", body, parallel_safe=True), Probe("b", body)]
    options = ak.AgentOptions(max_parallel_tool_calls=2)
    async with opened(model, tools, options=options) as agent:
        agent.followup("go")
        await gate.reached()
        await wait_all_tasks_blocked()
        agent.cancel()
        await agent.when_idle()
        assert codes(agent) == [
            "done",
            "ABORTED",
            "ABORTED",
            "ABORTED_BEFORE_DISPATCH",
            "ABORTED_BEFORE_DISPATCH",
        ]
        assert len(tools[0].calls) == 3
        assert tools[0].ended == 3
        assert not tools[1].calls
        assert len(model.requests) == 1
        agent.followup("hi")
        await agent.when_idle()
        shown = model.requests[1].messages
        assert invalidity(shown) is None
        assert isinstance(shown[2], ak.ToolResults)
        assert len(shown[2].results) == 5


@pytest.mark.clause("T3c")
async def test_a_value_that_comes_after_the_stop_is_the_result(
    autojump_clock: MockClock,
) -> None:
    """What was committed has happened: the model must not do it again."""
    gate = Gate()

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ok("booked")

    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [Probe("t", body)]) as agent:

        async def post(_payload: ak.PostExecute, _next: object) -> ak.ToolOutput:
            raise AssertionError("a stopped turn asks nobody what to show")

        agent.on(ak.PostExecute, post)
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        await wait_all_tasks_blocked()
        assert agent.status == "running"
        gate.open()
        await agent.when_idle()
        assert codes(agent) == ["booked"]
        assert len(results(agent)) == 1


@pytest.mark.clause("T3d")
@pytest.mark.case("TOOL-01")
async def test_an_unknown_tool_is_answered_with_the_known_ones(
    autojump_clock: MockClock,
) -> None:
    """Its valid sibling runs, and a model that insists comes to the limit of steps."""
    tool = Probe("t")
    model = ScriptedModel([call("nope"), call("t")], default=[call("nope")])
    async with opened(model, [tool], options=ak.AgentOptions(max_steps=4)) as agent:
        sent = agent.followup("go")
        await agent.when_idle()
        assert codes(agent)[:2] == ["UNKNOWN_TOOL", "ok"]
        error = results(agent)[0].error
        assert error is not None
        assert "'nope'" in error.message
        assert "t" in error.message.rpartition(":")[2]
        assert (await agent.outcome(sent.id)).kind == "max-steps"
        assert "tool/call" not in [
            f.TYPE
            for f in facts(agent)
            if isinstance(f, ak.ToolCalled) and f.name == "nope"
        ]


@pytest.mark.clause("T3d")
@pytest.mark.case("TOOL-02")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a":',
        "null",
        "[1]",
        '"s"',
        "x" * 300_000,
        '{"a": NaN}',
        "[" * 10_000,
        '{"a": 1e999}',
    ],
    ids=["cut", "null", "list", "string", "junk", "nan", "deep", "inf"],
)
async def test_arguments_that_are_no_object_reach_no_body(
    autojump_clock: MockClock, arguments: str
) -> None:
    """The result explains within bounds, and the request stays acceptable."""
    tool = Probe("t")
    model = ScriptedModel([ak.ToolCallChunk("t", arguments)], ["end"])
    async with opened(model, [tool]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert not tool.calls
        assert codes(agent) == ["INVALID_ARGUMENTS"]
        error = results(agent)[0].error
        assert error is not None
        assert 0 < len(error.message) < 1000
        reply = model.requests[1].messages[1]
        assert isinstance(reply, ak.AssistantMessage)
        assert reply.calls[0].arguments == {}
        for event in agent.session.events:
            ak.encode_event(event)


@pytest.mark.clause("T2b")
@pytest.mark.case("TOOL-04")
async def test_a_tool_beyond_its_limit_is_ended_and_the_turn_goes_on(
    autojump_clock: MockClock,
) -> None:
    """The result names the tool and its limit, and no task of it is left."""

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.sleep_forever()
        raise AssertionError

    tool = Probe("slow", body, max_seconds=1)
    model = ScriptedModel([call("slow")], ["end"])
    async with opened(model, [tool]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert trio.current_time() == 1
        assert codes(agent) == ["TIMEOUT"]
        error = results(agent)[0].error
        assert error is not None
        assert "slow" in error.message
        assert "1 s" in error.message
        assert tool.ended == 1
        assert agent.blockers() == ()
        assert len(model.requests) == 2


@pytest.mark.clause("T3c")
async def test_a_value_is_the_result_though_a_listener_outlasts_the_limit(
    autojump_clock: MockClock,
) -> None:
    """What the body has done is done: nobody is told that it was ended."""

    async def body(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput.of("paid 100")

    async def dawdles(
        payload: ak.Execute, following: Callable[[ak.Execute], Awaitable[ak.ToolOutput]]
    ) -> ak.ToolOutput:
        output = await following(payload)
        await trio.sleep(60)
        return output

    tool = Probe("pay", body, max_seconds=1)
    async with opened(ScriptedModel([call("pay")], ["ok"]), [tool]) as agent:
        agent.on(ak.Execute, dawdles)
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["paid 100"]
