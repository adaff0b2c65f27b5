"""A stop at every seam of a turn: it is seen, and what comes after is not used."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import (
    ScriptedModel,
    call,
)
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

Hold = Callable[[ak.TurnSignal], Awaitable[None]]


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


@pytest.mark.clause("T7b", "C3b")
@pytest.mark.case("CAN-03")
async def test_stop_releases_an_approval_and_a_late_answer_runs_nothing(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A question that nobody answers is closed by the stop, and is no denial."""
    answer = trio.Event()
    ran: list[str] = []
    asked: list[str] = []

    async def ask(payload: ak.PreExecute, following: object) -> ak.Ask:
        return ak.Ask("may it?")

    async def approve(payload: ak.Approve, following: object) -> ak.Allow:
        asked.append(payload.reason)
        await answer.wait()
        return ak.Allow()

    async def runs(_: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append("body")
        return ak.ToolOutput.of("done")

    agent.on(ak.PreExecute, ask)
    agent.on(ak.Approve, approve)
    agent.tools.add(BodyTool("t", runs))
    model.add([call("t")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    assert asked == ["may it?"]
    assert [b.kind for b in agent.blockers()] == ["approval"]
    agent.cancel()
    await agent.when_idle()
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
    answer.set()
    await wait_all_tasks_blocked()
    assert ran == []
    assert facts(agent, ak.ToolCalled) == []
    assert endings(agent) == [(1, "aborted")]
    check_log(agent.session.events)
