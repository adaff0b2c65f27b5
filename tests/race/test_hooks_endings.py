"""Hooks about batches of calls and about turns that failed, in virtual time."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.hooks import (
    HOOK_MESSAGE,
    MAX_WAKES,
    HookRun,
    Hooks,
    HookSettings,
)
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.hooked import ScriptedExecutor, hooked
from tests.race.rig import BodyTool, endings, entered, facts, returns_done, said

BLOCK = HookRun(0, json.dumps({"decision": "block", "reason": "that will do"}))
STOP = HookRun(0, json.dumps({"continue": False, "stopReason": "that will do"}))
SAYS = HookRun(
    0,
    json.dumps(
        {
            "hookSpecificOutput": {
                "hookEventName": "PostToolBatch",
                "additionalContext": "both ran",
            }
        }
    ),
)


async def fails(_call: ak.ToolInvocation) -> ak.ToolOutput:
    raise RuntimeError("broken")


async def test_a_batch_is_all_calls_of_one_answer_with_their_results(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Once for each answer that calls, in call order, before the model sees them."""
    executor = ScriptedExecutor({"batch": SAYS, "stop": HookRun(0)})
    hooked(agent, executor, ("PostToolBatch", "batch"), ("Stop", "stop"))
    agent.tools.add(BodyTool("t", returns_done))
    agent.tools.add(BodyTool("f", fails))
    model.add([call("t", n=1), call("f", n=2)], ["hm", call("gone")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    assert [name for name, _ in executor.told] == ["batch", "batch", "stop"]
    first, second, _ = (told for _, told in executor.told)
    ids = [f.message.calls[0].call_id for f in facts(agent, ak.AssistantReplied)[:2]]
    assert first["tool_calls"] == [
        {
            "tool_name": "t",
            "tool_input": {"n": 1},
            "tool_use_id": ids[0],
            "tool_response": {"content": "done"},
        },
        {
            "tool_name": "f",
            "tool_input": {"n": 2},
            "tool_use_id": ids[0].removesuffix("1") + "2",
            "tool_response": {"content": "RuntimeError: broken", "error": "TOOL_ERROR"},
        },
    ]
    assert second["turn_id"] == "1"
    assert "'tool_name': 'gone'" in str(second["tool_calls"])
    assert said(model.requests[1].messages)[1:] == [
        "assistant: <t><f>",
        "result: t",
        "result: f",
        "user: both ran",
    ]


@pytest.mark.parametrize(
    ("run", "decision"),
    [(BLOCK, "deny"), (HookRun(2, "", "that will do"), "deny"), (STOP, "stop")],
)
async def test_a_hook_that_blocks_a_batch_stops_the_loop_before_the_next_request(
    agent: ak.Agent, model: ScriptedModel, run: HookRun, decision: str
) -> None:
    """The results are kept: the next turn's request has them."""
    executor = ScriptedExecutor({"batch": run})
    hooked(agent, executor, ("PostToolBatch", "batch"), once=True)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")], ["next"])
    sent = agent.followup("go")
    later = agent.followup("later")
    outcome = await agent.outcome(sent.id)
    await agent.when_idle()
    assert (outcome.kind, len(model.requests)) == ("blocked", 1)
    (ended,) = facts(agent, ak.TurnEnded)
    assert ended.reason.message == "that will do"
    assert [m.id for m in agent.inbox.next_turn] == [later.id]
    (result,) = facts(agent, ak.HookReturned)
    assert (result.outcome, result.decision) == ("blocked", decision)
    agent.wake()
    await agent.when_idle()
    assert "result: t" in said(model.requests[1].messages)


@pytest.mark.clause("I6")
@pytest.mark.parametrize("event", ["PostToolBatch", "UserPromptSubmit"])
async def test_a_notice_outlives_what_a_hook_blocks(
    agent: ak.Agent, model: ScriptedModel, event: str
) -> None:
    """That a job has ended is told once, and by nobody again."""
    hooked(agent, ScriptedExecutor({"gate": BLOCK}), (event, "gate"), once=True)

    async def ends_a_job(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        agent.notice("the job has ended")
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", ends_a_job))
    if event == "PostToolBatch":
        model.add([call("t")])
    else:
        agent.notice("the job has ended")
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "blocked")]
    assert [m.text for m in agent.inbox.next_step] == ["the job has ended"]
    model.add(["next"])
    agent.followup("on")
    await agent.when_idle()
    assert "user: the job has ended" in said(model.requests[-1].messages)


async def test_a_step_without_calls_before_it_is_no_batch(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A turn that goes on for steering, and one that a stop has left, are none."""
    executor = ScriptedExecutor({})
    hooked(agent, executor, ("PostToolBatch", "batch"))
    gate, block = Gate(), Gate()

    async def waits(_call: ak.ToolInvocation) -> ak.ToolOutput:
        await block.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", waits))
    model.add(["a", gate], ["b"], [call("t")], ["c"])
    agent.followup("go")
    await gate.reached()
    agent.steer("more")
    gate.open()
    await agent.when_idle()
    agent.followup("call")
    await block.reached()
    agent.cancel()
    await agent.when_idle()
    agent.followup("again")
    await agent.when_idle()
    assert endings(agent) == [(1, "completed"), (2, "aborted"), (3, "completed")]
    assert not executor.told


@pytest.mark.parametrize("run", [HookRun(0, "text"), STOP, BLOCK, HookRun(2, "", "no")])
@pytest.mark.parametrize("more", [{}, {"asyncRewake": True}])
async def test_a_failed_turn_is_told_to_hooks_that_have_no_say(
    agent: ak.Agent, model: ScriptedModel, run: HookRun, more: dict[str, object]
) -> None:
    """Whatever they print: it does not wake the agent, or it would fail for ever."""
    executor = ScriptedExecutor({"failure": run, "stop": HookRun(0)})
    events = (("StopFailure", "failure"), ("Stop", "stop"))
    hooked(agent, executor, *events, **more)
    model.add(["half", ak.ModelError("too many", code="rate_limit")])
    agent.followup("go")
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert endings(agent) == [(1, "error")]
    ((name, told),) = executor.told
    assert name == "failure"
    assert (told["error"], told["error_details"]) == ("rate_limit", "too many")
    assert told["turn_id"] == "1"
    (result,) = facts(agent, ak.HookReturned)
    assert result.decision == "none"
    assert not [f for f in facts(agent, ak.Extension) if f.name == HOOK_MESSAGE]
    assert not agent.inbox.next_step


async def test_only_a_turn_that_failed_is_told_as_failed(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Not one that completed, was refused, or was stopped."""
    executor = ScriptedExecutor({"gate": HookRun(2, "", "no")})
    hooked(agent, executor, ("StopFailure", "failure"))
    agent.followup("completes")
    await agent.when_idle()
    refuse = hooked(agent, executor, ("UserPromptSubmit", "gate"))
    agent.followup("is refused")
    await agent.when_idle()
    refuse.close()
    gate = Gate()
    model.add([], ["a", gate])
    agent.followup("is stopped")
    await gate.reached()
    agent.cancel()
    await agent.when_idle()
    await wait_all_tasks_blocked()
    kinds = [kind for _, kind in endings(agent)]
    assert kinds == ["completed", "blocked", "aborted"]
    assert [name for name, _ in executor.told] == ["gate"]


async def test_a_failure_is_matched_by_its_code(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    executor = ScriptedExecutor({})
    settings = {
        "hooks": {
            "StopFailure": [
                {"matcher": code, "hooks": [{"type": "command", "command": code}]}
                for code in ("rate_limit", "overloaded", "rate.*")
            ]
        }
    }
    Hooks(kernel, HookSettings.from_json(settings), executor=executor)
    agent = (await kernel.create("s", model="scripted")).agent
    model.add([ak.ModelError("too many", code="rate_limit")])
    agent.followup("go")
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert sorted(name for name, _ in executor.told) == ["rate.*", "rate_limit"]


@pytest.mark.case("HOOK-02")
async def test_hooks_alone_do_not_keep_an_agent_going_for_ever(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A detached hook that finds fault with every end wakes the agent a number of times."""

    async def red(_said: ak.JsonObject) -> HookRun:
        # At some time it gives in: a test that fails is to end.
        given_in = len(executor.told) > 10 * MAX_WAKES
        return HookRun(0) if given_in else HookRun(2, "", "still red")

    executor = ScriptedExecutor({"test": red})
    hooked(agent, executor, ("Stop", "test"), asyncRewake=True)
    for prompt in ("one", "two"):
        done = len(model.requests)
        agent.followup(prompt)
        await settled(agent)
        assert len(model.requests) - done == MAX_WAKES + 1
        assert "often enough" in str(facts(agent, ak.Extension)[-1].body)
        # What it found is not lost: it waits for somebody to speak.
        assert [m.text for m in agent.inbox.next_step] == ["still red"]
    assert entered(agent).count("still red") == 2 * MAX_WAKES + 1


async def settled(agent: ak.Agent) -> None:
    """Wait until neither the agent nor a hook of it has anything left to do."""
    await agent.when_idle()
    await wait_all_tasks_blocked()
    while agent.status == "running":
        await agent.when_idle()
        await wait_all_tasks_blocked()
