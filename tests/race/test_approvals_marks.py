"""A tool that is marked as needing an approval: who may lift that, and who does not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools import tool
from agentkernel.tools.approval import Policy, Rule
from tests.race.rig import codes, facts

Permission = ak.Allow | ak.Ask | ak.Deny
Following = Callable[[ak.PreExecute], Awaitable[Permission]]


@tool(needs_approval=True)
async def change(n: int = 0) -> str:
    """Change something."""
    return "changed"


@tool
async def look() -> str:
    """Look at something."""
    return "seen"


async def use(agent: ak.Agent, model: ScriptedModel) -> None:
    """Have the model make one call of each, and wait until it is over or asks."""
    for each in (look, change):
        agent.tools.add(each)
    model.add([call("look"), call("change")], ["done"])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.clause("T7a")
async def test_a_marked_tool_does_not_run_where_nobody_decides(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A mark that did nothing would be worse than none: its author relies on it."""
    await use(agent, model)
    await agent.when_idle()
    assert codes(agent) == [None, "DENIED"]
    message = facts(agent, ak.ToolReturned)[1].message
    assert message.error is not None
    assert "nobody to give one" in message.error.message


@pytest.mark.clause("T7a")
@pytest.mark.parametrize("answer", [ak.Allow(), ak.Deny("no")])
async def test_whoever_approves_is_asked_about_a_marked_tool(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    answer: ak.Allow | ak.Deny,
) -> None:
    """An `Approve` listener is enough; it needs no policy to be heard."""
    asked: list[tuple[str, str]] = []

    async def approve(payload: ak.Approve, _following: object) -> ak.Allow | ak.Deny:
        asked.append((payload.call.name, payload.reason))
        return answer

    agent.on(ak.Approve, approve)
    await use(agent, model)
    await agent.when_idle()
    assert asked == [("change", "its tool is marked as needing an approval")]
    assert codes(agent) == [None, None if answer == ak.Allow() else "DENIED"]


@pytest.mark.clause("T7a", "L1a")
@pytest.mark.parametrize("decides", [False, True])
async def test_a_listener_lifts_the_mark_only_by_deciding(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    decides: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """One that looks on hands through what it is given, and that is the question."""
    seen: list[Permission] = []

    async def listen(payload: ak.PreExecute, following: Following) -> Permission:
        seen.append(await following(payload))
        return ak.Allow() if decides else seen[-1]

    agent.on(ak.PreExecute, listen)
    await use(agent, model)
    await agent.when_idle()
    assert seen[0] == ak.Allow()
    assert isinstance(seen[1], ak.Ask)
    assert seen[1].waivable
    assert codes(agent) == [None, None if decides else "DENIED"]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        (Policy((Rule("allow", "change"),)), "runs"),
        (Policy(default="allow"), "runs"),
        (Policy((Rule("deny", "change"),), default="allow"), "denied"),
        (Policy((Rule("ask", "change", reason="why"),), default="allow"), "why"),
        (Policy.of_tools([look, change]), "no rule is about this call of 'change'"),
    ],
)
async def test_a_policy_decides_about_a_marked_tool_as_about_any(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    policy: Policy,
    outcome: str,
) -> None:
    """It speaks for the application: it allows without a question, and asks once."""
    rules = (Rule("allow", "look"), *policy.rules)
    approvals = Approvals(agent, Policy(rules, policy.default))
    await use(agent, model)
    questions = approvals.open()
    assert [question.reason for question in questions] == (
        [] if outcome in {"runs", "denied"} else [outcome]
    )
    for question in questions:
        approvals.answer(question.id, "allow")
    await agent.when_idle()
    assert codes(agent) == [None, "DENIED" if outcome == "denied" else None]


async def test_a_yes_for_the_session_lifts_the_mark_too(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The person was asked about just this, and said: always."""
    approvals = Approvals(agent, Policy.of_tools([look, change]))
    await use(agent, model)
    (question,) = approvals.open()
    approvals.answer(question.id, "allow", scope="session")
    await agent.when_idle()
    model.add([call("change")], ["done"])
    agent.followup("again")
    await trio.testing.wait_all_tasks_blocked()
    assert approvals.open() == ()
    await agent.when_idle()
    assert codes(agent) == [None, None, None]


@pytest.mark.parametrize("rule", [False, True])
async def test_a_question_of_a_rule_about_a_marked_tool_cannot_be_waived(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    rule: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """The mark alone could be; the rule is somebody's word about this call."""
    seen: list[bool] = []

    async def watch(payload: ak.PreExecute, following: Following) -> Permission:
        decision = await following(payload)
        if isinstance(decision, ak.Ask):
            seen.append(decision.waivable)
        return decision

    agent.kernel.on(ak.PreExecute, watch)
    asks = Rule("ask", "change")
    Approvals(agent, Policy((Rule("allow", "look"), *((asks,) if rule else ()))))
    await use(agent, model)
    assert seen == [not rule]


async def test_a_question_that_somebody_insists_on_survives_a_policy_that_allows(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Another listener asks for reasons of its own, beside the mark."""
    approvals = Approvals(agent, Policy(default="allow"))

    async def ask(payload: ak.PreExecute, following: Following) -> Permission:
        decision = await following(payload)
        return ak.Ask("it looks odd") if payload.call.name == "change" else decision

    agent.on(ak.PreExecute, ask)
    await use(agent, model)
    assert [question.reason for question in approvals.open()] == ["it looks odd"]


async def test_the_mark_holds_in_a_child_as_well(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A parent's policy speaks for its children; another agent's does not."""
    parent = (await kernel.create("parent", model="scripted")).agent
    Approvals(parent, Policy(default="allow"))
    child = (await kernel.create("child", model="scripted", parent=parent)).agent
    for one, expected in ((child, None), (agent, "DENIED")):
        await use(one, model)
        await one.when_idle()
        assert codes(one) == [None, expected]
