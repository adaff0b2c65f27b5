"""Stops and failures while tools run: one result for each call, nothing abandoned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, Hold, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings, facts, returns_done, said


async def _forever(_: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.clause("T3c", "C11a")
@pytest.mark.case("PAIR-01", "CAN-04")
async def test_stop_during_a_call_answers_it_and_the_calls_behind_it(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """The stopped call says so, the next one never starts, and the history is valid."""
    handle = await kernel.create("pair", model="scripted")
    agent = handle.agent
    agent.tools.add(BodyTool("t", _forever))
    ran: list[str] = []

    async def later(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(invocation.name)
        return ak.ToolOutput.of("no")

    agent.tools.add(BodyTool("u", later))
    model.add([call("t"), call("u")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert len(model.requests) == 1
    assert ran == []
    assert codes(agent) == ["ABORTED", "ABORTED_BEFORE_DISPATCH"]
    assert len(facts(agent, ak.ToolCalled)) == 1
    agent.followup("hi")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted"), (2, "completed")]
    request = model.requests[1]
    assert said(request.messages) == [
        "user: go",
        "assistant: <t><u>",
        "result: t",
        "result: u",
        "note",
        "user: hi",
    ]
    check_log(agent.session.events)
    live = tuple(agent.session.messages)
    await handle.dispose()
    again = (await kernel.resume("pair")).agent
    assert tuple(again.session.messages) == live


@pytest.mark.clause("C10c", "T2d", "T3c")
@pytest.mark.case("PAIR-03", "CONC-04")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (type("Odd", (BaseException,), {})("odd one"), ["Odd", "odd one"]),
        (asyncio.CancelledError("not ours"), ["CancelledError", "not ours"]),
        (
            BaseExceptionGroup("outer", [asyncio.CancelledError("in a group")]),
            ["CancelledError", "in a group"],
        ),
        (
            ExceptionGroup("a", [ExceptionGroup("b", [KeyError("leaf")])]),
            ["KeyError", "leaf"],
        ),
        (
            ExceptionGroup("a", [ValueError("one"), OSError("two")]),
            ["ValueError", "one", "OSError", "two"],
        ),
        (GeneratorExit("odd"), ["GeneratorExit"]),
    ],
)
async def test_whatever_a_body_raises_is_its_calls_error_result(
    agent: ak.Agent, model: ScriptedModel, error: BaseException, words: list[str]
) -> None:
    """No base class makes it a stop, and the leaves are named rather than the group."""

    async def raises(_: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        raise error

    agent.tools.add(BodyTool("t", raises))
    agent.tools.add(BodyTool("u", returns_done))
    model.add([call("t"), call("u")], ["answered"])
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]
    assert codes(agent) == ["TOOL_ERROR", None]
    failure = facts(agent, ak.ToolReturned)[0].error
    assert failure is not None
    for word in words:
        assert word in failure.message
    assert "group" not in failure.message.lower().replace("in a group", "")
    agent.followup("next")
    await agent.when_idle()
    assert endings(agent)[-1] == (2, "completed")
    check_log(agent.session.events)


@pytest.mark.clause("T2d", "T2c", "T2b")
@pytest.mark.case("PAIR-06")
async def test_parallel_call_that_raises_does_not_touch_its_siblings(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Results join the log as they come, and the model sees them in call order."""
    gates = {"a": Gate(), "c": Gate()}

    async def waits(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await gates[invocation.name].wait()
        return ak.ToolOutput.of(invocation.name)

    async def raises(_: ak.ToolInvocation) -> ak.ToolOutput:
        raise ValueError("b failed")

    for name in ("a", "c"):
        agent.tools.add(BodyTool(name, waits, parallel_safe=True))
    agent.tools.add(BodyTool("b", raises, parallel_safe=True))
    model.add([call("a"), call("b"), call("c")], ["answered"])
    agent.followup("go")
    await wait_all_tasks_blocked()
    assert codes(agent) == ["TOOL_ERROR"]
    gates["c"].open()
    await wait_all_tasks_blocked()
    gates["a"].open()
    await agent.when_idle()
    assert [f.message.name for f in facts(agent, ak.ToolReturned)] == ["b", "c", "a"]
    assert said(model.requests[1].messages)[2:] == [
        "result: a",
        "result: b",
        "result: c",
    ]
    block = model.requests[1].messages[2]
    assert isinstance(block, ak.ToolResults)
    assert [r.error is None for r in block.results] == [True, False, True]


@pytest.mark.clause("T2c", "I1a")
@pytest.mark.case("PAIR-08")
async def test_nothing_comes_between_calls_and_their_results(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Steering, notes and whatever a hook adds stand behind the results, in order."""
    gate = Gate()

    async def waits(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of(invocation.name)

    async def adds(
        payload: ak.PostExecute,
        following: Callable[[ak.PostExecute], Awaitable[ak.ToolOutput]],
    ) -> ak.ToolOutput:
        if payload.call.name == "a":
            agent.inject("from a hook")
        return await following(payload)

    agent.on(ak.PostExecute, adds)
    for name in ("a", "b"):
        agent.tools.add(BodyTool(name, waits, parallel_safe=True))
    model.add([call("a"), call("b")], ["answered"])
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.steer("steered")
    agent.inject("note")
    gate.open()
    await agent.when_idle()
    assert said(model.requests[1].messages) == [
        "user: go",
        "assistant: <a><b>",
        "result: a",
        "result: b",
        "user: steered",
        "user: note",
        "user: from a hook",
    ]


@pytest.mark.clause("T3a", "T3c")
@pytest.mark.case("PAIR-09")
async def test_repeated_provider_ids_never_mix_calls_up(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """The kernel's own id is unique in the session; the provider's is kept beside it."""
    handle = await kernel.create("ids", model="scripted")
    agent = handle.agent
    ran: list[object] = []

    async def notes(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(invocation.arguments["n"])
        return ak.ToolOutput.of(str(invocation.arguments["n"]))

    agent.tools.add(BodyTool("t", notes))
    model.add(
        [call("t", id="x", n=1), call("t", id="x", n=2)], [call("t", id="x", n=3)]
    )
    agent.followup("go")
    await agent.when_idle()
    assert ran == [1, 2, 3]
    last = model.requests[-1].messages
    calls = [c for m in last if isinstance(m, ak.AssistantMessage) for c in m.calls]
    results = [r for m in last if isinstance(m, ak.ToolResults) for r in m.results]
    assert len({c.call_id for c in calls}) == 3
    assert [c.provider_id for c in calls] == ["x", "x", "x"]
    assert [r.call_id for r in results] == [c.call_id for c in calls]
    assert [r.content for r in results] == [(ak.TextBlock(str(n)),) for n in (1, 2, 3)]
    live = tuple(agent.session.messages)
    await handle.dispose()
    again = (await kernel.resume("ids", model="scripted")).agent
    assert tuple(again.session.messages) == live


@pytest.mark.clause("T1d")
@pytest.mark.case("PAIR-10")
async def test_step_limit_with_calls_pending_answers_them_and_leaves_a_usable_session(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """No exception, no open call: the result says that the limit was reached."""
    options = ak.AgentOptions(model="scripted", max_steps=1)
    agent = (await kernel.create("limit", options=options)).agent

    async def never(_: ak.ToolInvocation) -> ak.ToolOutput:
        raise AssertionError

    agent.tools.add(BodyTool("t", never))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "max-steps")]
    assert codes(agent) == ["MAX_STEPS"]
    assert facts(agent, ak.ToolCalled) == []
    agent.followup("next")
    await agent.when_idle()
    assert endings(agent)[-1] == (2, "completed")
    check_log(agent.session.events)


@pytest.mark.clause("T3c", "C11a")
@pytest.mark.case("PART-09")
@pytest.mark.parametrize("event", [ak.PostExecute, ak.Execute])
async def test_value_that_a_body_gave_survives_a_stop_in_the_listeners_around_it(
    agent: ak.Agent, model: ScriptedModel, event: type
) -> None:
    """What was done was done: the listener is cancelled, the result stays."""

    async def waits(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        await following(payload)
        await trio.sleep_forever()

    async def booked(_: ak.ToolInvocation) -> ak.ToolOutput:
        return ak.ToolOutput.of("booked")

    agent.on(event, waits)
    agent.tools.add(BodyTool("t", booked))
    model.add([call("t")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    result = facts(agent, ak.ToolReturned)[0]
    assert result.error is None
    assert result.message.content == (ak.TextBlock("booked"),)
    check_log(agent.session.events)


@pytest.mark.clause("T3c")
@pytest.mark.case("CAN-08")
async def test_value_returned_after_the_stop_is_the_result(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A body past its point of no return finishes, and its value is not thrown away."""

    async def commits(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ak.ToolOutput.of("committed")

    gate = Gate()
    posts: list[object] = []

    async def post(
        payload: ak.PostExecute,
        following: Callable[[ak.PostExecute], Awaitable[ak.ToolOutput]],
    ) -> ak.ToolOutput:
        posts.append(payload)
        return await following(payload)

    agent.on(ak.PostExecute, post)
    agent.tools.add(BodyTool("t", commits))
    model.add([call("t")])
    agent.followup("go")
    await gate.reached()
    agent.cancel()
    await wait_all_tasks_blocked()
    assert agent.status == "running"
    gate.open()
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    result = facts(agent, ak.ToolReturned)[0]
    assert result.message.content == (ak.TextBlock("committed"),)
    assert posts == []
    assert len(model.requests) == 1


@pytest.mark.clause("C10e", "T2e", "C10a")
@pytest.mark.case("CONC-03", "CONC-04")
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
async def test_error_that_coincides_with_a_stop_is_reported_once_and_changes_nothing(
    kernel: ak.Kernel, model: ScriptedModel, *, grouped: bool, parallel: bool
) -> None:
    """The turn ends aborted; the fault of the clean-up is there for people to read."""
    agent = (await kernel.create("coincide", model="scripted")).agent
    errors: list[str] = []
    agent.on(ak.ErrorReported, lambda p: errors.append(str(p.error)))

    async def sleeps() -> None:
        await trio.sleep_forever()

    async def breaks(_: ak.ToolInvocation) -> ak.ToolOutput:
        if not grouped:
            try:
                await trio.sleep_forever()
            finally:
                raise RuntimeError("boom")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeps)
            try:
                await trio.sleep_forever()
            except trio.Cancelled as cancelled:
                raise BaseExceptionGroup(
                    "both", [cancelled, RuntimeError("boom")]
                ) from None
        raise AssertionError

    agent.tools.add(BodyTool("t", breaks, parallel_safe=parallel))
    agent.tools.add(BodyTool("u", _forever, parallel_safe=parallel))
    model.add([call("t"), call("u")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert errors == ["boom"]
    assert endings(agent) == [(1, "aborted")]
    assert codes(agent)[0] == "ABORTED"
    check_log(agent.session.events)
    agent.followup("next")
    await agent.when_idle()
    assert endings(agent)[-1] == (2, "completed")


@pytest.mark.clause("T3b", "T3c")
@pytest.mark.case("CAN-10")
async def test_stop_between_the_announcement_of_a_call_and_its_body(
    model: ScriptedModel,
) -> None:
    """`tool/call` waits for the disk: a stop there finds a call that has not started."""
    store = FaultyStore(ak.MemoryStore())
    ran: list[str] = []

    async def runs(_: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append("body")
        return ak.ToolOutput.of("done")

    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        agent.tools.add(BodyTool("t", runs))
        holds: list[Hold] = []
        agent.on(
            ak.Appended,
            lambda p: (
                holds.append(store.hold("write"))
                if isinstance(p.event.data, ak.ToolCalled)
                else None
            ),
        )
        model.add([call("t")])
        agent.followup("go")
        await wait_all_tasks_blocked()
        assert holds[0].reached.is_set()
        agent.cancel()
        await wait_all_tasks_blocked()
        holds[0].open()
        await agent.when_idle()
        assert ran == []
        assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
        order = [
            e.type
            for e in agent.session.events
            if e.type in ("tool/call", "tool/result")
        ]
        assert order == ["tool/call", "tool/result"]
        check_log(agent.session.events)


@pytest.mark.clause("C11b", "C11c", "C11d", "S2a")
@pytest.mark.case("CAN-08", "LIFE-01")
async def test_tool_that_swallows_its_cancellation_stops_spinning_and_is_named(
    agent: ak.Agent, model: ScriptedModel, mock_clock: MockClock
) -> None:
    """It is never abandoned: the agent stays running, says why, and costs no CPU.

    0.0 the tool swallows every cancellation in a loop; 0.5 it is shielded and blocks;
    5.0 `agent/stuck` names it; then it is let go.
    """
    spins = 0
    done = trio.Event()

    async def ignores(_: ak.ToolInvocation) -> ak.ToolOutput:
        nonlocal spins
        while not done.is_set():
            try:
                await done.wait()
            except trio.Cancelled:
                spins += 1
        return ak.ToolOutput.of("at last")

    stuck: list[tuple[ak.Blocker, ...]] = []
    agent.on(ak.AgentStuck, lambda p: stuck.append(p.blockers))
    agent.tools.add(BodyTool("t", ignores, max_seconds=3.0))
    model.add([call("t")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    assert [(b.kind, b.name) for b in agent.blockers()] == [("tool", "t")]
    agent.cancel()
    while spins < 20:
        await trio.lowlevel.checkpoint()
    mock_clock.jump(0.5)
    await wait_all_tasks_blocked()
    still = spins
    mock_clock.jump(3.0)
    await wait_all_tasks_blocked()
    assert spins == still
    assert stuck == []
    assert agent.status == "running"
    mock_clock.jump(1.5)
    await wait_all_tasks_blocked()
    assert [[(b.kind, b.name, b.age) for b in s] for s in stuck] == [
        [("tool", "t", 5.0)]
    ]
    assert spins == still
    mock_clock.jump(60)
    await wait_all_tasks_blocked()
    assert len(stuck) == 1
    done.set()
    await agent.when_idle()
    assert agent.blockers() == ()
    assert endings(agent) == [(1, "aborted")]
    assert codes(agent) == [None]


@pytest.mark.clause("C11c")
async def test_slow_write_does_not_take_a_running_tool_out_of_reach_of_a_stop(
    model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Only a stop shields a tool; a disk that takes a second is no reason."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        agent.tools.add(BodyTool("t", _forever))
        model.add([call("t")])
        agent.followup("go")
        await wait_all_tasks_blocked(0.01)
        hold = store.hold("write")
        agent.inject("kicks a write")
        await trio.sleep(2)
        assert hold.reached.is_set()
        hold.open()
        began = trio.current_time()
        agent.cancel()
        await agent.when_idle()
        assert trio.current_time() == began
        assert codes(agent) == ["ABORTED"]


@pytest.mark.clause("C11d")
async def test_idle_kernel_has_no_pending_deadline(
    agent: ak.Agent, model: ScriptedModel, mock_clock: MockClock
) -> None:
    """The timer for `agent/stuck` exists only while something is being stopped."""

    def pending() -> float:
        return trio.lowlevel.current_statistics().seconds_to_next_deadline

    assert pending() == float("inf")
    gate = Gate()

    async def slow(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await gate.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", slow))
    model.add([call("t")])
    agent.followup("go")
    await gate.reached()
    assert pending() == float("inf")
    agent.cancel()
    await wait_all_tasks_blocked()
    assert pending() < 5.0
    gate.open()
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert pending() == float("inf")


@pytest.mark.clause("C11b", "C11d")
@pytest.mark.case("CAN-08")
async def test_thread_of_a_sync_tool_is_joined_before_idle(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A worker thread learns of the stop, and the agent waits until it has ended."""
    events: list[str] = []

    def works(signal: ak.TurnSignal) -> None:
        events.append("began")
        while not signal.cancelled:
            trio.from_thread.run_sync(lambda: None)
        events.append("ended")

    async def threaded(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.to_thread.run_sync(works, invocation.signal)
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", threaded))
    model.add([call("t")])
    agent.followup("go")
    while not events:
        await trio.lowlevel.checkpoint()
    agent.cancel()
    assert agent.status == "running"
    await agent.when_idle()
    events.append("idle")
    assert events == ["began", "ended", "idle"]


@pytest.mark.clause("T3c")
@pytest.mark.case("CAN-10")
async def test_time_limit_that_has_passed_before_the_body_waits_ends_the_call_once(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A limit of no time at all still gives a start and an end, in this order."""
    agent.tools.add(BodyTool("t", _forever, max_seconds=0))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["TIMEOUT"]
    order = [e.type for e in agent.session.events if e.type.startswith("tool/")]
    assert order == ["tool/call", "tool/result"]
