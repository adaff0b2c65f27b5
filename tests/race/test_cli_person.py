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
from agentkernel.cli.approval import Answer, Person, make_policy
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools import tool
from tests.race.rig import codes, endings, facts


@tool(needs_approval=True)
async def change() -> str:
    """Change something."""
    return "it ran"


@tool
async def look() -> str:
    """Look at something."""
    return "it ran"


class Keyboard:
    """Stands for the terminal: shows what is asked, and answers when it is told to."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.standing: int = 0
        self._answers, self._typed = trio.open_memory_channel[Answer | OSError](9)

    def type(self, answer: Answer | OSError) -> None:
        self._answers.send_nowait(answer)

    async def ask(self, question: str) -> Answer:
        self.shown.append(question)
        self.standing += 1
        try:
            answer = await self._typed.receive()
        finally:
            self.standing -= 1
        if isinstance(answer, OSError):
            raise answer
        return answer


@asynccontextmanager
async def seated(
    keyboard: Keyboard, *answers: Sequence[ak.Chunk]
) -> AsyncGenerator[ak.Agent]:
    model = ScriptedModel(*answers, default=["done"])
    async with ak.open_kernel(ak.MemoryStore(), clock=trio.current_time) as kernel:
        kernel.models.register("m", model)
        tools: list[ak.Tool] = [change, look]
        async with await kernel.create("s", model="m", tools=tools) as agent:
            approvals = Approvals(agent, make_policy(tools, (), asks=True))
            agent.start_soon(Person(agent, approvals, keyboard.ask).run)
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
    assert decision.reason == (
        "change is off without a terminal; --allow change permits it"
    )
    assert policy.decide("look", {}).action == "allow"
    allowed = make_policy([change, look], ["change"], asks=False)
    assert allowed.decide("change", {}).action == "allow"
