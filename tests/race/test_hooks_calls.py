"""Hooks about calls that have ended: which they hear of, and what they are told."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.hooks import HookRun
from agentkernel.testing import ScriptedModel, call
from tests.race.hooked import ScriptedExecutor, hooked
from tests.race.rig import Body, BodyTool, codes, endings, facts


async def returns(_call: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep(1.25)
    return ak.ToolOutput.of("fine")


async def fails(_call: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep(1.25)
    return ak.ToolOutput((ak.TextBlock("no such file"),), ak.ToolFailure("E", "e"))


async def raises(_call: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep(1.25)
    raise RuntimeError("broken")


async def hangs(_call: ak.ToolInvocation) -> ak.ToolOutput:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (returns, None),
        (fails, "no such file"),
        (raises, "RuntimeError: broken"),
        (hangs, "The tool t was stopped after its limit of 1.25 s."),
    ],
)
async def test_hooks_are_told_of_every_call_that_ended_and_how_long_it_took(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    body: Body,
    error: str | None,
) -> None:
    """A time limit and an exception are failures of the tool like any other.

    The time is the body's: the hooks before it and behind it took theirs.
    """

    async def slow(_said: ak.JsonObject) -> HookRun:
        await trio.sleep(10)
        return HookRun(0)

    executor = ScriptedExecutor(dict.fromkeys(("before", "after", "failed"), slow))
    hooked(
        agent,
        executor,
        ("PreToolUse", "before"),
        ("PostToolUse", "after"),
        ("PostToolUseFailure", "failed"),
    )
    limit = 1.25 if body is hangs else None
    agent.tools.add(BodyTool("t", body, max_seconds=limit))
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    told = [name for name, _ in executor.told]
    assert told == ["before", "after" if error is None else "failed"]
    assert all(raw.endswith(b"}\n") and raw.count(b"\n") == 1 for raw in executor.raw)
    _, said = executor.told[1]
    assert said["duration_ms"] == 1250
    assert said["tool_input"] == {"n": 1}
    assert said.get("error") == error
    assert said.get("is_interrupt") == (None if error is None else False)
    assert len(codes(agent)) == 1


async def test_what_a_hook_makes_of_a_result_is_recorded_although_it_stops_the_turn(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A hook that finds a secret takes it out, and wants nothing more to happen."""
    specific = {"hookEventName": "PostToolUse", "updatedToolOutput": "[redacted]"}
    leak = {"continue": False, "stopReason": "leak", "hookSpecificOutput": specific}
    executor = ScriptedExecutor({"redact": HookRun(0, json.dumps(leak))})
    hooked(agent, executor, ("PostToolUse", "redact"))
    agent.tools.add(BodyTool("t", returns))
    model.add([call("t"), call("t")], ["next"])
    agent.followup("go")
    later = agent.followup("later")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    first, second = facts(agent, ak.ToolReturned)
    assert first.message.content == (ak.TextBlock("[redacted]"),)
    assert second.error is not None
    assert second.error.code == "ABORTED_BEFORE_DISPATCH"
    assert [m.id for m in agent.inbox.next_turn] == [later.id]


async def test_no_hook_hears_of_a_call_that_was_stopped(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The stop is told to the Interrupt hooks, and is no failure of the tool."""
    executor = ScriptedExecutor({})
    hooked(
        agent,
        executor,
        ("PostToolUse", "after"),
        ("PostToolUseFailure", "failed"),
        ("Interrupt", "interrupt"),
    )
    agent.tools.add(BodyTool("t", hangs))
    model.add([call("t")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert codes(agent) == ["ABORTED"]
    assert [name for name, _ in executor.told] == ["interrupt"]
