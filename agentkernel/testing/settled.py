"""What must be true when the dust has settled: the checks behind a sweep's runs."""

from __future__ import annotations

from collections.abc import Sequence

import trio

import agentkernel as ak

from .faulty import FaultyStore
from .log_check import LogReport, check_log
from .models import ScriptedModel
from .stage import Stage

__all__ = ["check_idle", "check_messages", "check_session", "check_stopped"]

_PAGE = 1000
_LEFT = frozenset({"entered", "discarded", "rejected", "consumed"})


async def check_idle(stage: Stage) -> None:
    """Wait until the agent has settled, and check that this is true of it.

    Always a checkpoint.

    Cancellation:
      Passes through; nothing has changed.

    Raises:
      AssertionError: if something is still at work, or an outcome is not there.

    """
    agent = stage.agent
    await agent.when_idle()
    _require(agent.status == "idle", "an agent that has settled is idle")
    _require(not agent.blockers(), f"an idle agent waits for {agent.blockers()}")
    _require(
        not stage.model.open_streams,
        f"{stage.model.open_streams} streams are open on an idle agent",
    )
    report = check_log(agent.session.events)
    _check_wakes(stage, report)
    for message_id, fate in report.messages.items():
        if fate in _LEFT:
            await _check_outcome(agent, message_id, report)


def _check_wakes(stage: Stage, report: LogReport) -> None:
    """Check that what was woken has run, and that what was parked has not."""
    parks = {"error", "blocked"} & {e.kind for e in report.turns.values() if e}
    if stage.ended or stage.errors or parks:
        return
    since = stage.agent.session.events[stage.stopped_at :]
    if stage.woken or any(_wakes(event) for event in since):
        waiting = [message.id for message in stage.agent.inbox.next_turn]
        _require(not waiting, f"{waiting} were woken and wait on an idle agent")
        return
    for message_id in stage.kept:
        fate = report.messages.get(message_id)
        _require(fate == "pending", f"{message_id} was parked and is {fate}")


def _wakes(event: ak.SessionEvent) -> bool:
    """Whether a message arrived, from wherever, that is not to wait for another."""
    splice = event.data
    return (
        isinstance(splice, ak.InboxSpliced)
        and splice.outcome is None
        and any(not m.passive and m.id not in splice.removed for m in splice.inserted)
    )


async def _check_outcome(agent: ak.Agent, message_id: str, report: LogReport) -> None:
    """Check that an outcome is there and says what the log says."""
    outcome: ak.Outcome | None = None
    with trio.move_on_after(1):
        outcome = await agent.outcome(message_id)
    if outcome is None:
        raise AssertionError(f"the outcome of {message_id} is not there when idle")
    fate = report.messages[message_id]
    if fate == "discarded":
        _require(
            outcome.kind == "discarded",
            f"{message_id} was discarded, its outcome is {outcome.kind}",
        )
    elif outcome.turn is not None:
        ending = report.turns[outcome.turn]
        _require(
            ending is not None and ending.kind == outcome.kind,
            f"{message_id} has the outcome {outcome.kind}, its turn ended {ending}",
        )


async def check_session(stage: Stage) -> LogReport:
    """Check the log that a closed kernel left, resume it, and go on with it.

    Always a checkpoint.

    Cancellation:
      Passes through.

    Returns:
      What the log of the first kernel says.

    Raises:
      AssertionError: if log, store and memory differ or break a rule.

    """
    memory = tuple(stage.agent.session.events)
    report = check_log(memory)
    if isinstance(stage.store, FaultyStore):
        stage.store.mend()
    model = ScriptedModel(default=["resumed"])
    async with ak.open_kernel(
        stage.store, clock=trio.current_time, strict=True
    ) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.resume(stage.agent.id)).agent
        stored = await _read(agent.session)
        _require(stored == memory, _difference("the store", stored, "memory", memory))
        pending = [m.id for m in (*agent.inbox.next_step, *agent.inbox.next_turn)]
        expected = [i for i, fate in report.messages.items() if fate == "pending"]
        _require(
            sorted(pending) == sorted(expected),
            f"pending after a resume is {pending}, the log says {expected}",
        )
        sent = agent.followup("sent after the resume")
        await agent.when_idle()
        outcome = await agent.outcome(sent.id)
        _require(
            outcome.kind == "completed",
            f"the turn after a resume ended {outcome.kind}: {outcome.detail}",
        )
        check_log(await _read(agent.session))
    for request in (*stage.model.requests, *model.requests):
        check_messages(request.messages)
    return report


def check_stopped(stage: Stage, report: LogReport) -> None:
    """Compare what the cancels said with what the log says.

    Raises:
      AssertionError: if a receipt names a turn that was not stopped, a turn was
        stopped without a receipt, an id was not dropped, or an error was reported
        that the scenario does not expect.

    """
    named = {r.turn for r in stage.receipts if r.turn is not None}
    stopped = {
        turn for turn, ending in report.turns.items() if ending == ak.Ending("aborted")
    }
    _require(stopped <= named, f"turns {stopped} ended aborted, receipts name {named}")
    for turn in named - stopped:
        ending = report.turns.get(turn)
        _require(
            stage.ended and ending == ak.Ending("disposed"),
            f"a receipt names turn {turn}, which ended {ending}",
        )
    for receipt in stage.receipts:
        for message_id in receipt.dropped:
            _require(
                report.messages.get(message_id) == "discarded",
                f"{message_id} was dropped and is {report.messages.get(message_id)}",
            )
        for message_id in receipt.kept:
            _require(
                message_id in report.messages, f"{message_id} was kept and is gone"
            )
    if stage.errors and not stage.expects_errors:
        first = stage.errors[0]
        raise AssertionError(f"agent/error: {first.where}: {first.error!r}")


def check_messages(messages: Sequence[ak.Message]) -> None:
    """Check that a request's messages are ones that providers accept.

    Every call has its result in the one block directly behind its message, in call
    order; no other results; no answer without content; no message twice.

    Raises:
      AssertionError: if they are not.

    """
    open_calls: tuple[ak.ToolCall, ...] = ()
    seen: set[str] = set()
    for number, message in enumerate(messages):
        results: list[str] = []
        if isinstance(message, ak.ToolResults):
            results = [result.call_id for result in message.results]
        _require(
            results == [call.call_id for call in open_calls],
            f"message {number}: results {results} behind calls {open_calls}",
        )
        open_calls = ()
        if isinstance(message, ak.AssistantMessage):
            _require(bool(message.content), f"message {number} is empty")
            open_calls = message.calls
        elif isinstance(message, ak.UserMessage):
            _require(message.id not in seen, f"message {message.id} is there twice")
            seen.add(message.id)
    _require(not open_calls, f"calls without results at the end: {open_calls}")


async def _read(session: ak.Session) -> tuple[ak.SessionEvent, ...]:
    """Read a whole session from its store, once all of it is durable."""
    await session.flush()
    events: list[ak.SessionEvent] = []
    while page := await session.read(after=len(events), limit=_PAGE):
        events += page
    return tuple(events)


def _difference(
    left_name: str,
    left: Sequence[ak.SessionEvent],
    right_name: str,
    right: Sequence[ak.SessionEvent],
) -> str:
    for number, (one, other) in enumerate(zip(left, right, strict=False), start=1):
        if one != other:
            return f"event {number}: {left_name} has {one}, {right_name} {other}"
    return f"{left_name} has {len(left)} events, {right_name} {len(right)}"


def _require(kept: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not kept:
        raise AssertionError(what)
