"""Approvals: questions that are facts, closed once, by an answer or with their turn."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import (
    GRANT,
    Approvals,
    Question,
    StaleApprovalError,
)
from agentkernel.testing import (
    Act,
    Gate,
    ScriptedModel,
    Stage,
    call,
    cancel_and_keep,
    cancel_broadly,
    cancel_everywhere,
    cancel_scope,
    cancel_then_send,
    dispose,
)
from agentkernel.tools.approval import Policy, Rule
from tests.race.rig import BodyTool, codes, endings, facts, returns_done

ASK = Policy((Rule("allow", "free"),))
ONCE_PER_SESSION = Policy(
    (
        Rule("ask", "git", argument="verb", pattern="push*", scope="session"),
        Rule("ask", "strict"),
    )
)


def tools(agent: ak.Agent, *names: str, parallel_safe: bool = True) -> None:
    for name in names:
        agent.tools.add(BodyTool(name, returns_done, parallel_safe=parallel_safe))


def decided(agent: ak.Agent) -> list[tuple[str, str]]:
    """The questions that were closed: of which call's tool, and how."""
    asked = {fact.approval_id: fact.name for fact in facts(agent, ak.ApprovalAsked)}
    return [
        (asked[fact.approval_id], fact.decision)
        for fact in facts(agent, ak.ApprovalDecided)
    ]


async def asked(approvals: Approvals, count: int = 1) -> tuple[Question, ...]:
    """The open questions, once all that can be asked has been."""
    await trio.testing.wait_all_tasks_blocked()
    found = approvals.open()
    assert len(found) == count
    return found


@pytest.mark.clause("L3", "T7a")
async def test_a_question_is_a_fact_that_any_client_can_answer(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Asked with its call, its arguments and its origin; answered, then run."""
    tools(agent, "write")
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("write", path="a")])
    agent.followup("go")
    (question,) = await asked(approvals)
    (fact,) = facts(agent, ak.ApprovalAsked)
    assert agent.session.open_approvals == (fact,)
    assert (fact.approval_id, fact.name, fact.arguments, fact.origin) == (
        question.id,
        "write",
        {"path": "a"},
        agent.id,
    )
    assert question.call_id == fact.call_id
    assert agent.session.durable_seq >= agent.session.last_seq
    assert not facts(agent, ak.ToolCalled)
    assert [b.kind for b in agent.blockers()] == ["approval"]

    approvals.answer(question.id, "allow", reason="I looked at it")
    assert facts(agent, ak.ApprovalDecided) == [
        ak.ApprovalDecided(question.id, "allowed", "once", "I looked at it")
    ]
    assert approvals.open() == ()
    await agent.when_idle()
    assert codes(agent) == [None]


@pytest.mark.case("ACP-08")
async def test_a_no_denies_one_call_and_says_why(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The calls beside it are asked about and run."""
    tools(agent, "a", "b", "c")
    approvals = Approvals(agent, ASK)
    model.add([call("a"), call("b"), call("c")])
    agent.followup("go")
    first, second, third = await asked(approvals, 3)
    approvals.answer(second.id, "deny", reason="not this one")
    approvals.answer(first.id, "allow")
    approvals.answer(third.id, "allow")
    await agent.when_idle()
    results = {fact.message.name: fact for fact in facts(agent, ak.ToolReturned)}
    assert results["a"].error is results["c"].error is None
    assert results["b"].error is not None
    assert results["b"].error.code == "DENIED"
    assert "not this one" in results["b"].error.message
    assert endings(agent) == [(1, "completed")]


@pytest.mark.clause("T7b", "L3")
@pytest.mark.case("CAN-03", "STORE-12", "ACP-08")
@pytest.mark.parametrize("how", ["cancel", "dismiss"])
async def test_a_stop_cancels_the_question_and_a_late_answer_runs_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, how: str
) -> None:
    """Closed within the cancel itself: an answer in the same instant is too late."""
    tools(agent, "a", "b", "c", parallel_safe=False)
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("a"), call("b"), call("c")])
    agent.followup("go")
    (first,) = await asked(approvals)
    approvals.answer(first.id, "allow")
    (second,) = await asked(approvals)
    if how == "cancel":
        agent.cancel()
    else:
        assert approvals.dismiss(second.id).turn == 1
    assert not approvals.open()
    assert not agent.session.open_approvals
    with pytest.raises(StaleApprovalError, match="cancelled") as late:
        approvals.answer(second.id, "allow")
    assert late.value.decision == "cancelled"
    await agent.when_idle()
    assert decided(agent) == [("a", "allowed"), ("b", "cancelled")]
    assert codes(agent) == [None, "ABORTED_BEFORE_DISPATCH", "ABORTED_BEFORE_DISPATCH"]
    assert endings(agent) == [(1, "aborted")]
    with pytest.raises(StaleApprovalError):
        approvals.answer(second.id, "deny")


@pytest.mark.case("STORE-12")
async def test_a_second_answer_is_stale_and_changes_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Two clients answer: the first counts, the second is told."""
    tools(agent, "a")
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("a")])
    agent.followup("go")
    (question,) = await asked(approvals)
    approvals.answer(question.id, "deny")
    with pytest.raises(StaleApprovalError, match="denied"):
        approvals.answer(question.id, "allow")
    await agent.when_idle()
    with pytest.raises(StaleApprovalError, match="denied"):
        approvals.answer(question.id, "allow")
    with pytest.raises(StaleApprovalError, match="not known") as unknown:
        approvals.answer("s:1", "allow")
    assert unknown.value.decision is None
    assert decided(agent) == [("a", "denied")]
    assert codes(agent) == ["DENIED"]


@pytest.mark.case("STORE-12")
async def test_an_answer_from_an_observer_of_the_question_counts(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A client that answers by itself is as fast as that: before anybody waits."""
    tools(agent, "a")
    approvals = Approvals(agent.kernel, ASK)

    def answer(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            approvals.answer(fact.approval_id, "allow")

    agent.on(ak.Appended, answer)
    model.add([call("a")])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == [None]


@pytest.mark.clause("T2b")
async def test_a_long_question_holds_back_no_parallel_call_that_needs_none(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """More questions than slots, and still the call that is allowed ends first."""
    tools(agent, "ask", "free")
    approvals = Approvals(agent.kernel, ASK)
    model.add([*(call("ask") for _ in range(12)), call("free")])
    agent.followup("go")
    questions = await asked(approvals, 12)
    assert [fact.message.name for fact in facts(agent, ak.ToolReturned)] == ["free"]
    for question in questions:
        approvals.answer(question.id, "allow")
    await agent.when_idle()
    assert codes(agent) == [None] * 13


async def test_the_policy_sees_the_arguments_that_would_run(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Another listener changes them, and the rule is about the changed ones."""
    tools(agent, "git")
    policy = Policy((Rule("deny", "git", argument="verb", pattern="push"),), "allow")
    Approvals(agent.kernel, policy)

    async def change(_payload: ak.PreExecute, _following: object) -> ak.Allow:
        return ak.Allow({"verb": "push"})

    agent.on(ak.PreExecute, change)
    model.add([call("git", verb="status")])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["DENIED"]


async def use(agent: ak.Agent, model: ScriptedModel, name: str, verb: str) -> None:
    """Have the model make one call, and wait until it asks or the turn is over."""
    await agent.when_idle()
    model.add([call(name, verb=verb)], ["done"])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("scope", [None, "session"])
async def test_a_yes_for_the_session_is_not_asked_for_again_after_a_restart(
    scope: None, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The log remembers it for what the rule fits, in this session and in no fork."""
    store = ak.MemoryStore()
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("scripted", model)
        approvals = Approvals(kernel, ONCE_PER_SESSION)
        agent = (await kernel.create("s", model="scripted")).agent
        tools(agent, "git")
        await use(agent, model, "git", "push a")
        (question,) = approvals.open()
        assert (question.scope, question.may_last) == ("session", True)
        approvals.answer(question.id, "allow", scope=scope)
        await use(agent, model, "git", "push b")
        await agent.when_idle()
        assert codes(agent) == [None, None]
        assert [fact.name for fact in facts(agent, ak.Extension)] == [GRANT]
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("scripted", model)
        approvals = Approvals(kernel, ONCE_PER_SESSION)
        agent = (await kernel.resume("s")).agent
        tools(agent, "git")
        await use(agent, model, "git", "push c")
        await agent.when_idle()
        assert codes(agent)[-1] is None
        fork = (await kernel.fork(agent, "f")).agent
        tools(fork, "git")
        await use(fork, model, "git", "push d")
        assert [question.agent for question in approvals.open()] == [fork]


async def test_a_changed_rule_asks_again(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """What was granted was the old rule, perhaps a narrower one."""
    tools(agent, "git")
    approvals = Approvals(agent.kernel, ONCE_PER_SESSION)
    await use(agent, model, "git", "push a")
    approvals.answer(approvals.open()[0].id, "allow")
    await agent.when_idle()
    approvals.policy = Policy((Rule("ask", "*", scope="session"),))
    await use(agent, model, "git", "push a")
    assert len(approvals.open()) == 1


async def test_one_yes_for_the_session_answers_what_is_asked_already(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Two calls of one step ask under one rule; a third tool is none of its business."""
    tools(agent, "a", "b")
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("a"), call("a"), call("b")])
    agent.followup("go")
    questions = await asked(approvals, 3)
    approvals.answer(questions[0].id, "allow", scope="session")
    assert [question.name for question in approvals.open()] == ["b"]
    approvals.answer(questions[2].id, "deny")
    await agent.when_idle()
    assert sorted(decided(agent)) == [
        ("a", "allowed"),
        ("a", "allowed"),
        ("b", "denied"),
    ]


async def test_an_answer_cannot_hold_longer_than_its_rule_lets_it(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The question stays open, for an answer that it permits."""
    tools(agent, "strict")
    approvals = Approvals(agent.kernel, ONCE_PER_SESSION)
    model.add([call("strict")])
    agent.followup("go")
    (question,) = await asked(approvals)
    with pytest.raises(ValueError, match="once only"):
        approvals.answer(question.id, "allow", scope="session")
    with pytest.raises(ValueError, match="only a yes"):
        approvals.answer(question.id, "deny", scope="session")
    approvals.answer(question.id, "allow")
    await agent.when_idle()
    assert codes(agent) == [None]


@pytest.mark.case("STORE-12")
async def test_a_crash_closes_the_question_as_interrupted(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The stored log is cut behind the question; whoever resumes sees what became of it."""
    tools(agent, "a")
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("a")])
    agent.followup("go")
    (question,) = await asked(approvals)
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim("s", token=agent.id, create=True)
        await store.write([ak.Append(claim, agent.session.events)])
        await store.release(claim)
    async with ak.open_kernel(store) as kernel:
        approvals = Approvals(kernel, ASK)
        resumed = (await kernel.resume("s")).agent
        assert facts(resumed, ak.ApprovalDecided) == [
            ak.ApprovalDecided(question.id, "interrupted")
        ]
        assert not approvals.open()
        assert not resumed.session.open_approvals
        with pytest.raises(StaleApprovalError, match="interrupted"):
            approvals.answer(question.id, "allow")
        assert codes(resumed) == ["TOOL_NOT_STARTED"]


async def test_children_ask_under_their_own_name(
    kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """An agent's approvals cover its children, and nobody else."""
    parent = (await kernel.create("parent", model="scripted")).agent
    tools(parent, "a")
    approvals = Approvals(parent, ASK)
    child = (await kernel.create("child", model="scripted", parent=parent)).agent
    other = (await kernel.create("other", model="scripted")).agent
    tools(other, "a")
    model.add([call("a")], ["done"], [call("a")])
    child.followup("go")
    (question,) = await asked(approvals)
    assert question.agent is child
    assert facts(child, ak.ApprovalAsked)[0].origin == "child"
    assert approvals.open(parent) == ()
    approvals.answer(question.id, "allow")
    await child.when_idle()
    other.followup("go")
    await other.when_idle()
    assert codes(other) == [None]
    assert not facts(other, ak.ApprovalAsked)


async def approval_pending(stage: Stage) -> None:
    """Two questions in one step: answered yes and no, beside a call that needs none."""
    model = ScriptedModel(
        [call("a"), call("b"), call("free")], ["done"], default=["more"]
    )
    held = [BodyTool(name, returns_done, parallel_safe=True) for name in ("a", "b")]
    agent = await stage.start(
        model, tools=[*held, BodyTool("free", returns_done, parallel_safe=True)]
    )
    approvals = Approvals(stage.kernel, ASK)
    pending = trio.Event()

    def watch(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, ak.ApprovalAsked):
            pending.set()

    agent.on(ak.Appended, watch)
    stage.send("may you?")
    number = 0
    while True:
        await stage.until(pending.wait)
        pending = trio.Event()
        questions = approvals.open()
        if not questions and agent.status == "idle":
            break
        if not questions:
            continue
        number += 1
        approvals.answer(questions[0].id, "allow" if number != 2 else "deny")
        if len(questions) > 1:
            pending.set()
    await stage.settle()
    assert approvals.open() == ()
    assert len(facts(agent, ak.ApprovalAsked)) == len(facts(agent, ak.ApprovalDecided))


ACTS: tuple[Act, ...] = (
    cancel_broadly,
    cancel_and_keep,
    cancel_then_send,
    dispose,
    cancel_scope,
)


@pytest.mark.clause("L3", "T7b")
@pytest.mark.case("CAN-03")
@pytest.mark.parametrize("act", ACTS)
def test_no_question_outlives_its_turn_wherever_it_is_stopped(act: Act) -> None:
    """Each question is closed once, each call answered once."""
    sweep = cancel_everywhere(approval_pending, act, at=("append", "notification"))
    assert sweep.endings["completed"]
    assert sweep.endings["disposed" if act in {dispose, cancel_scope} else "aborted"]


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
def test_nor_at_any_task_step(act: Act) -> None:
    sweep = cancel_everywhere(approval_pending, act, seeds=(0, 1))
    assert sweep.endings["completed"]
    assert sweep.endings["disposed" if act in {dispose, cancel_scope} else "aborted"]


async def test_an_answer_and_a_stop_in_one_instant_run_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The yes is recorded, the stop comes before the call: it is not started."""
    gate = Gate()

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("a", body))
    approvals = Approvals(agent.kernel, ASK)
    model.add([call("a")])
    agent.followup("go")
    (question,) = await asked(approvals)
    approvals.answer(question.id, "allow")
    agent.cancel()
    await agent.when_idle()
    assert gate.arrivals == 0
    assert decided(agent) == [("a", "allowed")]
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
