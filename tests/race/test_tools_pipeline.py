"""Tool calls: what they pass before and after the body, and their one result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import cast

import pytest
import trio
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import (
    Probe,
    facts,
    listen,
    once,
    opened,
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


@pytest.mark.clause("T3b", "T7a")
async def test_a_call_passes_its_stations_in_one_order(
    autojump_clock: MockClock,
) -> None:
    """Check, pre-execute, approval, guard, record, execute, body, post-execute."""
    order: list[str] = []

    def check(arguments: ak.JsonObject) -> ak.JsonObject:
        order.append(f"check {arguments['n']}")
        return arguments

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        order.append(f"body {invocation.arguments['n']}")
        await trio.lowlevel.checkpoint()
        return ok()

    async def pre(
        _payload: ak.PreExecute, _next: object
    ) -> ak.Allow | ak.Ask | ak.Deny:
        order.append("pre-execute")
        await trio.lowlevel.checkpoint()
        return ak.Ask("sure?")

    async def approve(payload: ak.Approve, _next: object) -> ak.Allow | ak.Deny:
        order.append(f"approve {payload.reason}")
        await trio.lowlevel.checkpoint()
        return ak.Allow({"n": 2})

    def guard(payload: ak.PreExecute) -> None:
        order.append(f"guard {payload.call.arguments['n']}")

    async def execute(
        payload: ak.Execute, next_: Callable[[ak.Execute], Awaitable[ak.ToolOutput]]
    ) -> ak.ToolOutput:
        order.append("execute")
        output = await next_(payload)
        order.append("executed")
        return output

    async def post(payload: ak.PostExecute, _next: object) -> ak.ToolOutput:
        order.append("post-execute")
        await trio.lowlevel.checkpoint()
        (block,) = payload.output.content
        assert isinstance(block, ak.TextBlock)
        return ok(f"{block.text}!")

    model = ScriptedModel([call("t", n=1)], ["end"])
    async with opened(model, [Probe("t", body, check=check)]) as agent:
        agent.on(ak.PreExecute, pre)
        agent.on(ak.Approve, approve)
        agent.on(ak.Execute, execute)
        agent.on(ak.PostExecute, post)
        once(agent, "tool/call", lambda: order.append("tool/call"))
        once(agent, "tool/result", lambda: order.append("tool/result"))
        agent.tools.guard(guard)
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["ok!"]
        (called,) = [f for f in facts(agent) if isinstance(f, ak.ToolCalled)]
        assert called.arguments == {"n": 2}
    assert order == [
        "check 1",
        "pre-execute",
        "approve sure?",
        "check 2",
        "guard 2",
        "tool/call",
        "execute",
        "body 2",
        "executed",
        "post-execute",
        "tool/result",
    ]


@pytest.mark.clause("T3d", "T7a")
async def test_what_the_tools_own_check_refuses_reaches_no_body(
    autojump_clock: MockClock,
) -> None:
    """Also arguments that a listener put in place of the model's."""

    def check(arguments: ak.JsonObject) -> ak.JsonObject:
        if arguments.get("n") != 1:
            raise ak.ToolArgumentsError("n must be 1")
        return {"n": 1, "filled": [1]}

    tool = Probe("t", check=check)
    model = ScriptedModel([call("t", n=2), call("t", n=1)], [call("t", n=1)], ["end"])
    async with opened(model, [tool]) as agent:

        async def pre(
            payload: ak.PreExecute, _next: object
        ) -> ak.Allow | ak.Ask | ak.Deny:
            await trio.lowlevel.checkpoint()
            return ak.Allow({"n": 5} if payload.call.step == 2 else None)

        agent.on(ak.PreExecute, pre)
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["INVALID_ARGUMENTS", "ok", "INVALID_ARGUMENTS"]
        (invocation,) = tool.calls
        assert invocation.arguments == {"n": 1, "filled": (1,)}


@pytest.mark.clause("T8", "T7a")
@pytest.mark.parametrize(
    "seam", ["pre-execute", "approve", "guard", "execute", "post-execute", "check"]
)
async def test_a_listener_that_raises_costs_the_call_and_not_the_turn(
    autojump_clock: MockClock, seam: str
) -> None:
    """Before the body: it does not run. Around it: the result is an error."""

    def check(arguments: ak.JsonObject) -> ak.JsonObject:
        if seam == "check":
            raise RuntimeError("broken")
        return arguments

    tool = Probe("t", check=check)
    sibling = Probe("s")
    model = ScriptedModel([call("t"), call("s")], ["end"])
    async with opened(model, [tool, sibling]) as agent:

        async def fail(
            payload: ak.Execute, next_: Callable[[ak.Execute], Awaitable[object]]
        ) -> object:
            await trio.lowlevel.checkpoint()
            if payload.call.name == "s":
                return await next_(payload)
            raise RuntimeError("broken")

        async def ask(
            payload: ak.PreExecute, _next: object
        ) -> ak.Allow | ak.Ask | ak.Deny:
            await trio.lowlevel.checkpoint()
            decisions: dict[str, ak.Allow | ak.Ask] = {"t": ak.Ask(), "s": ak.Allow()}
            return decisions[payload.call.name]

        def guard(payload: ak.PreExecute) -> str | None:
            return str(1 / 0) if payload.call.name == "t" else None

        events: dict[str, object] = {
            "pre-execute": ak.PreExecute,
            "approve": ak.Approve,
            "execute": ak.Execute,
            "post-execute": ak.PostExecute,
        }
        if seam == "guard":
            agent.tools.guard(guard)
        if seam == "approve":
            agent.on(ak.PreExecute, ask)
        if seam in events:
            listen(agent, events[seam], fail)
        sent = agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["TOOL_ERROR", "ok"]
        assert len(tool.calls) == (1 if seam == "post-execute" else 0)
        assert (await agent.outcome(sent.id)).kind == "completed"


@pytest.mark.clause("T7a")
async def test_a_denial_and_a_guards_refusal_are_told_to_the_model(
    autojump_clock: MockClock,
) -> None:
    """That call only: the turn goes on."""
    tool = Probe("t")
    model = ScriptedModel([call("t", n=1), call("t", n=2), call("t", n=3)], ["end"])
    async with opened(model, [tool]) as agent:

        async def pre(
            payload: ak.PreExecute, _next: object
        ) -> ak.Allow | ak.Ask | ak.Deny:
            await trio.lowlevel.checkpoint()
            number = payload.call.arguments["n"]
            if number == 1:
                return ak.Deny("not today")
            return ak.Ask("?") if number == 2 else ak.Allow()

        agent.on(ak.PreExecute, pre)
        agent.tools.guard(lambda p: "too far" if p.call.arguments["n"] == 3 else None)
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["DENIED"] * 3
        messages = [r.error.message for r in results(agent) if r.error]
        assert "not today" in messages[0]
        assert "nobody" in messages[1]
        assert "too far" in messages[2]
        assert not tool.calls
        assert "tool/call" not in types(agent)


@pytest.mark.clause("T7b")
@pytest.mark.case("CAN-03")
async def test_an_approval_that_a_stop_cuts_is_no_denial(
    autojump_clock: MockClock,
) -> None:
    """Nor is a decision used that comes after it."""
    for late in (False, True):
        gate = Gate()
        tool = Probe("t")
        model = ScriptedModel([call("t")], ["end"])
        async with opened(model, [tool]) as agent:

            async def pre(
                _p: ak.PreExecute, _next: object
            ) -> ak.Allow | ak.Ask | ak.Deny:
                await trio.lowlevel.checkpoint()
                return ak.Ask()

            async def approve(
                _p: ak.Approve,
                _next: object,
                *,
                late: bool = late,
                gate: Gate = gate,
            ) -> ak.Allow | ak.Deny:
                with trio.CancelScope(shield=late):
                    await gate.wait()
                return ak.Allow()

            agent.on(ak.PreExecute, pre)
            agent.on(ak.Approve, approve)
            agent.followup("go")
            await gate.reached()
            assert [b.kind for b in agent.blockers()] == ["approval"]
            agent.cancel()
            gate.open()
            await agent.when_idle()
            assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
            assert not tool.calls


@pytest.mark.clause("T7a")
@pytest.mark.parametrize("where", ["body", "execute", "post-execute"])
async def test_an_output_that_is_none_becomes_an_error_result(
    autojump_clock: MockClock, where: str
) -> None:
    """The log holds blocks and JSON, whoever made the output."""

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        if where == "body":
            return cast("ak.ToolOutput", "text")
        return ok()

    async def wrong(_payload: object, _next: object) -> object:
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput(cast("tuple[ak.TextBlock]", ("text",)))

    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [Probe("t", body)]) as agent:
        if where == "execute":
            listen(agent, ak.Execute, wrong)
        if where == "post-execute":
            listen(agent, ak.PostExecute, wrong)
        agent.followup("go")
        await agent.when_idle()
        assert codes(agent) == ["TOOL_ERROR"]


@pytest.mark.clause("T7a", "D1a")
@pytest.mark.case("STORE-09", "STORE-08")
async def test_an_output_is_clean_and_detached_in_the_log(
    autojump_clock: MockClock,
) -> None:
    """Half a surrogate pair, a NUL, and a dictionary that its tool goes on using."""
    meta: dict[str, ak.JsonValue] = {"k": ["\ud83d"]}

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput(
            (
                ak.TextBlock("a\x00b\ud83d"),
                ak.BinaryBlock("image/\ud83d", ak.Blob(b"x"), name="\udc00"),
            ),
            meta=meta,
        )

    model = ScriptedModel([call("t", id="\ud83d")], ["end"])
    async with opened(model, [Probe("t", body)]) as agent:
        agent.followup("go")
        await agent.when_idle()
        meta["later"] = 1
        (result,) = results(agent)
        assert result.meta == {"k": ("\ufffd",)}
        assert result.message.content[0] == ak.TextBlock("a\x00b\ufffd")
        for event in agent.session.events:
            ak.encode_event(event)


@pytest.mark.clause("L1c")
async def test_a_child_is_bound_by_its_parents_guards_and_may_replace_its_tools(
    autojump_clock: MockClock,
) -> None:
    """It starts from what its parent has: tools, and what keeps them in bounds."""
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        model = ScriptedModel([call("t"), call("u")], ["end"])
        kernel.models.register("m", model)
        old, own, other = Probe("t"), Probe("t"), Probe("u")
        parent = await kernel.create("p", model="m", tools=[old, other])
        parent.agent.tools.guard(lambda p: "no" if p.call.name == "u" else None)
        child = await kernel.create("c", model="m", tools=[own], parent=parent.agent)
        parent.agent.tools.add(Probe("later"))
        assert "later" not in child.agent.tools
        child.agent.followup("go")
        await child.agent.when_idle()
        assert codes(child.agent) == ["ok", "DENIED"]
        assert len(own.calls) == 1
        assert not old.calls
        assert not other.calls


@pytest.mark.clause("L1c")
async def test_a_child_that_cannot_be_made_does_not_keep_its_parent_from_ending(
    autojump_clock: MockClock,
) -> None:
    """Two tools of one name are the caller's mistake, and nobody waits for it."""
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        parent = await kernel.create("p")
        with pytest.raises(ValueError, match="registered already"):
            await kernel.create(
                "c", tools=[Probe("t"), Probe("t")], parent=parent.agent
            )
        with trio.fail_after(60):
            await parent.dispose()
        child = await kernel.create("c")
        assert kernel.agents == (child.agent,)


async def _raises(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep(2)
    raise RuntimeError("broken")


async def _sleeps(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep(2)
    return ok("never said: the limit is shorter")


FAILING = {"TOOL_ERROR": (_raises, None, 2.0), "TIMEOUT": (_sleeps, 1.5, 1.5)}


@pytest.mark.clause("T7a", "T8")
@pytest.mark.parametrize("code", FAILING)
async def test_listeners_see_a_call_that_raised_or_took_too_long(
    autojump_clock: MockClock, code: str
) -> None:
    """It ran, so they are asked what the model is shown, and told how long it took."""
    body, limit, seconds = FAILING[code]
    seen: list[ak.PostExecute] = []

    async def post(
        payload: ak.PostExecute,
        following: Callable[[ak.PostExecute], Awaitable[ak.ToolOutput]],
    ) -> ak.ToolOutput:
        seen.append(payload)
        await trio.sleep(5)
        output = await following(payload)
        return ak.ToolOutput((ak.TextBlock("look here"),), output.error)

    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [Probe("t", body, max_seconds=limit)]) as agent:
        agent.on(ak.PostExecute, post)
        agent.followup("go")
        await agent.when_idle()
        (result,) = results(agent)
    (payload,) = seen
    assert payload.seconds == seconds
    assert payload.output.error == result.error
    assert result.error is not None
    assert result.error.code == code
    assert result.message.content == (ak.TextBlock("look here"),)


@pytest.mark.clause("T3c", "C11a")
@pytest.mark.parametrize("code", FAILING)
async def test_a_stop_in_the_listeners_behind_it_leaves_a_failure_what_it_was(
    autojump_clock: MockClock, code: str
) -> None:
    """The call had failed before the stop: it was not aborted."""
    body, limit, _ = FAILING[code]

    async def post(_payload: ak.PostExecute, _next: object) -> ak.ToolOutput:
        reached.set()
        await trio.sleep_forever()
        raise AssertionError

    reached = trio.Event()
    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [Probe("t", body, max_seconds=limit)]) as agent:
        agent.on(ak.PostExecute, post)
        agent.followup("go")
        await reached.wait()
        agent.cancel()
        await agent.when_idle()
        (result,) = results(agent)
        assert result.error is not None
        assert result.error.code == code


@pytest.mark.clause("T7a")
@pytest.mark.parametrize("how", ["denied", "unknown", "stopped", "fatal"])
async def test_a_call_that_did_not_run_or_was_stopped_has_nothing_to_show(
    autojump_clock: MockClock, how: str
) -> None:
    """Nobody is asked what to make of it; what leaves the kernel waits for nobody."""

    async def post(_payload: ak.PostExecute, _next: object) -> ak.ToolOutput:
        raise AssertionError("there is nothing to show")

    async def deny(_payload: ak.PreExecute, _next: object) -> ak.Deny:
        await trio.lowlevel.checkpoint()
        return ak.Deny()

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        if how == "fatal":
            raise KeyboardInterrupt
        reached.set()
        await trio.sleep_forever()
        raise AssertionError

    reached = trio.Event()
    model = ScriptedModel([call("u" if how == "unknown" else "t")], ["end"])
    expected = {
        "denied": "DENIED",
        "unknown": "UNKNOWN_TOOL",
        "stopped": "ABORTED",
        "fatal": "TOOL_ERROR",
    }
    agent: ak.Agent | None = None
    with pytest.raises(KeyboardInterrupt) if how == "fatal" else nullcontext():
        async with opened(model, [Probe("t", body)]) as agent:
            agent.on(ak.PostExecute, post)
            if how == "denied":
                agent.on(ak.PreExecute, deny)
            agent.followup("go")
            if how == "stopped":
                await reached.wait()
                agent.cancel()
            await agent.when_idle()
    assert agent is not None
    assert codes(agent) == [expected[how]]


async def test_a_tool_that_comes_and_goes_leaves_the_kept_ones_as_they_were(
    kernel: ak.Kernel,
) -> None:
    """One of the agent's own under a hidden name does not open the way to that."""
    kernel.tools.add(Probe("shell"))
    kernel.tools.add(Probe("safe"))
    options = ak.AgentOptions(model="scripted", tools=("safe",))
    agent = (await kernel.create("kept", options=options)).agent
    assert [*agent.tools.effective()] == ["safe"]
    unregister = agent.tools.add(Probe("shell"))
    assert {*agent.tools.effective()} == {"safe", "shell"}
    unregister()
    assert [*agent.tools.effective()] == ["safe"]
