"""Tasks of an agent: whose they are, how one alone is ended, what is told of the slow."""

from __future__ import annotations

import math
from contextvars import ContextVar
from typing import Self

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.parts import once
from tests.race.rig import BodyTool, endings

WORD: ContextVar[str] = ContextVar("word", default="of the kernel")


@pytest.mark.clause("C4c", "C4d")
async def test_a_task_of_an_agent_works_for_it_whoever_starts_it() -> None:
    """Be it the first or a later one: for its agent, in the context of the kernel."""
    seen: list[tuple[str | None, str]] = []

    async def work() -> None:  # noqa: ASYNC910  # it only looks
        current = ak.current_agent()
        seen.append((None if current is None else current.id, WORD.get()))

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        async with (
            kernel.open("owner", model="m") as owner,
            kernel.open("other", model="m") as other,
        ):
            WORD.set("of a sender")
            owner.start_soon(work)
            owner.start_soon(work)
            await wait_all_tasks_blocked()
            owner.start_soon(work)
            once(other, "turn/start", lambda: owner.start_soon(work))
            other.followup("go")
            await other.when_idle()
            await wait_all_tasks_blocked()
    assert seen == [("owner", "of the kernel")] * 4


class Stubborn:
    """Work that swallows every cancellation until it is let go, and counts them.

    It gives up after very many, which work at rest does not reach.
    """

    MANY = 100_000

    def __init__(self) -> None:
        self.rounds = 0
        self.done = trio.Event()

    async def __call__(self) -> None:
        while not self.done.is_set() and self.rounds < self.MANY:
            try:
                await self.done.wait()
            except trio.Cancelled:
                self.rounds += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let it go, also if the test has failed: nobody shall wait for it."""
        self.done.set()

    async def spun(self, rounds: int = 20) -> None:
        """Wait until it has ignored that many cancellations."""
        while self.rounds < rounds:
            await trio.lowlevel.checkpoint()


def names(blockers: tuple[ak.Blocker, ...]) -> list[tuple[str, str]]:
    return [(b.kind, b.name) for b in blockers]


@pytest.mark.clause("C11b", "C11c", "C11d")
@pytest.mark.case("LIFE-01")
@pytest.mark.parametrize("busy", [True, False])
async def test_tasks_that_ignore_the_end_of_their_agent_are_named_and_at_rest(
    kernel: ak.Kernel, model: ScriptedModel, mock_clock: MockClock, *, busy: bool
) -> None:
    """Each by its name, in one report; the one that ends as it should is in none.

    0.0 the agent is disposed of; 0.5 what still spins is shielded and blocks; 5.0
    `agent/stuck`; then the work is let go.
    """
    handle = await kernel.create("s2", model="scripted")
    agent = handle.agent
    stuck: list[tuple[ak.Blocker, ...]] = []
    agent.on(ak.AgentStuck, lambda p: stuck.append(p.blockers))
    spinner, other = Stubborn(), Stubborn()
    agent.start_soon(spinner, name="one")
    agent.start_soon(trio.sleep_forever, name="obedient")
    agent.start_soon(other, name="two")
    if busy:
        model.add([Gate()])
        agent.followup("go")
    await wait_all_tasks_blocked()
    assert ("job", "one") not in names(agent.blockers())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.dispose)
        with spinner, other:
            await spinner.spun()
            await other.spun()
            assert names(agent.blockers()) == [("job", "one"), ("job", "two")]
            mock_clock.jump(0.5)
            await wait_all_tasks_blocked()
            still = spinner.rounds, other.rounds
            mock_clock.jump(4.0)
            await wait_all_tasks_blocked()
            assert stuck == []
            mock_clock.jump(0.5)
            await wait_all_tasks_blocked()
            assert [names(each) for each in stuck] == [[("job", "one"), ("job", "two")]]
            assert stuck[0][0].age == 5.0
            mock_clock.jump(60)
            await wait_all_tasks_blocked()
            assert len(stuck) == 1
            assert (spinner.rounds, other.rounds) == still
    assert agent.blockers() == ()


@pytest.mark.clause("C11c", "C11d")
async def test_one_task_is_ended_alone_and_named_if_it_ignores_that(
    agent: ak.Agent, model: ScriptedModel, mock_clock: MockClock
) -> None:
    """Neither its siblings nor the tool of a running turn lose their cancellability."""
    stuck: list[list[tuple[str, str]]] = []
    agent.on(ak.AgentStuck, lambda p: stuck.append(names(p.blockers)))

    async def waits(_: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.sleep_forever()
        raise AssertionError

    work = Stubborn()
    agent.tools.add(BodyTool("t", waits))
    end_sibling = agent.start_soon(trio.sleep_forever, name="obedient")
    end = agent.start_soon(work, name="stubborn")
    model.add([call("t")])
    agent.followup("go")
    await wait_all_tasks_blocked()
    assert names(agent.blockers()) == [("tool", "t")]
    with work:
        end()
        end()
        await work.spun()
        assert names(agent.blockers()) == [("tool", "t"), ("job", "stubborn")]
        mock_clock.jump(0.5)
        await wait_all_tasks_blocked()
        still = work.rounds
        mock_clock.jump(4.5)
        await wait_all_tasks_blocked()
        assert stuck == [[("tool", "t"), ("job", "stubborn")]]
        assert work.rounds == still
        agent.cancel()
        end_sibling()
        await agent.when_idle()
        assert names(agent.blockers()) == [("job", "stubborn")]
    await wait_all_tasks_blocked()
    assert agent.blockers() == ()
    assert endings(agent) == [(1, "aborted")]
    end()
    assert agent.blockers() == ()


@pytest.mark.clause("C11b", "C11c")
async def test_a_task_that_is_busy_when_it_is_told_to_end_is_cancelled_afterwards(
    agent: ak.Agent, mock_clock: MockClock
) -> None:
    """A critical section may last; the wait behind it is one that the end reaches."""
    release, past, let_go = trio.Event(), trio.Event(), trio.Event()

    async def work() -> None:
        with trio.CancelScope(shield=True):
            await release.wait()
        past.set()
        await let_go.wait()

    end = agent.start_soon(work, name="busy")
    try:
        await wait_all_tasks_blocked()
        end()
        await wait_all_tasks_blocked()
        mock_clock.jump(60)
        await wait_all_tasks_blocked()
        release.set()
        await past.wait()
        await wait_all_tasks_blocked()
        assert agent.blockers() == ()
    finally:
        release.set()
        let_go.set()


@pytest.mark.clause("C11d")
async def test_a_task_that_ends_when_it_is_told_to_leaves_no_timer(
    agent: ak.Agent, mock_clock: MockClock
) -> None:
    """Before its first step, in the middle, and when its work is over already."""
    ran: list[str] = []

    async def work() -> None:
        ran.append("began")
        await trio.sleep_forever()

    async def short() -> None:
        await trio.lowlevel.checkpoint()

    end_unborn = agent.start_soon(work)
    end_unborn()
    await wait_all_tasks_blocked()
    end, end_short = agent.start_soon(work), agent.start_soon(short)
    await wait_all_tasks_blocked()
    end()
    end_short()
    await wait_all_tasks_blocked()
    assert agent.blockers() == ()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


@pytest.mark.clause("C13c")
async def test_the_end_of_a_task_belongs_to_the_kernels_thread(
    agent: ak.Agent,
) -> None:
    """Another thread is told so, and the task goes on."""
    gone = trio.Event()

    async def work() -> None:
        try:
            await trio.sleep_forever()
        finally:
            gone.set()

    end = agent.start_soon(work)
    await wait_all_tasks_blocked()
    with pytest.raises(ak.WrongThreadError):
        await trio.to_thread.run_sync(end)
    await wait_all_tasks_blocked()
    assert not gone.is_set()
    end()
    await gone.wait()


@pytest.mark.clause("S3c", "C10e")
@pytest.mark.parametrize("leaving", [ValueError("cleanup"), BaseException("cleanup")])
async def test_a_task_that_breaks_while_it_is_ended_harms_no_other(
    autojump_clock: MockClock, leaving: BaseException
) -> None:
    """Its nursery leaves a group: the cancellation goes on, the fault is reported."""
    gate = Gate()
    reported: list[BaseException] = []

    async def breaks() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise leaving

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaks)
            nursery.start_soon(trio.sleep_forever)

    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel([gate, "ok"]))
        kernel.on(ak.ErrorReported, lambda payload: reported.append(payload.error))
        one = await kernel.create("one", model="m")
        two = (await kernel.create("two", model="m")).agent
        one.agent.start_soon(work)
        two.followup("go")
        await gate.reached()
        await one.dispose()
        gate.open()
        await two.when_idle()
        assert endings(two) == [(1, "completed")]
    assert reported == [leaving]


@pytest.mark.clause("L3", "C11a")
async def test_an_answer_that_comes_with_the_end_of_the_turn_is_none(
    autojump_clock: MockClock,
) -> None:
    """It was given by an observer of `turn/end`, before the question heard of that."""
    asked, answered = trio.Event(), trio.Event()
    outcomes: list[object] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        async def asks() -> None:
            try:
                outcomes.append(await invocation.agent.approve(invocation, "push?"))
            except ValueError as error:
                outcomes.append(error)

        invocation.agent.start_soon(asks)
        await asked.wait()
        return ak.ToolOutput.of("started")

    async def decides(_payload: ak.Approve, _following: object) -> ak.Allow:
        asked.set()
        await answered.wait()
        return ak.Allow()

    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("m", ScriptedModel([call("t")], default=["ok"]))
        async with kernel.open("s", model="m") as agent:
            agent.tools.add(BodyTool("t", body))
            kernel.on(ak.Approve, decides)
            once(agent, "turn/end", answered.set)
            agent.followup("go")
            await agent.when_idle()
            await wait_all_tasks_blocked()
    [outcome] = outcomes
    assert isinstance(outcome, ValueError), outcome
    assert "that turn is not live" in str(outcome)
