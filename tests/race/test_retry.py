"""Failed requests: who decides about another attempt, and what the first one leaves."""

from __future__ import annotations

import math
from typing import cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.providers.retry import RetryPolicy
from agentkernel.testing import EOF, Gate, ScriptedModel, call
from tests.race.parts import Probe, facts, invalidity, opened, texts, types

FAILURE = ak.ModelError("overloaded", code="overloaded", retryable=True)


def retrying(agent: ak.Agent, delay: float = 1.0) -> list[ak.RequestError]:
    """Have every failure tried again; list what the listener was handed."""
    seen: list[ak.RequestError] = []

    async def retry(payload: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
        seen.append(payload)
        await trio.lowlevel.checkpoint()
        return ak.Retry(delay)

    agent.on(ak.RequestError, retry)
    return seen


@pytest.mark.clause("T5a")
async def test_a_listener_may_have_a_failed_request_tried_again(
    autojump_clock: MockClock,
) -> None:
    """It is told which attempt failed, how, and whether anything was shown."""
    model = ScriptedModel([FAILURE], ["Hel", EOF], ["Hello"])
    async with opened(model) as agent:
        seen = retrying(agent, 2)
        sent = agent.followup("go")
        await agent.when_idle()
        assert trio.current_time() == 4
        assert [(p.attempt, p.error.code, p.delivered) for p in seen] == [
            (1, "overloaded", False),
            (2, "truncated", True),
        ]
        assert [r.attempt for r in model.requests] == [1, 2, 3]
        assert (await agent.outcome(sent.id)).text == "Hello"


@pytest.mark.clause("T5a", "T8")
@pytest.mark.parametrize("answer", ["nobody", "fail", "raises", "nonsense"])
async def test_without_a_retry_the_original_failure_stands(
    autojump_clock: MockClock, answer: str
) -> None:
    """Also if the listener itself fails, or answers what cannot be waited for."""
    model = ScriptedModel([FAILURE])
    async with opened(model) as agent:
        reported: list[ak.ErrorReported] = []
        agent.on(ak.ErrorReported, reported.append)

        async def decide(_p: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            await trio.lowlevel.checkpoint()
            if answer == "raises":
                raise RuntimeError("broken")
            return ak.Retry(math.inf) if answer == "nonsense" else ak.Fail()

        if answer != "nobody":
            agent.on(ak.RequestError, decide)
        sent = agent.followup("go")
        await agent.when_idle()
        outcome = await agent.outcome(sent.id)
        assert (outcome.kind, outcome.code) == ("error", "overloaded")
        assert outcome.detail == "overloaded"
        assert len(reported) == (1 if answer in {"raises", "nonsense"} else 0)


@pytest.mark.clause("T5b")
@pytest.mark.case("PART-08")
async def test_a_closed_attempt_counts_for_its_usage_alone(
    autojump_clock: MockClock,
) -> None:
    """No text of it, no call of it: not live, not after a reload, not when stopped."""
    gate = Gate()
    store = ak.MemoryStore()
    tool = Probe("t")
    model = ScriptedModel(
        ["Hel", call("t"), ak.UsageChunk(ak.Usage(10, 3)), FAILURE],
        ["Hello", ak.UsageChunk(ak.Usage(11, 5)), gate],
        ["end"],
    )
    async with opened(model, [tool], store=store) as agent:
        retrying(agent)
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        await agent.when_idle()
        assert not tool.calls
        (reply,) = [f for f in facts(agent) if isinstance(f, ak.AssistantReplied)]
        assert reply.message.text == "Hello"
        assert not reply.message.calls
        (retry,) = [f for f in facts(agent) if isinstance(f, ak.RetryScheduled)]
        assert retry.usage == ak.Usage(10, 3)
        (end,) = [f for f in facts(agent) if isinstance(f, ak.StepEnded)]
        assert end.usage == ak.Usage(21, 8)
    async with opened(model, [tool], store=store) as agent:
        agent.followup("next")
        await agent.when_idle()
        assert texts(model.requests[2].messages)[:2] == ["go", "Hello"]
        assert invalidity(model.requests[2].messages) is None


@pytest.mark.clause("T5b", "T4a")
async def test_a_stop_in_the_retry_wait_keeps_nothing_of_the_closed_attempt(
    autojump_clock: MockClock,
) -> None:
    """`llm/retry` has taken back what it had shown."""
    model = ScriptedModel(["Hel", FAILURE], ["never"])
    async with opened(model) as agent:
        retrying(agent, 1000)
        agent.followup("go")
        await trio.sleep(1)
        assert types(agent)[-1] == "llm/retry"
        assert [b.kind for b in agent.blockers()] == ["retry"]
        agent.cancel()
        await agent.when_idle()
        assert trio.current_time() == 1
        assert "assistant/message" not in types(agent)
        assert len(model.requests) == 1


@pytest.mark.clause("T5c")
async def test_a_decision_that_comes_after_the_stop_is_not_used(
    autojump_clock: MockClock,
) -> None:
    """The text that was seen is kept, since no `llm/retry` took it back."""
    gate = Gate()
    model = ScriptedModel(["Hel", FAILURE], ["never"])
    async with opened(model) as agent:

        async def decide(_p: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            with trio.CancelScope(shield=True):
                await gate.wait()
            return ak.Retry(0)

        agent.on(ak.RequestError, decide)
        agent.followup("go")
        await gate.reached()
        agent.cancel()
        await wait_all_tasks_blocked()
        assert agent.status == "running"
        gate.open()
        await agent.when_idle()
        assert "llm/retry" not in types(agent)
        (reply,) = [f for f in facts(agent) if isinstance(f, ak.AssistantReplied)]
        assert reply.message.text == "Hel"
        assert reply.interrupted
        assert len(model.requests) == 1


@pytest.mark.clause("T5c")
def test_a_wait_that_the_provider_asks_for_is_honoured_up_to_a_cap() -> None:
    """Never cut short; beyond the cap the request fails at once, visibly."""
    policy = RetryPolicy(max_retry_after=60, random=lambda: 0.0)
    for seconds, expected in ((0, 0), (59, 59), (60, 60), (61, None)):
        error = ak.ModelError("slow down", retryable=True, retry_after=seconds)
        assert policy.delay(error, 1) == expected


@pytest.mark.clause("T5a")
async def test_steering_that_comes_during_a_retry_waits_for_the_next_step(
    autojump_clock: MockClock,
) -> None:
    """The second attempt asks what the first one asked."""
    model = ScriptedModel([FAILURE], ["one"], ["two"])
    async with opened(model) as agent:
        retrying(agent, 10)
        agent.followup("go")
        await trio.sleep(5)
        agent.steer("more")
        await agent.when_idle()
        assert [texts(r.messages) for r in model.requests] == [
            ["go"],
            ["go"],
            ["go", "one", "more"],
        ]


@pytest.mark.clause("T2e")
@pytest.mark.parametrize(
    "wrong", [object(), ak.FinishChunk("stop")], ids=["object", "second finish"]
)
async def test_a_stream_that_breaks_the_protocol_is_a_failed_request(
    autojump_clock: MockClock, wrong: object
) -> None:
    """A faulty provider ends its turn, and the agent goes on."""
    script: list[object] = ["a", wrong, wrong]
    model = ScriptedModel(cast("list[str]", script), ["ok"])
    async with opened(model) as agent:
        first = agent.followup("go")
        assert (await agent.outcome(first.id)).kind == "error"
        second = agent.followup("again")
        assert (await agent.outcome(second.id)).kind == "completed"
