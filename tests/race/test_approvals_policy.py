"""How a policy's word becomes a decision: only a clear yes lets a call run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Literal, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals, Question
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.tools.approval import Decision, Policy, Rule
from tests.race.rig import BodyTool, codes, facts, returns_done


class Saying(Policy, frozen=True):
    """A policy of somebody's own, that says one word about every call."""

    word: str = ""

    def decide(
        self, name: str, arguments: ak.JsonObject, *, granted: Collection[str] = ()
    ) -> Decision:
        return Decision(cast("Literal['deny']", self.word), "by the house")


@pytest.mark.parametrize("word", ["Allow", "block", "", "deny"])
async def test_a_word_that_is_no_yes_runs_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, word: str
) -> None:
    """Whatever a policy says that is neither allow nor ask is a denial."""
    agent.tools.add(BodyTool("a", returns_done))
    approvals = Approvals(agent, Saying(word=word))
    model.add([call("a")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["DENIED"]
    assert approvals.open() == ()
    approvals.policy = Saying(word="allow")
    model.add([call("a")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["DENIED", None]


@pytest.mark.parametrize("asks", ["a rule", "the default"])
async def test_a_yes_for_the_session_covers_a_call_that_is_about_to_ask(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, asks: str
) -> None:
    """The policy has spoken about the second call, a listener around it takes its time.

    1. Both calls are to be asked about; a hook holds the second one back.
    2. The first question is answered for the session.
    3. The hook lets go: nobody is asked again.
    """
    agent.tools.add(BodyTool("a", returns_done, parallel_safe=True))
    gate = Gate()

    async def hold(
        payload: ak.PreExecute,
        following: Callable[[ak.PreExecute], Awaitable[ak.Allow | ak.Ask | ak.Deny]],
    ) -> ak.Allow | ak.Ask | ak.Deny:
        decision = await following(payload)
        if payload.call.arguments["n"] == 2:
            await gate.wait()
        return decision

    agent.kernel.on(ak.PreExecute, hold)
    rules = (Rule("ask", "a", scope="session"),) if asks == "a rule" else ()
    approvals = Approvals(agent.kernel, Policy(rules))
    model.add([call("a", n=1), call("a", n=2)])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    assert gate.arrivals == 1
    (question,) = approvals.open()
    approvals.answer(question.id, "allow", scope="session")
    gate.open()
    await trio.testing.wait_all_tasks_blocked()
    assert approvals.open() == ()
    await agent.when_idle()
    assert codes(agent) == [None, None]


Pre = Callable[[ak.PreExecute], Awaitable[ak.Allow | ak.Ask | ak.Deny]]


@pytest.mark.clause("T7a")
@pytest.mark.parametrize("scope", ["kernel", "agent"])
@pytest.mark.parametrize("how", ["on the way up", "at once", "as a question"])
async def test_what_the_policy_denies_does_not_run_whoever_rewrites_the_call(
    kernel: ak.Kernel,
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    how: str,
    scope: str,
) -> None:
    """A listener in front of the policy has the arguments last, and the rule is about
    these. What the rule is not about runs, and once the approvals are closed all does.
    """
    ran: list[ak.JsonValue] = []

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        ran.append(call.arguments["path"])
        return ak.ToolOutput.of("done")

    async def rewrite(
        payload: ak.PreExecute, following: Pre
    ) -> ak.Allow | ak.Ask | ak.Deny:
        if how != "at once":
            assert await following(payload) == ak.Allow()
        path = f"/etc/{payload.call.arguments['path']}"
        return (ak.Ask if how == "as a question" else ak.Allow)(
            arguments={"path": path}
        )

    async def approve(_payload: ak.Approve, _following: object) -> ak.Allow:
        return ak.Allow()

    kernel.on(ak.PreExecute, rewrite)
    kernel.on(ak.Approve, approve)
    rule = Rule("deny", "rm", "path", "/etc/p*", syntax="path", reason="not that one")
    rules = Policy((rule,), "allow")
    approvals = Approvals(kernel if scope == "kernel" else agent, rules)
    agent.tools.add(BodyTool("rm", body))
    for expected in (["/etc/hosts"], ["/etc/hosts", "/etc/passwd", "/etc/hosts"]):
        model.add([call("rm", path="passwd"), call("rm", path="hosts")], ["done"])
        agent.followup("go")
        await agent.when_idle()
        assert ran == expected
        approvals.close()
    assert codes(agent) == ["DENIED", None, None, None]
    message = facts(agent, ak.ToolReturned)[0].message
    assert message.error is not None
    assert "not that one" in message.error.message


STATUS = Rule("allow", "sh", "text", "git status*", syntax="command")


async def ask_about(
    agent: ak.Agent, model: ScriptedModel, approvals: Approvals, text: str
) -> Question | None:
    """What is asked about one call; None if it runs."""
    await agent.when_idle()
    model.add([call("sh", text=text)], ["done"])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    return next(iter(approvals.open()), None)


@pytest.mark.clause("L3")
@pytest.mark.parametrize(
    ("rules", "covers"),
    [
        ((), "any call of 'sh'"),
        ((STATUS,), "any call of 'sh' that no rule is or may be about"),
        ((Rule("ask", "s*", scope="session"),), "any call of 'sh'"),
        (
            (Rule("ask", argument="text", scope="session"),),
            "any call of 'sh' that has 'text'",
        ),
        (
            (Rule("ask", "sh", "text", "git *", syntax="command", scope="session"),),
            "any call of 'sh' whose 'text' is one plain command like 'git *'",
        ),
        ((Rule("ask", "sh"),), ""),
    ],
)
async def test_a_question_says_what_a_yes_for_the_session_would_cover(
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    rules: tuple[Rule, ...],
    covers: str,
) -> None:
    """A person who sees one call must not have to guess what else they allow."""
    agent.tools.add(BodyTool("sh", returns_done))
    approvals = Approvals(agent.kernel, Policy(rules))
    question = await ask_about(agent, model, approvals, "git push")
    assert question is not None
    assert question.covers == covers
    assert question.may_last == bool(covers)
    approvals.answer(question.id, "deny")


@pytest.mark.clause("L3")
async def test_a_yes_for_the_session_covers_no_call_that_a_rule_may_be_about(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """It cannot be told what the text would do, so each one is asked about, and once.

    The other calls that no rule is about run from then on.
    """
    agent.tools.add(BodyTool("sh", returns_done))
    approvals = Approvals(agent.kernel, Policy((STATUS,)))
    question = await ask_about(agent, model, approvals, "git push")
    assert question is not None
    approvals.answer(question.id, "allow", scope="session")
    for _ in range(2):
        doubted = await ask_about(agent, model, approvals, "git status; rm -r src")
        assert doubted is not None
        assert not doubted.may_last
        with pytest.raises(ValueError, match="once only"):
            approvals.answer(doubted.id, "allow", scope="session")
        approvals.answer(doubted.id, "allow")
    assert await ask_about(agent, model, approvals, "git pull") is None
    await agent.when_idle()
    assert codes(agent) == [None] * 4
