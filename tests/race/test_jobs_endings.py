"""What the work of a job may return or raise: the job always ends, and says how."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.jobs import Job, JobResult, Jobs
from agentkernel.testing import ScriptedModel, check_log, run_under_schedules
from tests.race.office import notices, office
from tests.race.parts import once, stored, texts


class Speechless(Exception):
    """An exception that cannot say what it is about."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Odd(BaseException):
    """Somebody's own way to leave everything."""


def run(
    jobs: Jobs, agent: ak.Agent, work: Callable[[Job], Awaitable[JobResult]]
) -> Job:
    return jobs.start(agent, work, kind="test", title="work")


@pytest.mark.case("CONC-04")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ExceptionGroup("a", [ExceptionGroup("b", [ValueError("disk 7")])]), "disk 7"),
        (BaseExceptionGroup("a", [Odd("in a group")]), "Odd: in a group"),
        (Odd("why"), "Odd: why"),
        (Speechless(), "Speechless"),
        (RuntimeError("half \ud800"), "half"),
    ],
)
async def test_whatever_the_work_raises_is_told_by_its_leaves_and_is_a_failure(
    error: BaseException, words: str
) -> None:
    """Its agent lives and has no error; the model reads what went wrong."""
    model = ScriptedModel(default=["ok"])

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        raise error

    async with office(model) as (agent, jobs):
        errors: list[ak.ErrorReported] = []
        agent.on(ak.ErrorReported, errors.append)
        job = run(jobs, agent, work)
        assert await job.wait() == "failed"
        assert job.result is not None
        assert words in job.result.text
        assert "sub-exception" not in job.result.text
        await agent.when_idle()
        assert notices(agent) == [f"{job.id}-ended"]
        check_log(agent.session.events)
        assert not errors
    assert words in texts(model.requests[0].messages)[0]


@pytest.mark.clause("C10e")
async def test_a_fault_beside_the_end_of_a_job_is_told_and_changes_no_ending() -> None:
    """What the clean-up of a killed job raises is an error of its agent as well."""

    async def work(_job: Job) -> JobResult:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("could not tidy up")

    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        errors: list[str] = []
        agent.on(ak.ErrorReported, lambda p: errors.append(str(p.error)))
        job = run(jobs, agent, work)
        await wait_all_tasks_blocked()
        job.kill()
        assert await job.wait() == "killed"
        assert job.result is not None
        assert job.result.text == "ValueError: could not tidy up"
        await agent.when_idle()
        assert errors == ["could not tidy up"]


@pytest.mark.clause("C10c")
async def test_an_exit_that_the_work_asks_for_ends_the_job_and_leaves_the_kernel() -> (
    None
):
    """The job has failed, and the log says so before the block is left."""
    store = ak.MemoryStore()

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        raise SystemExit(3)

    async def life() -> None:
        async with office(ScriptedModel(default=["ok"]), store=store) as (agent, jobs):
            run(jobs, agent, work)
            await trio.sleep_forever()

    with pytest.raises(SystemExit):
        await life()
    async with office(ScriptedModel(), store=store) as (agent, jobs):
        assert [r.ending for r in await jobs.records(agent)] == ["failed"]


@pytest.mark.clause("C11c", "C11d")
@pytest.mark.parametrize("way", ["kill", "dispose"])
async def test_a_job_that_ignores_its_end_is_named_and_does_not_spin(
    mock_clock: MockClock, way: str
) -> None:
    """And what it gives back in the end, late as it is, counts."""
    rounds, done = 0, trio.Event()
    stuck: list[list[tuple[str, str]]] = []

    async def work(_job: Job) -> JobResult:
        nonlocal rounds
        while not done.is_set() and rounds < 100_000:
            try:
                await done.wait()
            except trio.Cancelled:
                rounds += 1
        return JobResult("late")

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        jobs = Jobs(kernel)
        handle = await kernel.create("s", model="m")
        agent = handle.agent
        agent.on(
            ak.AgentStuck,
            lambda p: stuck.append([(b.kind, b.name) for b in p.blockers]),
        )
        job = run(jobs, agent, work)
        await wait_all_tasks_blocked()
        assert agent.blockers() == ()
        async with trio.open_nursery() as nursery:
            if way == "kill":
                assert job.kill()
            else:
                nursery.start_soon(handle.dispose)
            try:
                while rounds < 20:
                    await trio.lowlevel.checkpoint()
                mock_clock.jump(0.5)
                await wait_all_tasks_blocked()
                still = rounds
                mock_clock.jump(4.5)
                await wait_all_tasks_blocked()
                assert stuck == [[("job", f"{job.id} test")]]
                assert rounds == still
            finally:
                done.set()
            assert await job.wait() == "completed"


@pytest.mark.clause("I6")
@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (JobResult("x", meta=cast("ak.JsonObject", {"p": Path("/a")})), "PosixPath"),
        (JobResult("x", meta={"n": math.nan}), "nan"),
        (JobResult("x", meta=cast("ak.JsonObject", [1])), "not [1]"),
        (JobResult(cast("str", 5)), "not 5"),
        (JobResult("x", cast("Literal['failed']", "succeeded")), "succeeded"),
        (JobResult("x", cast("Literal['failed']", [])), "[]"),
        (None, "NoneType"),
    ],
)
async def test_what_no_log_can_hold_is_a_failure_of_the_job_and_ends_it(
    returned: object, words: str
) -> None:
    """The waiter is released, the owner is told, the place is free again."""
    model = ScriptedModel(default=["ok"])
    store = ak.MemoryStore()

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        return cast("JobResult", returned)

    async with office(model, store=store, max_jobs=1) as (agent, jobs):
        job = run(jobs, agent, work)
        assert await job.wait() == "failed"
        assert job.result is not None
        assert words in job.result.text
        await agent.when_idle()
        assert notices(agent) == [f"{job.id}-ended"]
        assert await run(jobs, agent, work).wait() == "failed"
        assert [r.ending for r in await jobs.records(agent)] == ["failed", "failed"]
    check_log(await stored(store))


async def test_a_job_ends_even_if_an_observer_of_its_end_leaves_the_kernel() -> None:
    """Who waits for it, in another kernel say, is released all the same."""

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        return JobResult("done")

    def leave(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.Extension) and fact.name == "job/ended":
            raise SystemExit(3)

    started: list[Job] = []

    async def life() -> None:
        async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
            agent.on(ak.Appended, leave)
            started.append(run(jobs, agent, work))
            await trio.sleep_forever()

    with pytest.raises(SystemExit):
        await life()
    assert await started[0].wait() == "completed"


async def test_an_observer_of_the_end_of_a_job_finds_it_ended() -> None:
    """In the fact and in the notice: it cannot be killed, and takes no place."""
    seen: list[tuple[str, bool]] = []

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        return JobResult("done")

    async with office(ScriptedModel(default=["ok"]), max_jobs=1) as (agent, jobs):
        first = run(jobs, agent, work)

        def look(payload: ak.Appended) -> None:
            fact = payload.event.data
            ended = isinstance(fact, ak.Extension) and fact.name == "job/ended"
            if ended or (isinstance(fact, ak.InboxSpliced) and fact.inserted):
                seen.append((first.status, first.kill()))
            if ended and len(jobs.of(agent)) == 1:
                run(jobs, agent, work)

        unregister = agent.on(ak.Appended, look)
        assert await first.wait() == "completed"
        unregister()
        assert seen == [("completed", False)] * 2
        assert first.result == JobResult("done")
        assert not first.was_killed
        second = jobs.of(agent)[-1]
        assert second is not first
        assert await second.wait() == "completed"
        assert [r.ending for r in await jobs.records(agent)] == ["completed"] * 2
        await agent.when_idle()
        check_log(agent.session.events)


@pytest.mark.parametrize("kind", ["test", Path("/a")])
async def test_a_job_that_no_log_can_hold_is_not_started(kind: object) -> None:
    """Neither listed nor running: whoever asked for it made a mistake."""
    ran: list[Job] = []

    async def work(job: Job) -> JobResult:
        ran.append(job)
        await trio.lowlevel.checkpoint()
        return JobResult()

    async with office(ScriptedModel()) as (agent, jobs):
        title = cast("str", Path("/b") if kind == "test" else "t")
        with pytest.raises((TypeError, AttributeError)):
            jobs.start(agent, work, kind=cast("str", kind), title=title)
        await wait_all_tasks_blocked()
        assert not jobs.of(agent)
        assert not ran


@pytest.mark.clause("C11d")
def test_a_job_that_has_ended_is_waited_for_by_nobody_else() -> None:
    """Who waits for a killed job finds an agent that does not, in any order of tasks."""

    async def late(_job: Job) -> JobResult:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            return JobResult("done all the same")
        raise AssertionError

    async def story() -> None:
        async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
            job = run(jobs, agent, late)
            await wait_all_tasks_blocked()
            job.kill()
            assert [b.name for b in agent.blockers()] == [f"{job.id} test"]
            assert await job.wait() == "completed"
            assert [b.kind for b in agent.blockers() if b.kind == "job"] == []

    run_under_schedules(story, seeds=range(20))


@pytest.mark.clause("C4c", "C4d")
async def test_the_work_of_a_job_is_its_owners_whoever_started_it() -> None:
    """Not that of the agent whose observer asked for it, nor of nobody."""
    seen: list[ak.Agent | None] = []

    async def work(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        seen.append(ak.current_agent())
        return JobResult()

    async with office(ScriptedModel(default=["ok"])) as (owner, jobs):
        await run(jobs, owner, work).wait()
        await run(jobs, owner, work).wait()
        async with owner.kernel.open("other", model="m") as other:
            once(other, "turn/start", lambda: run(jobs, owner, work))
            other.followup("go")
            await other.when_idle()
            await jobs.of(owner)[-1].wait()
        await owner.when_idle()
    assert seen == [owner] * 3


VERBS: dict[str, Callable[[Jobs, Job], object]] = {
    "kill": lambda _, job: job.kill(),
    "write": lambda _, job: job.write("x"),
    "wait": lambda _, job: trio.run(job.wait),
    "wait_for_output": lambda _, job: trio.run(job.wait_for_output),
    "start": lambda jobs, job: run(jobs, job.owner, forever),
    "of": lambda jobs, job: jobs.of(job.owner),
    "get": lambda jobs, job: jobs.get(job.owner, job.id),
    "records": lambda jobs, job: trio.run(jobs.records, job.owner),
    "recovered": lambda jobs, job: trio.run(jobs.recovered, job.owner),
}


async def forever(_job: Job) -> JobResult:
    await trio.sleep_forever()
    raise AssertionError


@pytest.mark.clause("C13c")
@pytest.mark.parametrize("verb", VERBS)
async def test_jobs_belong_to_the_thread_of_their_kernel(verb: str) -> None:
    """Another thread is told so; nothing has changed, and the job can be killed."""
    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        job = run(jobs, agent, forever)
        await wait_all_tasks_blocked()
        with pytest.raises(ak.WrongThreadError) as caught:
            await trio.to_thread.run_sync(VERBS[verb], jobs, job)
        owner = "job" if hasattr(job, verb) else "jobs"
        assert (caught.value.owner, caught.value.verb) == (owner, verb)
        assert (job.status, job.was_killed, job.output) == ("running", False, "")
        assert jobs.of(agent) == (job,)
        assert job.kill()
        assert await job.wait() == "killed"


async def test_a_job_may_say_whatever_text_can_be() -> None:
    """Half a character is replaced, as everywhere, and is no failure of the work."""

    async def work(job: Job) -> JobResult:
        job.write("caf\ud800\n")
        job.write("caf\ud83d\ude00\n")
        await trio.lowlevel.checkpoint()
        return JobResult(job.output)

    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        job = run(jobs, agent, work)
        assert await job.wait() == "completed"
        assert job.output == "caf\ufffd\ncaf\U0001f600\n"
        await agent.when_idle()
