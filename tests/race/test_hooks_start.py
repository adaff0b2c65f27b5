"""Hooks about the start of an agent: what they say enters once in each opening."""

from __future__ import annotations

import json

import agentkernel as ak
from agentkernel.bridges.hooks import HookRun
from agentkernel.testing import ScriptedModel, call
from tests.race.hooked import ScriptedExecutor, hooked
from tests.race.rig import BodyTool, endings, entered, returns_done, said


def context(event: str, text: str) -> str:
    said = {"hookEventName": event, "additionalContext": text}
    return json.dumps({"hookSpecificOutput": said})


async def test_a_fork_is_greeted_behind_the_greeting_that_it_inherits(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """Its log holds its source's greeting; that is no reason to leave out its own."""

    async def greet(told: ak.JsonObject) -> HookRun:
        return HookRun(0, f"hello, {told['session_id']}: {told['source']}")

    hooked(kernel, ScriptedExecutor({"greet": greet}), ("SessionStart", "greet"))
    source = (await kernel.create("s", model="scripted")).agent
    source.followup("go")
    await source.when_idle()
    fork = (await kernel.fork("s", "f")).agent
    fork.followup("on")
    await fork.when_idle()
    assert said(model.requests[1].messages) == [
        "user: hello, s: startup",
        "user: go",
        "assistant: ok",
        "user: hello, f: fork",
        "user: on",
    ]


async def test_hooks_of_two_owners_speak_to_one_agent(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """An application has its settings, an agent may have its own: both are heard."""
    events = ("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop")
    for scope, name in ((kernel, "ours"), (agent, "its")):
        executor = ScriptedExecutor(
            {
                "SessionStart": HookRun(0, f"{name}: hello"),
                "UserPromptSubmit": HookRun(0, f"{name}: mind"),
                "PreToolUse": HookRun(0, context("PreToolUse", f"{name}: careful")),
                "Stop": HookRun(2, "", f"{name}: more"),
            }
        )
        once = {"once": True}
        hooked(scope, executor, *((event, event) for event in events), **once)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]
    assert entered(agent) == [
        "ours: hello",
        "its: hello",
        "go",
        "its: mind",
        "ours: mind",
        "ours: careful",
        "its: careful",
        "ours: more",
        "its: more",
    ]
