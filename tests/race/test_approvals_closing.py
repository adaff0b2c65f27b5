"""A question and its end are in the log first: refusals, exits and nested answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals, Question, StaleApprovalError
from agentkernel.testing import ScriptedModel, call, check_log
from agentkernel.tools.approval import Policy
from tests.race.rig import BodyTool, codes, endings, facts, returns_done

ASK = Policy((), default="ask")
Answer = Callable[[Approvals, str], object]


async def question_of(
    agent: ak.Agent, model: ScriptedModel, approvals: Approvals
) -> Question:
    """What is asked about the one call that the model makes."""
    agent.tools.add(BodyTool("a", returns_done))
    model.add([call("a")])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    (question,) = approvals.open()
    return question


class Shouted(str):
    """A text of a kind of its own."""

    __slots__ = ()


REFUSED: dict[str, tuple[Answer, type[Exception]]] = {
    "an unknown decision": (
        lambda all_, key: all_.answer(key, cast("Literal['deny']", "denied")),
        ValueError,
    ),
    "an unknown scope": (
        lambda all_, key: all_.answer(
            key, "allow", scope=cast("Literal['session']", "always")
        ),
        ValueError,
    ),
    "a reason that is no text": (
        lambda all_, key: all_.answer(key, "deny", reason=cast("str", 5)),
        TypeError,
    ),
    "a reason that no log takes": (
        lambda all_, key: all_.answer(key, "deny", reason=Shouted("no")),
        TypeError,
    ),
}


@pytest.mark.clause("L3")
@pytest.mark.parametrize("how", REFUSED)
async def test_a_refused_answer_leaves_the_question_as_it_was(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, how: str
) -> None:
    """Nothing runs, and the next answer, a proper one, is as good as the first."""
    approvals = Approvals(agent.kernel, ASK)
    question = await question_of(agent, model, approvals)
    answer, error = REFUSED[how]
    with pytest.raises(error):
        answer(approvals, question.id)
    assert approvals.open() == (question,)
    assert len(agent.session.open_approvals) == 1
    assert not facts(agent, ak.ApprovalDecided)
    approvals.answer(question.id, "deny")
    await agent.when_idle()
    assert codes(agent) == ["DENIED"]
    check_log(agent.session.events)


@pytest.mark.clause("C13c", "L3")
@pytest.mark.parametrize("verb", ["answer", "dismiss"])
async def test_an_answer_from_another_thread_is_refused_and_changes_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, verb: str
) -> None:
    """Before the list is looked at. A stop afterwards finds the question and closes it."""
    approvals = Approvals(agent.kernel, ASK)
    question = await question_of(agent, model, approvals)

    def speak(approval_id: str) -> None:
        if verb == "answer":
            approvals.answer(approval_id, "allow")
        else:
            approvals.dismiss(approval_id)

    for approval_id in (question.id, "unknown"):
        with pytest.raises(ak.WrongThreadError):
            await trio.to_thread.run_sync(speak, approval_id)
    assert approvals.open() == (question,)
    agent.cancel()
    await agent.when_idle()
    assert [fact.decision for fact in facts(agent, ak.ApprovalDecided)] == ["cancelled"]
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
    check_log(agent.session.events)


async def test_a_question_that_cannot_be_recorded_is_none(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A listener gives a reason that is no text: its call fails, nothing is listed."""
    approvals = Approvals(agent.kernel, Policy(default="allow"))

    async def ask(_payload: ak.PreExecute, _following: object) -> ak.Ask:
        return ak.Ask(cast("str", 5))

    agent.on(ak.PreExecute, ask)
    agent.tools.add(BodyTool("a", returns_done))
    model.add([call("a")])
    agent.followup("go")
    await agent.when_idle()
    assert approvals.open() == ()
    assert not facts(agent, ak.ApprovalAsked)
    assert len(codes(agent)) == 1
    assert codes(agent) != [None]


@pytest.mark.parametrize("second", ["allow", "deny", "dismiss", "cancel"])
async def test_what_an_observer_of_an_answer_says_comes_too_late(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, second: str
) -> None:
    """It is called within the answer: the list is without the question by then."""
    approvals = Approvals(agent.kernel, ASK)
    question = await question_of(agent, model, approvals)
    late: list[str | None] = []

    def again(payload: ak.Appended) -> None:
        if not isinstance(payload.event.data, ak.ApprovalDecided):
            return
        assert approvals.open() == ()
        try:
            if second == "cancel":
                agent.cancel()
            elif second == "dismiss":
                approvals.dismiss(question.id)
            else:
                approvals.answer(question.id, "deny" if second == "deny" else "allow")
        except StaleApprovalError as error:
            late.append(error.decision)

    agent.on(ak.Appended, again)
    approvals.answer(question.id, "allow")
    await agent.when_idle()
    assert [fact.decision for fact in facts(agent, ak.ApprovalDecided)] == ["allowed"]
    stopped = second == "cancel"
    assert late == ([] if stopped else ["allowed"])
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH" if stopped else None]
    check_log(agent.session.events)


@pytest.mark.clause("T7b", "L3")
async def test_a_stop_by_an_observer_of_the_question_closes_it_within_the_stop(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Nobody waits for an answer yet, and a yes behind the stop is late all the same."""
    approvals = Approvals(agent.kernel, ASK)
    late: list[str | None] = []

    def stop(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            agent.cancel()
            assert approvals.open() == ()
            assert not agent.session.open_approvals
            with pytest.raises(StaleApprovalError) as error:
                approvals.answer(fact.approval_id, "allow")
            late.append(error.value.decision)

    agent.on(ak.Appended, stop)
    agent.tools.add(BodyTool("a", returns_done))
    model.add([call("a")])
    agent.followup("go")
    await agent.when_idle()
    assert late == ["cancelled"]
    assert [fact.decision for fact in facts(agent, ak.ApprovalDecided)] == ["cancelled"]
    assert codes(agent) == ["ABORTED_BEFORE_DISPATCH"]
    check_log(agent.session.events)


@pytest.mark.clause("C10c")
@pytest.mark.parametrize("kind", [ak.ApprovalAsked, ak.ApprovalDecided])
@pytest.mark.parametrize("leaving", [KeyboardInterrupt, SystemExit])
async def test_no_question_is_open_when_an_exit_has_left_the_kernel(
    model: ScriptedModel,
    autojump_clock: MockClock,
    leaving: type[BaseException],
    kind: type[ak.Fact],
) -> None:
    """An observer of the question, or of its end, asks for the exit."""
    seen: list[tuple[ak.Agent, Approvals]] = []

    def leave(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, kind):
            raise leaving

    async def work() -> None:
        async with ak.open_kernel(ak.MemoryStore()) as kernel:
            kernel.models.register("scripted", model)
            approvals = Approvals(kernel, ASK)
            agent = (await kernel.create("s", model="scripted")).agent
            seen.append((agent, approvals))
            agent.on(ak.Appended, leave)
            agent.tools.add(BodyTool("a", returns_done))
            model.add([call("a")])
            agent.followup("go")
            await trio.testing.wait_all_tasks_blocked()
            approvals.answer(approvals.open()[0].id, "deny")

    with pytest.raises(leaving):
        await work()
    ((agent, approvals),) = seen
    assert approvals.open() == ()
    assert agent.session.open_approvals == ()
    assert len(facts(agent, ak.ApprovalDecided)) == 1
    expected = "error" if kind is ak.ApprovalAsked else "disposed"
    assert endings(agent) == [(1, expected)]
    check_log(agent.session.events)


@pytest.mark.case("STORE-12")
async def test_an_answer_from_before_a_crash_is_for_no_question_of_the_next_life(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The question was shown, and lost with what the disk had not; another stands there.

    1. Life one asks; nothing behind the header survives.
    2. Life two asks about another call, at the same place in the log.
    3. The client of life one says yes: that runs nothing.
    """
    shown = await question_of(agent, model, Approvals(agent.kernel, ASK))
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim("s", token=agent.id, create=True)
        await store.write([ak.Append(claim, agent.session.events[:1])])
        await store.release(claim)
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("scripted", model)
        approvals = Approvals(kernel, ASK)
        resumed = (await kernel.resume("s")).agent
        question = await question_of(resumed, model, approvals)
        seqs = [
            next(e.seq for e in events if isinstance(e.data, ak.ApprovalAsked))
            for events in (agent.session.events, resumed.session.events)
        ]
        assert seqs[0] == seqs[1]
        with pytest.raises(StaleApprovalError):
            approvals.answer(shown.id, "allow")
        assert approvals.open() == (question,)
        assert codes(resumed) == []


@pytest.mark.case("STORE-12")
@pytest.mark.parametrize("since", ["disposed", "resumed", "much has happened"])
async def test_a_late_client_is_told_how_the_question_was_closed_long_ago(
    kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock, since: str
) -> None:
    """Also when neither the agent nor its newest events know about it any more."""
    approvals = Approvals(kernel, ASK)
    handle = await kernel.create("s", model="scripted")
    question = await question_of(handle.agent, model, approvals)
    approvals.answer(question.id, "deny")
    await handle.agent.when_idle()
    if since == "much has happened":
        for _ in range(3000):
            handle.agent.session.append(ak.Extension("test/noise", None))
        await handle.agent.session.flush()
        assert not facts(handle.agent, ak.ApprovalDecided)
    else:
        await handle.dispose()
    if since == "resumed":
        await kernel.resume("s")
    with pytest.raises(StaleApprovalError) as late:
        approvals.answer(question.id, "allow")
    assert late.value.decision == "denied"


@pytest.mark.case("STORE-12")
async def test_the_fork_of_a_question_says_nothing_about_it(
    kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The fork has it as interrupted; where it was asked, the call ran."""
    approvals = Approvals(kernel, ASK)
    handle = await kernel.create("s:1", model="scripted")
    question = await question_of(handle.agent, model, approvals)
    fork = (await kernel.fork(handle.agent, "a")).agent
    assert [fact.decision for fact in facts(fork, ak.ApprovalDecided)] == [
        "interrupted"
    ]
    approvals.answer(question.id, "allow")
    await handle.agent.when_idle()
    newcomer = Approvals(kernel, ASK)
    for one in (approvals, newcomer):
        with pytest.raises(StaleApprovalError) as late:
            one.answer(question.id, "allow")
        assert late.value.decision == "allowed"
    await handle.dispose()
    for one, decision in ((approvals, "allowed"), (newcomer, None)):
        with pytest.raises(StaleApprovalError) as late:
            one.answer(question.id, "allow")
        assert late.value.decision == decision


async def test_the_memory_of_closed_questions_is_bounded(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A server that asks for years does not grow with it; the oldest go first."""
    approvals = Approvals(agent.kernel, ASK)
    first = await question_of(agent, model, approvals)
    model.add(["done"])
    approvals.answer(first.id, "deny")
    await agent.when_idle()
    model.add([call("a") for _ in range(1024)], ["done"])
    agent.followup("more")
    await trio.testing.wait_all_tasks_blocked()
    told: list[str | None] = []
    last = first
    for _ in range(1024):
        (last,) = approvals.open()
        approvals.answer(last.id, "deny")
        await trio.testing.wait_all_tasks_blocked()
        for question in (first, last):
            with pytest.raises(StaleApprovalError) as late:
                approvals.answer(question.id, "deny")
            told.append(late.value.decision)
    assert told == ["denied"] * 2046 + [None, "denied"]
