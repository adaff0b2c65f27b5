"""A cancel, from the call to the ending: cause, order, seams, receipts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import (
    FaultyStore,
    Gate,
    Hold as StoreHold,
    ScriptedModel,
    call,
)
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

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


# --- the seams


async def _never(_: object) -> ak.ToolOutput:
    raise AssertionError("the body ran")


class _HoldingModel:
    """Holds at the entry or between chunks, as long as the signal has not fired."""

    def __init__(self, hold: Hold, *, entry: bool) -> None:
        self._hold = hold
        self._entry = entry

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
        assert request.signal is not None
        if self._entry:
            await self._hold(request.signal)
        yield self._chunks(request.signal)

    async def _chunks(self, signal: ak.TurnSignal) -> AsyncIterator[ak.Chunk]:
        await trio.lowlevel.checkpoint()
        yield ak.TextChunk("partial")
        await self._hold(signal)
        yield ak.TextChunk(" too late")
        yield ak.FinishChunk("stop")


def _install(seam: str, agent: ak.Agent, model: ScriptedModel, hold: Hold) -> None:  # noqa: C901  # a table of cases
    """Register what waits on the signal at one seam of a turn."""
    failure = ak.ModelError("down", retryable=True)

    async def through(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        await hold(payload.signal)
        return await following(payload)

    async def asks(payload: ak.PreExecute, following: object) -> ak.Ask:
        return ak.Ask()

    async def retries(payload: ak.RequestError, following: object) -> ak.Retry:
        return ak.Retry(1e6)

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await hold(invocation.signal)
        return ak.ToolOutput.of("late but real")

    events = {
        "assemble": ak.Assemble,
        "pre-step": ak.PreStep,
        "request": ak.Request,
        "request-error": ak.RequestError,
        "pre-execute": ak.PreExecute,
        "approve": ak.Approve,
        "execute": ak.Execute,
        "post-execute": ak.PostExecute,
    }
    if seam in events:
        agent.on(events[seam], through)  # type: ignore[call-overload]  # any of the seams
    if seam in {"request-error", "retry-wait"}:
        model.add([failure])
    if seam in {"pre-execute", "approve", "execute", "tool", "post-execute"}:
        model.add([call("t")])
        inner = {"tool": body, "post-execute": returns_done}.get(seam, _never)
        agent.tools.add(BodyTool("t", inner))
    if seam == "approve":
        agent.on(ak.PreExecute, asks)
    if seam == "retry-wait":
        agent.on(ak.RequestError, retries)
    if seam in {"model-entry", "model-stream"}:
        held = _HoldingModel(hold, entry=seam == "model-entry")
        agent.models.register("scripted", held)
    if seam == "turn-stopping":

        async def stopping(payload: ak.TurnStopping) -> None:
            await hold(payload.signal)

        agent.on(ak.TurnStopping, stopping)


SEAMS = {
    "assemble": [],
    "pre-step": [],
    "request": [],
    "model-entry": [],
    "model-stream": [],
    "request-error": [],
    "retry-wait": [],
    "pre-execute": ["ABORTED_BEFORE_DISPATCH"],
    "approve": ["ABORTED_BEFORE_DISPATCH"],
    "execute": ["ABORTED_BEFORE_DISPATCH"],
    "tool": [None],
    "post-execute": [None],
    "turn-stopping": [],
}


@pytest.mark.clause("C3b", "C4a", "C11a", "C12a", "T3c")
@pytest.mark.case("CAN-04", "CAN-07")
@pytest.mark.parametrize("seam", SEAMS)
@pytest.mark.parametrize("how", ["cancel", "keep_inbox", "dispose"])
async def test_stop_reaches_a_listener_that_waits_on_the_signal(
    seam: str, how: str, kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """At every seam the wait ends with the reason, and what comes after is not used.

    The waiting side returns normally once it has seen the signal, without passing a
    checkpoint: a decision that is made too late must not count all the same.
    """
    handle = await kernel.create("seams", model="scripted")
    agent = handle.agent
    seen: list[ak.StopReason] = []

    async def hold(signal: ak.TurnSignal) -> None:
        seen.append(await signal.wait())

    _install(seam, agent, model, hold)
    sent = agent.followup("go")
    await wait_all_tasks_blocked()
    assert agent.status == "running"
    requests = len(model.requests)
    if how == "dispose":
        await handle.dispose()
        kind = "disposed"
    else:
        receipt = agent.cancel(keep_inbox=how == "keep_inbox")
        assert receipt.turn == 1
        await agent.when_idle()
        kind = "user"
    assert [reason.kind for reason in seen] == ([] if seam == "retry-wait" else [kind])
    assert endings(agent) == [(1, "aborted" if kind == "user" else "disposed")]
    assert len(model.requests) == requests
    assert codes(agent) == SEAMS[seam]
    report = check_log(agent.session.events)
    record = agent.session.record(sent.id)
    assert record is not None
    if seam in {"assemble", "pre-step"}:
        assert record.state == ("discarded" if how == "cancel" else "pending")
        assert entered(agent) == []
    else:
        assert record.state == "entered"
        assert report.entered[1] == (sent.id,)
    if seam == "model-stream":
        replies = facts(agent, ak.AssistantReplied)
        assert [r.message.text for r in replies] == ["partial"]


@pytest.mark.clause("C4a", "C4b", "C2a")
async def test_one_signal_for_all_of_a_turn_and_a_fresh_one_for_the_next(  # noqa: C901  # a table of cases
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Every payload, request and call of a turn carries the very same object."""
    signals: dict[int, list[tuple[str, ak.TurnSignal]]] = {1: [], 2: []}
    turn = 1

    def note(name: str, signal: ak.TurnSignal | None) -> None:
        assert signal is not None
        signals[turn].append((name, signal))

    async def through(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        note(type(payload).__name__, payload.signal)
        if isinstance(payload, ak.Request):
            note("request", payload.request.signal)
        if isinstance(
            payload, ak.PreExecute | ak.Approve | ak.Execute | ak.PostExecute
        ):
            note("call", payload.call.signal)
        if isinstance(payload, ak.PreExecute):
            return ak.Ask()
        if isinstance(payload, ak.Approve):
            return ak.Allow()
        if isinstance(payload, ak.RequestError):
            return ak.Retry(0)
        return await following(payload)

    async def stopping(payload: ak.TurnStopping) -> None:
        note("TurnStopping", payload.signal)

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        note("body", invocation.signal)
        return ak.ToolOutput.of("done")

    def guard(payload: ak.PreExecute) -> None:
        note("guard", payload.signal)

    waterfalls = (
        ak.Assemble,
        ak.PreStep,
        ak.Request,
        ak.RequestError,
        ak.PreExecute,
        ak.Approve,
        ak.Execute,
        ak.PostExecute,
    )
    for event in waterfalls:
        agent.on(event, through)
    agent.on(ak.TurnStopping, stopping)
    agent.tools.add(BodyTool("t", body))
    agent.tools.guard(guard)
    for number in (1, 2):
        turn = number
        model.add([ak.ModelError("down", retryable=True)], [call("t")], ["done"])
        agent.followup("go")
        await agent.when_idle()
        note("model", model.requests[-1].signal)
    names = {name for name, _ in signals[1]}
    assert names == {event.__name__ for event in waterfalls} | {
        "TurnStopping",
        "body",
        "call",
        "guard",
        "model",
        "request",
    }
    first, second = ({id(s) for _, s in signals[n]} for n in (1, 2))
    assert len(first) == len(second) == 1
    assert first != second
    assert not any(s.cancelled for _, s in signals[1] + signals[2])


# --- the end of the turn's authority


@pytest.mark.clause("C3c", "C10a", "C12a")
async def test_receipt_names_the_turn_exactly_when_it_ends_aborted(
    model: ScriptedModel,
) -> None:
    """Cancel at the n-th thing that the agent says, for every n: both must agree.

    The outcomes are counted: the race has to go both ways, or it was none.
    """
    heard = (
        ak.Appended,
        ak.StatusChanged,
        ak.InboxInserted,
        ak.InboxClaimed,
        ak.InboxDiscarded,
    )
    outcomes: list[str] = []
    n = 0
    while True:
        n += 1
        script = ScriptedModel([call("t")], ["one ", "two"], default=["ok"])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", script)
            tool = BodyTool("t", returns_done)
            agent = (await kernel.create("s", model="scripted", tools=[tool])).agent
            count = 0
            receipts: list[tuple[ak.CancelReceipt, bool]] = []

            def act(_: object) -> None:
                nonlocal count
                count += 1
                if count == n:  # noqa: B023  # used within its round
                    ended = bool(facts(agent, ak.TurnEnded))  # noqa: B023  # used within its round
                    receipts.append((agent.cancel(), ended))  # noqa: B023  # used within its round

            for event in heard:
                agent.on(event, act)
            agent.followup("go")
            await agent.when_idle()
            check_log(agent.session.events)
            if not receipts:
                break
            ((receipt, ended),) = receipts
            kinds = endings(agent)
            if receipt.turn is not None:
                assert kinds == [(receipt.turn, "aborted")], n
                assert not ended
                outcomes.append("aborted")
            else:
                assert kinds in ([], [(1, "completed")]), n
                outcomes.append("completed" if kinds else "no turn")
    assert n > 20
    assert {"aborted", "completed", "no turn"} == set(outcomes)
    # Once a turn can no longer be stopped, no later moment can stop it.
    assert outcomes == sorted(outcomes, key=["no turn", "aborted", "completed"].index)


@pytest.mark.clause("C3c", "D1b")
async def test_nothing_comes_between_the_last_check_and_the_end_of_a_turn(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The last thing before `turn/end` can still stop it; the next thing cannot."""
    agent.on(
        ak.Appended,
        lambda p: (
            receipts.append(agent.cancel())
            if isinstance(p.event.data, ak.StepEnded | ak.TurnEnded)
            else None
        ),
    )
    receipts: list[ak.CancelReceipt] = []
    agent.followup("go")
    await agent.when_idle()
    assert [(r.effective, r.turn) for r in receipts] == [(True, 1), (False, None)]
    assert endings(agent) == [(1, "aborted")]
    assert [e.type for e in agent.session.events][-2:] == ["step/end", "turn/end"]


@pytest.mark.clause("C3d", "C3e", "C8b", "C12b")
async def test_cancel_during_a_slow_flush_leaves_the_finished_turn_alone(
    model: ScriptedModel,
) -> None:
    """The turn is over while its flush is blocked, although the agent is running."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        holds: list[StoreHold] = []
        agent.on(
            ak.Appended,
            lambda p: (
                holds.append(store.hold("write"))
                if isinstance(p.event.data, ak.TurnEnded)
                else None
            ),
        )
        sent = agent.followup("go")
        await wait_all_tasks_blocked()
        (hold,) = holds
        assert hold.reached.is_set()
        signal = model.requests[0].signal
        assert signal is not None
        assert agent.status == "running"
        for keep in (False, True):
            assert not agent.cancel(keep_inbox=keep).effective
        assert not agent.cancel(turn=1).effective
        assert not signal.cancelled
        assert agent.session.durable_seq != agent.session.last_seq
        hold.open()
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "completed"
        assert not signal.cancelled


@pytest.mark.clause("C3d")
async def test_observer_of_a_turns_end_cannot_change_it(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """`turn/end` is what it is when it is told; the signal has let go before."""
    model.add(["one"], ["two"])
    receipts: list[ak.CancelReceipt] = []

    def late(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, ak.TurnEnded):
            receipts.append(agent.cancel(turn=payload.event.data.turn))
            receipts.append(agent.cancel(keep_inbox=True))

    agent.on(ak.Appended, late)
    agent.followup("a")
    await agent.when_idle()
    assert [r.effective for r in receipts] == [False, False]
    assert endings(agent) == [(1, "completed")]
    assert not any(r.signal.cancelled for r in model.requests if r.signal)


@pytest.mark.clause("C12b", "C12d")
@pytest.mark.case("CAN-13")
async def test_stop_meant_for_one_turn_never_kills_the_next(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A button pressed late names a turn that is gone; a number comes with turn/start."""
    gate = Gate()
    model.add(["first"], [gate, "second"])
    agent.on(
        ak.StatusChanged,
        lambda p: (
            early.append(agent.cancel(turn=1).effective)
            if p.status == "running" and not early
            else None
        ),
    )
    early: list[bool] = []
    agent.followup("one")
    agent.followup("two")
    await gate.reached()
    assert early == [False]
    assert endings(agent) == [(1, "completed")]
    for turn in (1, 3):
        assert agent.cancel(turn=turn) == ak.CancelReceipt(effective=False)
    gate.open()
    await agent.when_idle()
    assert endings(agent) == [(1, "completed"), (2, "completed")]
    model.add([Gate()])
    agent.followup("three")
    await wait_all_tasks_blocked()
    assert agent.cancel(turn=3).turn == 3
    await agent.when_idle()


@pytest.mark.clause("C7a", "C7b", "I4a")
@pytest.mark.case("INB-01")
async def test_kept_input_is_parked_in_order_and_drained_from_the_front(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Nothing starts by itself; the next wake begins with what was parked."""
    model.add([Gate()])
    agent.followup("runs")
    await wait_all_tasks_blocked()
    kept = [agent.followup(text).id for text in ("b", "c")]
    steered = agent.steer("s").id
    receipt = agent.cancel(keep_inbox=True)
    assert receipt == ak.CancelReceipt(effective=True, turn=1, kept=(steered, *kept))
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert agent.status == "idle"
    assert len(model.requests) == 1
    assert agent.session.durable_seq == agent.session.last_seq
    agent.followup("d")
    await agent.when_idle()
    assert entered(agent) == ["runs", "s", "b", "c", "d"]
    assert endings(agent) == [
        (1, "aborted"),
        *((n, "completed") for n in (2, 3, 4)),
    ]


@pytest.mark.clause("C7c", "I2b")
@pytest.mark.case("INB-03")
async def test_claimed_input_that_entered_no_step_goes_back_to_the_front(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Once it was taken by a later step, and once by a turn that entered nothing."""
    gate = Gate()
    model.add([call("t")], ["ok"])
    held = Gate()
    steps: list[int] = []

    async def hold(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        steps.append(payload.step)
        if payload.step == 2:
            await held.wait()
        return await following(payload)

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        await gate.wait()
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    agent.on(ak.PreStep, hold)
    agent.followup("a")
    await gate.reached()
    later = agent.followup("b")
    first, second = agent.steer("s1"), agent.steer("s2")
    gate.open()
    await held.reached()
    taken = len(agent.inbox.next_step)
    receipt = agent.cancel(keep_inbox=True)
    assert receipt.kept == (first.id, second.id, later.id)
    assert taken == 0
    assert [m.id for m in agent.inbox.next_step] == [first.id, second.id]
    await agent.when_idle()
    held.open()
    assert agent.wake()
    await agent.when_idle()
    assert entered(agent) == ["a", "s1", "s2", "b"]
    check_log(agent.session.events)


@pytest.mark.clause("C13a", "C5b")
@pytest.mark.parametrize("where", ["pre-step", "model", "tool", "turn-stopping"])
async def test_cancel_may_come_from_inside_the_turn(
    where: str, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Whoever takes part may stop the turn that they are in, without a deadlock."""
    receipts: list[ak.CancelReceipt] = []

    def stop() -> None:
        receipts.append(agent.cancel())

    async def through(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        stop()
        return await following(payload)

    async def stopping(_: ak.TurnStopping) -> None:
        stop()

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        stop()
        return ak.ToolOutput.of("done")

    class Stopping:
        @asynccontextmanager
        async def stream(
            self, _: ak.ModelRequest
        ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
            stop()
            yield self._chunks()

        async def _chunks(self) -> AsyncIterator[ak.Chunk]:
            yield ak.TextChunk("no checkpoint at all")
            yield ak.FinishChunk("stop")

    if where == "pre-step":
        agent.on(ak.PreStep, through)
    elif where == "model":
        agent.models.register("scripted", Stopping())
    elif where == "tool":
        model.add([call("t")])
        agent.tools.add(BodyTool("t", body))
    else:
        agent.on(ak.TurnStopping, stopping)
    agent.followup("go")
    await agent.when_idle()
    assert [r.turn for r in receipts] == [1]
    assert endings(agent) == [(1, "aborted")]
    assert len(model.requests) == (1 if where in {"tool", "turn-stopping"} else 0)
    assert codes(agent) == ([None] if where == "tool" else [])
    check_log(agent.session.events)


@pytest.mark.clause("C11a")
async def test_second_listener_is_not_begun_once_the_turn_was_stopped(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A waterfall asks before each of its listeners, not only behind the last."""
    began: list[str] = []

    async def first(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        began.append("first")
        await payload.signal.wait()
        return await following(payload)

    async def second(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        began.append("second")
        return await following(payload)

    agent.on(ak.PreStep, first)
    agent.on(ak.PreStep, second)
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert began == ["first"]


@pytest.mark.clause("C11a")
async def test_nothing_of_a_turn_begins_that_was_stopped_when_it_was_claimed(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The claim is told synchronously; who stops it there wants no listener to run."""
    began: list[str] = []

    async def notes(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        began.append(type(payload).__name__)
        return await following(payload)

    for event in (ak.Assemble, ak.PreStep, ak.Request):
        agent.on(event, notes)
    receipts: list[ak.CancelReceipt] = []
    agent.on(ak.InboxClaimed, lambda _: receipts.append(agent.cancel()))
    sent = agent.followup("go")
    await agent.when_idle()
    assert receipts == [ak.CancelReceipt(effective=True, turn=1, dropped=(sent.id,))]
    assert began == []
    assert endings(agent) == [(1, "aborted")]
    assert model.requests == []
