"""The person at the terminal as a client of approvals: late, gone, or asked in a row."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.cli.approval import (
    Answer,
    Person,
    describe_answers,
    make_policy,
    read_answer,
)
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools import tool
from tests.race.rig import codes, endings, facts

OFF = "change is off without a terminal; --allow change permits it"


@tool(needs_approval=True)
async def change() -> str:
    """Change something."""
    return "it ran"


@tool
async def look() -> str:
    """Look at something."""
    return "it ran"


def texts(agent: ak.Agent) -> list[str]:
    """What the calls gave the model."""
    return [
        "".join(b.text for b in fact.message.content if isinstance(b, ak.TextBlock))
        for fact in facts(agent, ak.ToolReturned)
    ]


class Keyboard:
    """Stands for the terminal: shows what is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.lasting: list[bool] = []
        self.standing: int = 0
        self._answers, self._typed = trio.open_memory_channel[Answer | OSError](9)

    def type(self, answer: Answer | OSError) -> None:
        self._answers.send_nowait(answer)

    async def ask(self, question: str, /, *, may_last: bool) -> Answer:
        self.shown.append(question)
        self.lasting.append(may_last)
        self.standing += 1
        try:
            answer = await self._typed.receive()
        finally:
            self.standing -= 1
        if isinstance(answer, OSError):
            raise answer
        return answer


@tool
async def remote(call: ak.ToolInvocation) -> str:
    """Ask for something that no option knows of, as a remote agent does."""
    agent = ak.current_agent()
    assert agent is not None
    decision = await agent.approve(call, "rm -rf everything")
    return getattr(decision, "reason", "it ran")


@asynccontextmanager
async def seated(
    keyboard: Keyboard | None, *answers: Sequence[ak.Chunk]
) -> AsyncGenerator[ak.Agent]:
    model = ScriptedModel(*answers, default=["done"])
    async with ak.open_kernel(ak.MemoryStore(), clock=trio.current_time) as kernel:
        kernel.models.register("m", model)
        tools: list[ak.Tool] = [change, look, remote]
        async with await kernel.create("s", model="m", tools=tools) as agent:
            ask = None if keyboard is None else keyboard.ask
            approvals = Approvals(
                agent, make_policy(tools, (), asks=keyboard is not None)
            )
            agent.start_soon(Person(agent, approvals, ask).run)
            yield agent


@pytest.mark.clause("L3", "T7b")
async def test_an_answer_that_meets_a_stop_runs_nothing(
    autojump_clock: MockClock,
) -> None:
    """It was on its way in the tick of the stop; the next question is put all the same."""
    keyboard = Keyboard()
    async with seated(keyboard, [call("change")], [call("change")]) as agent:
        agent.followup("go")
        await trio.testing.wait_all_tasks_blocked()
        assert keyboard.standing == 1
        keyboard.type("yes")
        agent.cancel()
        await agent.when_idle()
        assert endings(agent) == [(1, "aborted")]
        assert [f.decision for f in facts(agent, ak.ApprovalDecided)] == ["cancelled"]
        assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
        keyboard.type("yes")
        async with agent.ask("again") as reply:
            pass
        assert reply.outcome.text == "done"
        assert len(keyboard.shown) == 2
    assert keyboard.standing == 0


@pytest.mark.clause("L3")
async def test_a_stop_takes_the_question_back(autojump_clock: MockClock) -> None:
    """Nothing stands on the terminal when the agent has come to rest."""
    keyboard = Keyboard()
    async with seated(keyboard, [call("change")]) as agent:
        agent.followup("go")
        await trio.testing.wait_all_tasks_blocked()
        agent.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert agent.status == "idle"
        assert keyboard.standing == 0


async def test_a_terminal_that_is_gone_refuses_the_call(
    autojump_clock: MockClock,
) -> None:
    """The model is told why, and the turn goes on instead of waiting for ever."""
    keyboard = Keyboard()
    async with seated(keyboard, [call("change"), call("look")]) as agent:
        keyboard.type(OSError(5, "Input/output error"))
        async with agent.ask("go") as reply:
            pass
        assert reply.outcome.text == "done"
        [fact] = facts(agent, ak.ApprovalDecided)
        assert (fact.decision, fact.reason) == (
            "denied",
            "nobody could be asked: [Errno 5] Input/output error",
        )


async def test_questions_come_one_at_a_time(autojump_clock: MockClock) -> None:
    """`always` answers the one that waits as well, and look-only calls never ask."""
    keyboard = Keyboard()
    calls: list[ak.Chunk] = [call("change"), call("look"), call("change")]
    async with seated(keyboard, calls, calls) as agent:
        agent.followup("go")
        await trio.testing.wait_all_tasks_blocked()
        assert len(keyboard.shown) == 1
        keyboard.type("yes")
        await trio.testing.wait_all_tasks_blocked()
        assert len(keyboard.shown) == 2
        keyboard.type("always")
        await agent.when_idle()
        assert len(keyboard.shown) == 2
        assert codes(agent) == [None] * 6


async def test_nobody_to_ask_refuses_with_the_way_out() -> None:
    """A tool that an embedder brought is offered, and says how it can be allowed."""
    policy = make_policy([change, look], (), asks=False)
    decision = policy.decide("change", {})
    assert decision.action == "deny"
    assert decision.reason == OFF
    assert policy.decide("look", {}).action == "allow"
    allowed = make_policy([change, look], ["change"], asks=False)
    assert allowed.decide("change", {}).action == "allow"


async def test_a_question_that_no_rule_asks_says_what_it_is_about(
    autojump_clock: MockClock,
) -> None:
    """And holds once: a yes for the session is not offered for it."""
    keyboard = Keyboard()
    async with seated(keyboard, [call("remote")]) as agent:
        agent.followup("go")
        await trio.testing.wait_all_tasks_blocked()
        assert keyboard.shown == ["remote(), for: rm -rf everything"]
        assert keyboard.lasting == [False]
        keyboard.type("yes")
        await agent.when_idle()
        assert texts(agent) == ["it ran"]


async def test_without_a_person_every_question_is_refused(
    autojump_clock: MockClock,
) -> None:
    """Nobody would ever answer it, and the turn would wait for ever."""
    async with seated(None, [call("remote"), call("change")]) as agent:
        async with agent.ask("go") as reply:
            pass
        assert reply.outcome.text == "done"
        assert texts(agent) == [
            "there is no terminal to ask on: rm -rf everything",
            f"The call was denied: {OFF}",
        ]


def test_what_may_not_last_cannot_be_answered_with_always() -> None:
    """The key is not offered, and means nothing when it is pressed. Else it says what
    it covers.
    """
    assert describe_answers(may_last=False) == "y = yes, n = no"
    assert "any call of this tool" in describe_answers(may_last=True)
    assert read_answer("a", may_last=False) is None
    assert read_answer("A ", may_last=True) == "always"
