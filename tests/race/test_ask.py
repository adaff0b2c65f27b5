"""`ask`: one question, its reply as it comes, and every way out of the block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel
from tests.race.parts import facts, listen, opened, texts, types

pytestmark = pytest.mark.clause("I5c")


T = TypeVar("T")


async def leave(reply: ak.Reply, act: Callable[[], T], gate: Gate | None = None) -> T:
    """Leave a reply's block by an exception, after an act and at a gate."""
    acts: list[T] = []
    with suppress(LookupError):
        async with reply:
            acts.append(act())
            if gate is not None:
                await gate.reached()
            raise LookupError
    return acts[0]


async def test_a_reply_is_streamed_and_its_outcome_known_behind_the_block(
    autojump_clock: MockClock,
) -> None:
    """The text of that turn alone, though others run before and after it."""
    model = ScriptedModel(["before"], ["one ", "two"], ["after"])
    async with opened(model) as agent:
        agent.followup("x")
        async with agent.ask("question") as reply:
            agent.followup("y")
            with pytest.raises(ak.AgentKernelError):
                _ = reply.outcome
            assert [text async for text in reply.text()] == ["one ", "two"]
        assert reply.outcome.kind == "completed"
        assert reply.outcome.text == "one two"
        assert agent.session.durable_seq >= reply.sent.seq
        await agent.when_idle()
        assert len(model.requests) == 3


async def test_leaving_without_reading_waits_for_the_outcome(
    autojump_clock: MockClock,
) -> None:
    """Who is not interested in the text still knows that it is done."""
    model = ScriptedModel([5.0, "text"])
    async with opened(model) as agent:
        async with agent.ask("question") as reply:
            pass
        assert trio.current_time() == 5
        assert reply.outcome.text == "text"


@pytest.mark.parametrize("way", ["exception", "cancelled", "cancelled at the exit"])
async def test_leaving_early_stops_the_messages_turn_and_waits(
    autojump_clock: MockClock, way: str
) -> None:
    """Nothing of it runs behind the block, and other input is kept."""
    gate = Gate()
    model = ScriptedModel(["one", gate], default=["ok"])
    async with opened(model) as agent:

        async def leave(scope: trio.CancelScope) -> None:
            async with agent.ask("question") as reply:
                agent.followup("other")
                async for _ in reply.text():
                    break
                if way == "exception":
                    raise LookupError
                scope.cancel()
                if way == "cancelled":
                    await trio.lowlevel.checkpoint()

        with trio.CancelScope() as scope:
            if way == "exception":
                with pytest.raises(LookupError):
                    await leave(scope)
            else:
                await leave(scope)
        assert scope.cancelled_caught == (way != "exception")
        ends = [f for f in facts(agent) if isinstance(f, ak.TurnEnded)]
        assert [e.reason.kind for e in ends] == ["aborted"]
        assert model.open_streams == 0
        await agent.when_idle()
        assert [m.text for m in agent.inbox.next_turn] == ["other"]


async def test_leaving_early_withdraws_a_message_that_waits_and_stops_nobody_else(
    autojump_clock: MockClock,
) -> None:
    """The turn that runs is another message's."""
    gate = Gate()
    model = ScriptedModel([gate, "ok"], ["later"])
    async with opened(model) as agent:
        first = agent.followup("first")
        await gate.reached()
        reply = agent.ask("question")
        last = await leave(reply, lambda: agent.followup("last"))
        assert (await agent.outcome(reply.sent.id)).kind == "discarded"
        gate.open()
        assert (await agent.outcome(first.id)).kind == "completed"
        assert (await agent.outcome(last.id)).kind == "completed"
        assert texts(model.requests[1].messages) == ["first", "ok", "last"]


async def test_leaving_early_before_the_message_entered_takes_it_back(
    autojump_clock: MockClock,
) -> None:
    """Its turn had claimed it: the turn is stopped, and the message does not return."""
    gate = Gate()
    model = ScriptedModel(default=["ok"])
    async with opened(model) as agent:

        async def hold(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await gate.wait()
            return ak.Enter(payload.messages)

        agent.on(ak.PreStep, hold)
        reply = agent.ask("question")
        await leave(reply, lambda: None, gate)
        assert (await agent.outcome(reply.sent.id)).kind == "discarded"
        await agent.when_idle()
        assert not model.requests
        assert not agent.inbox.next_turn


async def test_leaving_early_after_the_turn_ended_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    """A late stop never hits the next turn."""
    gate = Gate()
    model = ScriptedModel(["one"], [gate, "two"])
    async with opened(model) as agent:
        reply = agent.ask("question")
        next_one = await leave(reply, lambda: agent.followup("next"), gate)
        gate.open()
        assert (await agent.outcome(next_one.id)).text == "two"
        assert (await agent.outcome(reply.sent.id)).kind == "completed"


async def test_a_reply_ends_when_its_message_is_discarded_or_its_agent_goes(
    autojump_clock: MockClock,
) -> None:
    """No reader waits for text that cannot come."""
    gate = Gate()
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel([gate]))
        handle = await kernel.create("s", model="m")
        agent = handle.agent
        agent.followup("busy")
        await gate.reached()
        seen: list[str] = []

        async def read() -> None:
            async with agent.ask("question") as reply:
                seen.extend([text async for text in reply.text()])
            seen.append(reply.outcome.kind)

        async def read_until_gone() -> None:
            with pytest.raises(ak.AgentDisposedError):
                async with agent.ask("another") as reply:
                    seen.extend([text async for text in reply.text()])
            seen.append("gone")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await wait_all_tasks_blocked()
            agent.inbox.remove(agent.inbox.next_turn[0].id)
            nursery.start_soon(read_until_gone)
            await wait_all_tasks_blocked()
            await handle.dispose()
        assert seen == ["discarded", "gone"]


@pytest.mark.case("INB-10")
async def test_asking_the_same_again_gives_the_first_reply(
    autojump_clock: MockClock,
) -> None:
    """Also in another life of the session: the text is read from the log."""
    store = ak.MemoryStore()
    message = ak.UserMessage("K", (ak.TextBlock("question"),))
    model = ScriptedModel(["one ", "two"])
    for _ in range(3):
        async with opened(model, store=store) as agent:
            async with agent.ask(message) as reply:
                assert [text async for text in reply.text()] == ["one ", "two"]
            assert reply.outcome.text == "one two"
    assert len(model.requests) == 1


@pytest.mark.clause("C13b")
async def test_a_turn_cannot_ask_its_own_agent(autojump_clock: MockClock) -> None:
    """It would wait for a turn that waits for it; nothing is sent."""
    model = ScriptedModel(["ok"])
    async with opened(model) as agent:

        async def stopping(_payload: ak.TurnStopping) -> None:
            with pytest.raises(ak.OwnTurnError):
                async with agent.ask("me"):
                    raise AssertionError

        agent.on(ak.TurnStopping, stopping)
        agent.followup("go")
        await agent.when_idle()
        assert types(agent).count("turn/end") == 1
        assert not agent.inbox.next_turn


@pytest.mark.clause("T5b")
@pytest.mark.case("PART-08")
async def test_events_show_where_an_attempt_was_discarded(
    autojump_clock: MockClock,
) -> None:
    """A reader can take back what the first attempt had said."""
    model = ScriptedModel(["Hel", ak.ModelError("cut", retryable=True)], ["Hello"])
    async with opened(model) as agent:

        async def retry(_p: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            await trio.lowlevel.checkpoint()
            return ak.Retry(1)

        agent.on(ak.RequestError, retry)
        async with agent.ask("question") as reply:
            kinds = [event.type async for event in reply.events()]
        interesting = [
            k for k in kinds if k in {"assistant/chunk", "llm/retry", "turn/end"}
        ]
        assert interesting == [
            "assistant/chunk",
            "llm/retry",
            "assistant/chunk",
            "turn/end",
        ]
        assert reply.outcome.text == "Hello"


@pytest.mark.clause("I5b", "T8")
async def test_an_asker_learns_that_the_turn_failed_before_its_message_entered(
    autojump_clock: MockClock,
) -> None:
    """The message is parked, and may wait for ever: who asks must not wait with it."""
    model = ScriptedModel(default=["fine"])
    async with opened(model) as agent:

        async def fail(_payload: ak.PreStep, _next: object) -> ak.Enter:
            await trio.lowlevel.checkpoint()
            raise RuntimeError("boom")

        unregister = agent.on(ak.PreStep, fail)
        with trio.fail_after(60):
            async with agent.ask("hello") as reply:
                pass
        assert reply.outcome.kind == "error"
        assert [m.id for m in agent.inbox.next_turn] == [reply.sent.id]
        unregister()
        assert agent.wake()
        await agent.when_idle()
        assert (await agent.outcome(reply.sent.id)).text == "fine"


@pytest.mark.clause("T8")
@pytest.mark.parametrize("event", [ak.PreStep, ak.Assemble])
async def test_the_text_of_a_reply_ends_with_a_turn_that_failed_before_its_step(
    autojump_clock: MockClock, event: type[ak.PreStep | ak.Assemble]
) -> None:
    """The message pends again, and whoever reads learns the same as from its outcome."""
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def fails(_payload: object, _next: object) -> object:
            await trio.lowlevel.checkpoint()
            raise ValueError("no")

        unregister = listen(agent, event, fails)
        async with agent.ask("go") as reply:
            assert [text async for text in reply.text()] == []
        assert (reply.outcome.kind, reply.outcome.detail) == (
            "error",
            "ValueError: no",
        )
        unregister()
        assert agent.wake()
        await agent.when_idle()
        assert (await agent.outcome(reply.sent.id)).text == "ok"
