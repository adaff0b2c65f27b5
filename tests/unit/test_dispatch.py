"""Listeners: who may register for what, and how an event goes through them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import Probe, listen, opened

Next = Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]]


@pytest.mark.clause("L1b")
async def test_a_listener_of_the_wrong_kind_is_refused_when_it_registers(
    agent: ak.Agent,
) -> None:
    """Not when the event comes, which may be never in a test and daily in production."""

    async def is_async(*_args: object) -> None:
        await trio.lowlevel.checkpoint()

    def is_sync(*_args: object) -> None:
        return

    class AsyncCallable:
        async def __call__(self, *_args: object) -> None:
            await trio.lowlevel.checkpoint()

    for wrong in (is_async, functools.partial(is_async, 1), AsyncCallable()):
        with pytest.raises(TypeError):
            listen(agent, ak.StatusChanged, wrong)
    for event in (ak.TurnStopping, ak.PreStep):
        with pytest.raises(TypeError):
            listen(agent, event, is_sync)
    for nonsense in (ak.UserMessage, "agent/status", ak.Notification[int]):
        with pytest.raises(TypeError):
            listen(agent, nonsense, is_sync)
    listen(agent, ak.TurnStopping, AsyncCallable())
    agent.on(ak.StatusChanged, functools.partial(is_sync, 1))


@pytest.mark.clause("L1a", "L1b")
async def test_a_waterfall_goes_through_the_kernels_listeners_first(
    autojump_clock: MockClock, kernel: ak.Kernel, agent: ak.Agent
) -> None:
    """The first is the outermost: it sees the decision of all others last."""
    order: list[str] = []

    def listener(
        name: str,
    ) -> Callable[[ak.PreStep, Next], Awaitable[ak.Enter | ak.Reject]]:
        async def listen(payload: ak.PreStep, next_: Next) -> ak.Enter | ak.Reject:
            assert payload.agent is agent
            order.append(f"{name} down")
            decision = await next_(payload)
            order.append(f"{name} up")
            return decision

        return listen

    agent.on(ak.PreStep, listener("agent"))
    kernel.on(ak.PreStep, listener("kernel"))
    agent.on(ak.PreStep, listener("agent 2"))
    agent.followup("go")
    await agent.when_idle()
    assert order == [
        "kernel down",
        "agent down",
        "agent 2 down",
        "agent 2 up",
        "agent up",
        "kernel up",
    ]


@pytest.mark.clause("L1b")
async def test_a_registration_ends_when_it_is_taken_back_or_its_agent_goes(
    autojump_clock: MockClock, kernel: ak.Kernel
) -> None:
    """The same function may register twice; taking one back leaves the other."""
    heard: list[str] = []

    def hear(payload: ak.StatusChanged) -> None:
        heard.append(payload.agent.id)

    handle = await kernel.create("a", model="scripted")
    first = handle.agent.on(ak.StatusChanged, hear)
    handle.agent.on(ak.StatusChanged, hear)
    first()
    first()
    handle.agent.followup("go")
    await handle.agent.when_idle()
    assert heard == ["a", "a"]
    await handle.dispose()
    again = await kernel.resume("a")
    again.agent.followup("go")
    await again.agent.when_idle()
    assert heard == ["a", "a"]


@pytest.mark.clause("L1a", "C4a")
async def test_payloads_are_frozen_and_carry_agent_and_signal(
    autojump_clock: MockClock,
) -> None:
    """One object for an event, the same signal through the whole turn."""
    signals: list[object] = []
    model = ScriptedModel([call("t")], [ak.ModelError("x", retryable=True)], ["end"])
    async with opened(model, [Probe("t")]) as agent:

        async def through(payload: ak.PreStep, next_: Next) -> object:
            signals.append(payload.signal)
            assert payload.agent is agent
            with pytest.raises(AttributeError):
                setattr(payload, "agent", agent)  # noqa: B010 - types know it too
            return await next_(payload)

        async def retry(payload: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            signals.append(payload.signal)
            await trio.lowlevel.checkpoint()
            return ak.Retry()

        async def stopping(payload: ak.TurnStopping) -> None:
            signals.append(payload.signal)
            await trio.lowlevel.checkpoint()

        for event in (
            ak.Assemble,
            ak.PreStep,
            ak.Request,
            ak.PreExecute,
            ak.Execute,
            ak.PostExecute,
        ):
            listen(agent, event, through)
        agent.on(ak.RequestError, retry)
        agent.on(ak.TurnStopping, stopping)
        agent.followup("go")
        await agent.when_idle()
    assert len(signals) == 12
    assert len({id(s) for s in signals}) == 1
    assert all(r.signal is signals[0] for r in model.requests)


@pytest.mark.clause("L1b", "C4c")
async def test_the_initiator_is_the_events_agent_while_a_listener_runs(
    autojump_clock: MockClock,
) -> None:
    """Whoever caused the event, and nobody outside of one."""
    heard: list[tuple[str, str | None]] = []

    def note(name: str) -> None:
        current = ak.current_agent()
        heard.append((name, None if current is None else current.id))

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        a = (await kernel.create("a")).agent
        b = (await kernel.create("b")).agent

        def nested(_payload: ak.InboxInserted) -> None:
            note("a before")
            b.inject("x")
            note("a after")

        a.on(ak.InboxInserted, nested)
        b.on(ak.InboxInserted, lambda _p: note("b"))
        a.inject("x")
        note("outside")
    assert heard == [("a before", "a"), ("b", "b"), ("a after", "a"), ("outside", None)]


@pytest.mark.clause("T8")
@pytest.mark.case("EVT-01")
async def test_a_faulty_observer_is_reported_once_and_harms_nobody(
    autojump_clock: MockClock,
) -> None:
    """An observer of errors that fails is not told of itself for ever."""
    errors: list[str] = []
    async with opened(ScriptedModel(default=["ok"]), strict=False) as agent:

        def broken(_payload: object) -> None:
            raise RuntimeError("broken")

        agent.on(ak.StatusChanged, broken)
        agent.on(ak.ErrorReported, broken)
        agent.on(ak.ErrorReported, lambda p: errors.append(p.where))
        for _ in range(3):
            sent = agent.followup("go")
            assert (await agent.outcome(sent.id)).kind == "completed"
        await agent.when_idle()
        assert len([e for e in errors if "StatusChanged" in e]) == 1
        assert len(errors) <= 2


@pytest.mark.clause("T8")
async def test_a_strict_kernel_raises_what_observers_raised(
    autojump_clock: MockClock,
) -> None:
    """So that a test does not pass over a faulty observer."""
    error = RuntimeError("broken")

    def broken(_payload: object) -> None:
        raise error

    async def use() -> None:
        async with opened(ScriptedModel(default=["ok"])) as agent:
            agent.on(ak.InboxInserted, broken)
            agent.followup("go")
            await agent.when_idle()

    with pytest.raises(ExceptionGroup) as caught:
        await use()
    assert caught.value.exceptions == (error,)


@pytest.mark.clause("T8", "C11a")
async def test_later_listeners_of_a_series_are_not_asked_after_a_stop(
    autojump_clock: MockClock,
) -> None:
    """Each is awaited in turn, and a stop ends the series."""
    gate = Gate()
    async with opened(ScriptedModel(default=["ok"])) as agent:
        asked: list[int] = []

        async def first(_payload: ak.TurnStopping) -> None:
            asked.append(1)
            with trio.CancelScope(shield=True):
                await gate.wait()

        async def second(_payload: ak.TurnStopping) -> None:
            asked.append(2)
            await trio.lowlevel.checkpoint()

        agent.on(ak.TurnStopping, first)
        agent.on(ak.TurnStopping, second)
        sent = agent.followup("go")
        await gate.reached()
        agent.cancel()
        gate.open()
        await agent.when_idle()
        assert asked == [1]
        assert (await agent.outcome(sent.id)).kind == "aborted"


FORGETFUL: dict[type, str] = {
    ak.Assemble: "str",
    ak.PreStep: "Enter or Reject",
    ak.Request: "ModelRequest",
    ak.RequestError: "Retry or Fail",
    ak.PreExecute: "Allow or Ask or Deny",
    ak.Approve: "Allow or Deny",
    ak.Execute: "ToolOutput",
    ak.PostExecute: "ToolOutput",
}


@pytest.mark.clause("L1b")
@pytest.mark.parametrize("event", FORGETFUL, ids=lambda event: event.__name__)
async def test_a_listener_that_forgets_to_return_is_named_with_its_event(
    autojump_clock: MockClock, kernel: ak.Kernel, event: type
) -> None:
    """Before the listeners around it see anything of what it did not decide."""
    raised: list[str] = []

    async def around(
        payload: object, next_: Callable[[object], Awaitable[object]]
    ) -> object:
        try:
            decision = await next_(payload)
        except TypeError as error:
            raised.append(str(error))
            raise
        raise AssertionError(f"it decided {decision!r}")

    async def forgetful(
        payload: object, next_: Callable[[object], Awaitable[object]]
    ) -> None:
        await next_(payload)

    async def ask(_payload: ak.PreExecute, _next: object) -> ak.Ask:
        await trio.lowlevel.checkpoint()
        return ak.Ask()

    async def allow(_payload: ak.Approve, _next: object) -> ak.Allow:
        await trio.lowlevel.checkpoint()
        return ak.Allow()

    kernel.models.register("m", ScriptedModel([call("t")], [ak.ModelError("busy")]))
    kernel.prompt.section("greeting", "hello")
    async with kernel.open("s", model="m", tools=[Probe("t")]) as agent:
        for listener in (around, forgetful):
            listen(agent, event, listener)
        agent.on(ak.PreExecute, ask)
        agent.on(ak.Approve, allow)
        agent.followup("go")
        await agent.when_idle()
    named = f"listener {forgetful.__qualname__} of {event.__name__}"
    assert raised == [f"{named} must return {FORGETFUL[event]}, not NoneType"]


@pytest.mark.clause("C11a")
async def test_what_a_listener_returns_behind_a_stop_is_not_looked_at(
    autojump_clock: MockClock,
) -> None:
    """No decision of it counts any more, so that a missing one is no failure."""
    gate = Gate()
    reports: list[str] = []
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def around(
            payload: object, next_: Callable[[object], Awaitable[object]]
        ) -> object:
            try:
                return await next_(payload)
            except TypeError as error:
                reports.append(str(error))
                raise

        async def late(_payload: object, _next: object) -> None:
            with trio.CancelScope(shield=True):
                await gate.wait()

        listen(agent, ak.PreStep, around)
        listen(agent, ak.PreStep, late)
        sent = agent.followup("go")
        await gate.reached()
        agent.cancel()
        gate.open()
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "discarded"
    assert reports == []
