"""A cancel, from the call to the ending: cause, order, seams, receipts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import (
    Gate,
    ScriptedModel,
    call,
)
from tests.race.rig import BodyTool, codes, endings

Hold = Callable[[ak.TurnSignal], Awaitable[None]]


# --- the cause


@pytest.mark.clause("C1a", "C5b")
async def test_cancel_means_user_unless_another_cause_is_given(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The notification and the signal name the same cause, and the default is USER."""
    gate = Gate()
    model.add([gate], [gate])
    seen: list[tuple[str, str | None]] = []
    agent.on(ak.CancelRequested, lambda p: seen.append(("asked", p.cause.kind)))
    for expected in ("user", "parent"):
        agent.followup("go")
        await wait_all_tasks_blocked()
        signal = model.requests[-1].signal
        assert signal is not None
        if expected == "user":
            agent.cancel()
        else:
            agent.cancel(ak.PARENT)
        assert signal.reason == ak.StopReason(expected)
        await agent.when_idle()
    assert seen == [("asked", "user"), ("asked", "parent")]
    assert endings(agent) == [(1, "aborted"), (2, "aborted")]


@pytest.mark.clause("C2b")
async def test_signal_carries_a_fresh_frozen_reason_and_not_the_callers_object(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """What a caller does to its object later cannot reach the turn."""
    model.add([Gate()], [Gate()])
    reasons: list[ak.StopReason] = []
    for _ in range(2):
        agent.followup("go")
        await wait_all_tasks_blocked()
        cause = ak.CancelCause("parent")
        agent.cancel(cause)
        signal = model.requests[-1].signal
        assert signal is not None
        assert signal.reason is not None
        assert signal.reason is not cause  # type: ignore[comparison-overlap]  # that is what is claimed
        assert signal.reason.kind == "parent"
        with pytest.raises(AttributeError):
            signal.reason.kind = "user"  # type: ignore[misc]  # it is frozen  # pyright: ignore[reportAttributeAccessIssue]
        reasons.append(signal.reason)
        await agent.when_idle()
    assert reasons[0] is not reasons[1]


@pytest.mark.clause("C2b")
async def test_waiters_of_the_signal_run_before_the_scope_reaches_them(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A listener that waits on the signal sees it, and only then is cancelled."""
    seen: list[str] = []

    async def waits(
        payload: ak.PreStep, following: Callable[[ak.PreStep], Awaitable[object]]
    ) -> ak.Enter | ak.Reject:
        reason = await payload.signal.wait()
        seen.append(reason.kind)
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            seen.append("cancelled")
            raise
        raise AssertionError

    agent.on(ak.PreStep, waits)
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert seen == ["user", "cancelled"]


@pytest.mark.clause("C2c", "C12c")
async def test_first_cause_wins_and_a_repeated_cancel_is_harmless(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The second cancel finds nothing left to stop and says so."""
    model.add([Gate()])
    asked: list[str] = []
    agent.on(ak.CancelRequested, lambda p: asked.append(p.cause.kind))
    agent.followup("go")
    await wait_all_tasks_blocked()
    signal = model.requests[0].signal
    assert signal is not None
    first = agent.cancel(ak.PARENT)
    second = agent.cancel(ak.USER)
    assert first == ak.CancelReceipt(effective=True, turn=1)
    assert second == ak.CancelReceipt(effective=False)
    assert signal.reason == ak.StopReason("parent")
    await agent.when_idle()
    assert agent.cancel() == ak.CancelReceipt(effective=False)
    assert asked == ["parent"]
    assert endings(agent) == [(1, "aborted")]


@pytest.mark.clause("C2d", "C4c")
def test_nothing_public_reads_a_cause_off_a_signal_or_an_exception() -> None:
    """Ambient state holds the agent alone; a signal is looked at, never questioned."""
    public = {name for name in dir(ak) if not name.startswith("_")}
    assert not {n for n in public if "cause" in n.lower()} - {"CancelCause"}
    assert not {n for n in public if n.lower().startswith("current")} - {
        "current_agent"
    }
    signal = {name for name in dir(ak.TurnSignal) if not name.startswith("_")}
    assert signal == {"cancelled", "reason", "wait", "raise_if_cancelled", "on_cancel"}


@pytest.mark.clause("C9a", "C9c", "C2b")
@pytest.mark.case("CAN-11")
async def test_every_cause_ends_in_the_same_coarse_record(
    model: ScriptedModel, autojump_clock: trio.testing.MockClock
) -> None:
    """Only the live side tells who stopped it; the log holds the kind and no more."""
    store = ak.MemoryStore()
    reasons: dict[str, str | None] = {}

    async def waits(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        try:
            await trio.sleep_forever()
        finally:
            reason = invocation.signal.reason
            reasons[invocation.agent.id] = None if reason is None else reason.kind
        raise AssertionError

    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        handles: dict[str, ak.AgentHandle] = {}
        for name in ("user", "parent", "disposed", "limit"):
            tool = BodyTool("t", waits, max_seconds=1 if name == "limit" else None)
            model.add([call("t")])
            handles[name] = await kernel.create(name, model="scripted", tools=[tool])
            handles[name].agent.followup("go")
            await wait_all_tasks_blocked()
        await handles["limit"].agent.when_idle()
        handles["user"].agent.cancel(ak.USER)
        handles["parent"].agent.cancel(ak.PARENT)
        for name in ("user", "parent"):
            await handles[name].agent.when_idle()
        for handle in handles.values():
            await handle.dispose()
        lines = {
            name: [ak.encode_event(e)[0] for e in await store.read(name)]
            for name in handles
        }
        results = {name: codes(handles[name].agent) for name in handles}
    assert reasons == {
        "user": "user",
        "parent": "parent",
        "disposed": "disposed",
        "limit": None,
    }
    assert results["user"] == results["parent"] == results["disposed"] == ["ABORTED"]
    assert results["limit"] == ["TIMEOUT"]
    for name in ("user", "parent"):
        ends = [line for line in lines[name] if b'"turn/end"' in line]
        assert len(ends) == 1
        assert b'"reason":{"kind":"aborted"}' in ends[0]
        text = b"\n".join(lines[name])
        for word in (b'"parent"', b"Cancelled", b"Traceback", b"signal"):
            assert word not in text


@pytest.mark.clause("C9b")
@pytest.mark.parametrize(
    "reason",
    [
        '{"kind":"aborted","message":"why"}',
        '{"kind":"aborted","code":"user"}',
        '{"kind":"aborted","cause":"user"}',
        '{"kind":"aborted","reason":null}',
    ],
)
def test_aborted_record_that_says_more_is_refused_by_its_number(reason: str) -> None:
    """Replay cannot bring a caller's detail back in."""
    line = (
        '{"seq":7,"time":0.0,"type":"turn/end","data":{"turn":1,"reason":%s}}' % reason  # noqa: UP031  # the text has braces
    )
    with pytest.raises(ak.SessionFormatError) as caught:
        ak.decode_event(line.encode(), lambda _: b"")
    assert caught.value.seq == 7


@pytest.mark.clause("C9b")
async def test_resume_refuses_an_aborted_record_with_a_reason_in_any_store() -> None:
    """A store that hands over values, not lines, is held to the same."""
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim("s", token="t", create=True)  # noqa: S106  # the token of a claim is no secret
        seeded: list[ak.Fact] = [
            ak.SessionHeader(1),
            ak.TurnStarted(1),
            ak.TurnEnded(1, ak.Ending("aborted", message="the user pressed stop")),
        ]
        events = [ak.SessionEvent(i, 0.0, f) for i, f in enumerate(seeded, 1)]
        await store.write([ak.Append(claim, events)])
        await store.release(claim)
        async with ak.open_kernel(store) as kernel:
            with pytest.raises(ak.SessionFormatError) as caught:
                await kernel.resume("s")
    assert caught.value.seq == 3


# --- the order of a cancel


@pytest.mark.clause("C5b", "C3a")
async def test_effective_cancel_acts_in_one_fixed_order(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Notify; drop; stop; observers; discards: all of it before `cancel` returns."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    queued = agent.followup("queued")
    signal = model.requests[0].signal
    assert signal is not None
    order: list[str] = []

    def state() -> str:
        pending = len(agent.inbox.next_turn)
        return f"pending={pending} cancelled={signal.cancelled}"

    agent.on(ak.CancelRequested, lambda p: order.append(f"asked {state()}"))
    agent.on(ak.InboxDiscarded, lambda p: order.append(f"discarded {state()}"))
    agent.on(
        ak.Appended,
        lambda p: (
            order.append(f"log {p.event.type} {state()}")
            if isinstance(p.event.data, ak.InboxSpliced)
            else None
        ),
    )
    signal.on_cancel(lambda reason: order.append(f"signal {reason.kind} {state()}"))
    receipt = agent.cancel()
    order.append("returned")
    assert order == [
        "asked pending=1 cancelled=False",
        "signal user pending=0 cancelled=True",
        "log agent/inbox/spliced pending=0 cancelled=True",
        "discarded pending=0 cancelled=True",
        "returned",
    ]
    assert receipt == ak.CancelReceipt(effective=True, turn=1, dropped=(queued.id,))
    await agent.when_idle()


@pytest.mark.clause("C5c")
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3)])
async def test_listener_that_raises_cannot_veto_a_stop(error: BaseException) -> None:
    """Neither an observer of the request nor one of the signal is asked.

    An exit that one of them asks for is honoured, after the stop.
    """
    model = ScriptedModel([Gate()])
    calls: list[str] = []

    def refuses(_: object) -> None:
        calls.append("called")
        raise error

    signals: list[ak.TurnSignal] = []

    async def run() -> None:
        async with ak.open_kernel(ak.MemoryStore()) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            agent.followup("go")
            await wait_all_tasks_blocked()
            queued = agent.followup("queued")
            signal = model.requests[0].signal
            assert signal is not None
            signals.append(signal)
            agent.on(ak.CancelRequested, refuses)
            signal.on_cancel(refuses)
            signal.on_cancel(lambda _: calls.append("second observer"))
            agent.on(ak.Appended, lambda p: events.append(p.event))
            try:
                receipt = agent.cancel()
            except SystemExit:
                assert isinstance(error, SystemExit)
            else:
                assert receipt.turn == 1
            assert agent.inbox.next_turn == ()
            await agent.when_idle()
            assert endings(agent) == [(1, "aborted")]
            assert (await agent.outcome(queued.id)).kind == "discarded"

    events: list[ak.SessionEvent] = []
    await run()
    assert signals[0].cancelled
    assert calls == ["called", "called", "second observer"]


@pytest.mark.clause("C5d")
async def test_cancel_made_during_the_notification_only_widens_the_outer_one(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The outer cause stays, nobody is told twice, and the queue is dropped after all."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    queued = agent.followup("queued")
    asked: list[str] = []
    inner: list[ak.CancelReceipt] = []

    def again(payload: ak.CancelRequested) -> None:
        asked.append(payload.cause.kind)
        inner.append(agent.cancel(ak.USER, keep_inbox=True))
        inner.append(agent.cancel(ak.USER))

    agent.on(ak.CancelRequested, again)
    receipt = agent.cancel(ak.PARENT, keep_inbox=True)
    signal = model.requests[0].signal
    assert signal is not None
    assert signal.reason == ak.StopReason("parent")
    assert asked == ["parent"]
    assert [r.effective for r in inner] == [False, False]
    assert receipt.dropped == (queued.id,)
    assert receipt.kept == ()
    await agent.when_idle()
    assert len(model.requests) == 1


@pytest.mark.clause("C5d")
async def test_cancel_with_keep_inbox_during_a_broad_one_keeps_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A nested cancel widens; it cannot narrow."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    queued = agent.followup("queued")
    agent.on(ak.CancelRequested, lambda _: agent.cancel(keep_inbox=True))
    assert agent.cancel().dropped == (queued.id,)
    await agent.when_idle()
    assert len(model.requests) == 1


@pytest.mark.clause("C5a", "C5e")
@pytest.mark.case("CAN-13")
async def test_cancel_of_an_idle_agent_is_ineffective_and_arms_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A stop that found nothing must not kill what comes next."""
    told: list[object] = []
    agent.on(ak.CancelRequested, told.append)
    for keep in (False, True):
        assert agent.cancel(keep_inbox=keep) == ak.CancelReceipt(effective=False)
    sent = agent.followup("go")
    await agent.when_idle()
    for keep in (False, True):
        assert agent.cancel(keep_inbox=keep) == ak.CancelReceipt(effective=False)
    assert (await agent.outcome(sent.id)).kind == "completed"
    assert told == []
    assert len(model.requests) == 1


@pytest.mark.clause("C5a")
async def test_broad_cancel_of_an_idle_agent_drops_what_is_parked(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Pending input makes it effective; with `keep_inbox` there is nothing to do."""
    rides = agent.inject("rides along")
    assert agent.cancel(keep_inbox=True) == ak.CancelReceipt(effective=False)
    receipt = agent.cancel()
    assert receipt == ak.CancelReceipt(effective=True, dropped=(rides.id,))
    assert agent.status == "idle"
    assert (await agent.outcome(rides.id)).kind == "discarded"
    assert model.requests == []


@pytest.mark.clause("C5a", "I6")
async def test_cancel_of_an_idle_agent_with_a_parked_notice_drops_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A notice is a fact and stays; there was nothing else, and the receipt says so."""
    notice = ak.UserMessage("n", (ak.TextBlock("a job has ended"),), kind="notice")
    agent.inject(notice)
    assert agent.cancel().dropped == ()
    assert [m.id for m in agent.inbox.next_step] == ["n"]
    assert agent.status == "idle"
