"""The stories that the sweeps play: each comes to its end whatever is done to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

import agentkernel as ak
from agentkernel.testing import FaultyStore, Gate, ScriptedModel, Stage, call


class HeldTool:
    """A tool that passes a checkpoint, waits at its gate if it has one, and answers."""

    def __init__(
        self, name: str, gate: Gate | None = None, *, parallel_safe: bool = True
    ) -> None:
        self.spec = ak.ToolSpec(name, f"The tool {name}.", {"type": "object"})
        self.parallel_safe = parallel_safe
        self.max_seconds = None
        self.gate = gate
        self.runs = 0

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation) -> ak.ToolOutput:
        self.runs += 1
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        return ak.ToolOutput.of(f"{call.name} ran")


async def plain_turn(stage: Stage) -> None:
    await stage.start(ScriptedModel(["one ", "two ", "three"], default=["more"]))
    stage.send("hello")
    await stage.settle()


async def tool_round_trip(stage: Stage) -> None:
    model = ScriptedModel(["I look. ", call("look")], ["done"], default=["more"])
    await stage.start(model, tools=[HeldTool("look", parallel_safe=False)])
    stage.send("look at it")
    await stage.settle()


async def parallel_tools(stage: Stage) -> None:
    gate = stage.gate()
    model = ScriptedModel(
        [call("a"), call("b"), call("nope"), call("c"), call("a")],
        ["done"],
        default=["more"],
    )
    tools = [HeldTool("a", gate), HeldTool("b"), HeldTool("c", parallel_safe=False)]
    await stage.start(
        model, tools=tools, options=ak.AgentOptions(max_parallel_tool_calls=2)
    )
    stage.send("all at once")
    await stage.until(gate.reached)
    gate.open()
    await stage.settle()


async def steering(stage: Stage) -> None:
    gate, streaming = stage.gate(), stage.gate()
    model = ScriptedModel(
        ["wait ", streaming, call("look")], ["steered"], default=["more"]
    )
    await stage.start(model, tools=[HeldTool("look", gate)])
    stage.send("go")
    await stage.until(streaming.reached)
    stage.send("and a note", verb="inject")
    streaming.open()
    await stage.until(gate.reached)
    stage.send("more to the left", verb="steer")
    gate.open()
    await stage.settle()
    stage.send("steered while idle", verb="steer")
    await stage.settle()


async def retried_request(stage: Stage) -> None:
    model = ScriptedModel(
        ["Hel", ak.ModelError("broken", code="connection", retryable=True)],
        [ak.ModelError("busy", code="overloaded", retryable=True)],
        ["Hello ", "there"],
        default=["more"],
    )
    # A failure that meets a stop is published, and changes nothing.
    stage.expects_errors = True
    await stage.start(model)

    async def retry(
        payload: ak.RequestError,
        following: Callable[[ak.RequestError], Awaitable[ak.Retry | ak.Fail]],
    ) -> ak.Retry | ak.Fail:
        await following(payload)
        return ak.Retry(delay=1.5)

    stage.agent.on(ak.RequestError, retry)
    stage.send("hello")
    await stage.settle()


async def approval_pending(stage: Stage) -> None:
    question = stage.gate()
    model = ScriptedModel([call("look"), call("look")], ["done"], default=["more"])
    await stage.start(model, tools=[HeldTool("look")])
    asked = 0

    async def ask(
        payload: ak.PreExecute,
        following: Callable[[ak.PreExecute], Awaitable[ak.Allow | ak.Ask | ak.Deny]],
    ) -> ak.Allow | ak.Ask | ak.Deny:
        await following(payload)
        return ak.Ask("may it?")

    async def approve(
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        nonlocal asked
        asked += 1
        number = asked
        await question.wait()
        await following(payload)
        return ak.Allow() if number == 1 else ak.Deny("not twice")

    stage.agent.on(ak.PreExecute, ask)
    stage.agent.on(ak.Approve, approve)
    stage.send("may you?")
    await stage.until(question.reached)
    question.open()
    await stage.settle()


async def slow_flush(stage: Stage) -> None:
    """The writes behind both turns are held; input comes while they are."""
    store = FaultyStore(ak.MemoryStore())
    await stage.start(ScriptedModel(default=["answer"]), store=store)
    first = store.hold("write")
    stage.holds(first)
    stage.send("one")
    await stage.until(first.reached.wait)
    stage.send("two")
    second = store.hold("write")
    stage.holds(second)
    first.open()
    await stage.until(second.reached.wait)
    stage.send("three", verb="steer")
    await trio.sleep(1)
    second.open()
    await stage.settle()


async def failing_store(stage: Stage) -> None:
    """The store fails twice while a turn runs, and comes back."""
    store = FaultyStore(ak.MemoryStore())
    stage.expects_errors = True
    await stage.start(ScriptedModel(default=["answer"]), store=store)
    store.fail("write", nth=store.calls["write"] + 2, times=2)
    stage.send("one")
    stage.send("two")
    await stage.settle()
    await trio.sleep(20)
    await stage.settle()


async def maintenance(stage: Stage) -> None:
    gate = stage.gate()
    await stage.start(ScriptedModel(["one"], default=["more"]))

    async def tidy(signal: ak.TurnSignal) -> str:
        await trio.lowlevel.checkpoint()
        await gate.wait()
        await trio.lowlevel.checkpoint()
        return "tidy" if not signal.cancelled else "late"

    async def maintain() -> None:
        try:
            assert await stage.agent.run_maintenance(tidy) == "tidy"
        except (ak.MaintenanceCancelled, ak.AgentDisposedError, ak.AgentBusyError):
            assert stage.receipts or stage.ended

    async with trio.open_nursery() as nursery:
        nursery.start_soon(maintain)
        await trio.testing.wait_all_tasks_blocked()
        stage.send("held until it is over")
        gate.open()
    await stage.settle()


async def two_followups(stage: Stage) -> None:
    await stage.start(ScriptedModel(["first"], ["second"], default=["more"]))
    stage.send("one")
    stage.send("two")
    stage.send("with the first", verb="inject")
    await stage.settle()


SCENARIOS: Final = (
    plain_turn,
    tool_round_trip,
    parallel_tools,
    steering,
    retried_request,
    approval_pending,
    slow_flush,
    failing_store,
    maintenance,
    two_followups,
)
