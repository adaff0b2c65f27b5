"""Hooks that answer questions about calls, in virtual time."""

from __future__ import annotations

import json

import pytest

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.bridges.hooks import HookRun
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.tools.approval import Policy, Rule
from tests.race.hooked import ScriptedExecutor, hooked
from tests.race.rig import BodyTool, codes, endings, facts, returns_done


def answered(**decision: object) -> HookRun:
    said = {"hookEventName": "PermissionRequest", "decision": decision}
    return HookRun(0, json.dumps({"hookSpecificOutput": said}))


def ask_everything(agent: ak.Agent) -> list[object]:
    """Have a policy ask about every call; its questions are answered with yes."""
    approvals = Approvals(agent.kernel, Policy((Rule("ask", "*"),)))
    shown: list[object] = []

    def answer(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            shown.append(fact.arguments)
            approvals.answer(fact.approval_id, "allow")

    agent.on(ak.Appended, answer)
    return shown


ALLOW = answered(behavior="allow")
CHANGE = answered(behavior="allow", updatedInput={"n": 2})
DENY = answered(behavior="deny", message="not on a Friday")


@pytest.mark.parametrize(
    ("runs", "ran", "asked", "outcome"),
    [
        ((ALLOW,), {"n": 1}, False, ("success", "allow")),
        ((CHANGE,), {"n": 1}, True, ("failed", "none")),
        ((CHANGE, ALLOW), {"n": 1}, False, ("failed", "none")),
        ((DENY,), None, False, ("blocked", "deny")),
        ((ALLOW, DENY), None, False, ("success", "allow")),
        ((HookRun(0),), {"n": 1}, True, ("success", "none")),
        ((HookRun(2, "", "no"),), {"n": 1}, True, ("failed", "none")),
        ((HookRun(1),), {"n": 1}, True, ("failed", "none")),
        ((HookRun(0, "{"),), {"n": 1}, True, ("failed", "none")),
        ((HookRun(0, '{"decision": "block"}'),), {"n": 1}, True, ("failed", "none")),
        ((answered(behavior="ask"),), {"n": 1}, True, ("failed", "none")),
        ((HookRun(timed_out=True),), {"n": 1}, True, ("timed-out", "none")),
    ],
)
async def test_a_hook_answers_in_the_place_of_a_person_or_leaves_the_question(
    agent: ak.Agent,
    model: ScriptedModel,
    runs: tuple[HookRun, ...],
    ran: object,
    asked: bool,  # noqa: FBT001  # a column of the table
    outcome: tuple[str, str],
) -> None:
    """A no of one hook outweighs a yes; exit 2 is no answer here."""
    names = [f"hook-{number}" for number in range(len(runs))]
    executor = ScriptedExecutor(dict(zip(names, runs, strict=True)))
    hooked(agent, executor, *(("PermissionRequest", name) for name in names))
    shown = ask_everything(agent)
    bodies: list[object] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        bodies.append(invocation.arguments)
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    assert bodies == ([] if ran is None else [ran])
    assert shown == ([{"n": 1}] if asked else [])
    first = facts(agent, ak.HookReturned)[0]
    assert (first.outcome, first.decision) == outcome
    told = executor.said("hook-0")[0]
    assert told["tool_name"] == "t"
    assert told["tool_input"] == {"n": 1}
    assert told["permission_suggestions"] == []
    assert "tool_use_id" not in told
    if ran is None:
        (result,) = facts(agent, ak.ToolReturned)
        assert result.error is not None
        assert result.error.message == "The call was denied: not on a Friday"


async def test_a_hook_that_says_yes_cannot_put_in_what_a_rule_denies(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The policy has seen other arguments than those that would run."""
    rules = (Rule("deny", "t", "command", "rm *", "command"), Rule("ask", "*"))
    worse = answered(behavior="allow", updatedInput={"command": "rm -r /"})
    hooked(agent, ScriptedExecutor({"p": worse}), ("PermissionRequest", "p"))
    approvals = Approvals(agent.kernel, Policy(rules))
    asked: list[object] = []
    ran: list[object] = []

    def deny(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            asked.append(fact.arguments)
            approvals.answer(fact.approval_id, "deny")

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(invocation.arguments)
        return ak.ToolOutput.of("done")

    agent.on(ak.Appended, deny)
    agent.tools.add(BodyTool("t", body))
    model.add([call("t", command="ls")])
    agent.followup("go")
    await agent.when_idle()
    assert ran == []
    assert asked == [{"command": "ls"}]
    (result,) = facts(agent, ak.HookReturned)
    assert result.detail == "a yes is to the arguments that were asked about"
    assert [fact.body for fact in facts(agent, ak.Extension)] == [
        {
            "event": "PermissionRequest",
            "text": f"The PermissionRequest hook failed: {result.detail}",
        }
    ]


async def test_a_call_that_nobody_asks_about_comes_to_no_such_hook(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    executor = ScriptedExecutor({})
    hooked(agent, executor, ("PermissionRequest", "any"))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == [None]
    assert not executor.told


async def test_a_no_that_interrupts_stops_the_turn_and_keeps_the_queue(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    no = answered(behavior="deny", message="enough", interrupt=True)
    hooked(agent, ScriptedExecutor({"p": no}), ("PermissionRequest", "p"))
    ask_everything(agent)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")])
    agent.followup("go")
    later = agent.followup("later")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
    assert [message.id for message in agent.inbox.next_turn] == [later.id]
    (fact,) = facts(agent, ak.HookReturned)
    assert (fact.decision, fact.detail) == ("stop", "enough")


async def test_what_a_body_asks_on_its_way_is_no_question_for_hooks(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """They would be told of the call, and not of what is asked: their yes is not for it."""
    executor = ScriptedExecutor({"p": ALLOW})
    hooked(agent, executor, ("PermissionRequest", "p"))
    shown = ask_everything(agent)
    decisions: list[object] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        decisions.append(await agent.approve(invocation, "it wants to delete all"))
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    assert len(executor.told) == 1
    assert shown == [{"n": 1}]
    assert decisions == [ak.Allow()]


@pytest.mark.clause("L3", "T7b")
async def test_a_stop_while_a_hook_is_asked_is_no_denial(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    gate = Gate()

    async def held(_said: ak.JsonObject) -> HookRun:
        await gate.wait()
        return DENY

    hooked(agent, ScriptedExecutor({"p": held}), ("PermissionRequest", "p"))
    shown = ask_everything(agent)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")])
    agent.followup("go")
    await gate.reached()
    agent.cancel()
    await agent.when_idle()
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
    assert not shown
    (fact,) = facts(agent, ak.HookReturned)
    assert (fact.outcome, fact.decision) == ("cancelled", "none")


async def test_hooks_that_were_made_behind_approvals_are_not_asked(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Who was there first has the question: a person is asked, as before."""
    shown = ask_everything(agent)
    executor = ScriptedExecutor({"p": DENY})
    hooked(agent, executor, ("PermissionRequest", "p"))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    assert shown == [{"n": 1}]
    assert codes(agent) == [None]
    assert not executor.told


async def test_a_question_of_a_hook_may_be_answered_by_another(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """With nobody else to ask: one hook asks, one says yes, and the call runs."""
    said = {"hookEventName": "PreToolUse", "permissionDecision": "ask"}
    ask = HookRun(0, json.dumps({"hookSpecificOutput": said}))
    executor = ScriptedExecutor({"ask": ask, "yes": ALLOW})
    hooked(agent, executor, ("PreToolUse", "ask"), ("PermissionRequest", "yes"))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == [None]
    assert [fact.arguments for fact in facts(agent, ak.ToolCalled)] == [{"n": 1}]
