"""Jobs: owned by an agent, reported once, ended with it, made good after a crash."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.jobs import (
    Job,
    JobLimitError,
    JobResult,
    Jobs,
    UnknownJobError,
    child_job,
    job_tools,
)
from agentkernel.bridges.subagents import Persona, Subagents
from agentkernel.testing import (
    Gate,
    ScriptedModel,
    call,
    check_log,
    run_under_schedules,
)
from tests.race.office import notices, office, pending, start
from tests.race.parts import facts, stored, texts


@pytest.mark.clause("I6")
@pytest.mark.case("SUB-04", "LIFE-04")
async def test_a_job_that_ends_wakes_its_idle_owner_once() -> None:
    """The model is told what the job gave back, without anybody sending anything."""
    model = ScriptedModel(["fine"])
    async with office(model) as (agent, jobs):
        gate = Gate()
        job = start(jobs, agent, gate)
        await gate.reached()
        statuses: list[str] = []
        agent.on(ak.StatusChanged, lambda p: statuses.append(p.status))
        gate.open()
        assert await job.wait() == "completed"
        await agent.when_idle()
        assert statuses == ["running", "idle"]
        assert notices(agent) == [f"{job.id}-ended"]
        check_log(agent.session.events)
        sent = agent.followup("accepted at once")
        assert not sent.duplicate
    assert "work is done" in texts(model.requests[0].messages)[0]


@pytest.mark.clause("I6")
async def test_a_job_that_ends_joins_the_next_step_of_a_busy_owner() -> None:
    """It causes a step of the turn that is running, not a turn of its own."""
    streaming, gate = Gate(), Gate()
    model = ScriptedModel(["one", streaming], ["two"])
    async with office(model) as (agent, jobs):
        job = start(jobs, agent, gate)
        agent.followup("go")
        await streaming.reached()
        gate.open()
        await job.wait()
        streaming.open()
        await agent.when_idle()
        assert [f.turn for f in facts(agent) if isinstance(f, ak.TurnEnded)] == [1]
    assert len(model.requests) == 2
    assert "work is done" in texts(model.requests[1].messages)[-1]


@pytest.mark.clause("I6")
@pytest.mark.case("SUB-03")
async def test_a_stop_of_the_turn_leaves_jobs_and_their_notices() -> None:
    """A broad cancel drops neither: both children go on, both endings are told."""
    streaming, gates = Gate(), [Gate(), Gate()]
    model = ScriptedModel([streaming], default=["later"])
    child = ScriptedModel([gates[0], "first"], [gates[1], "second"])
    async with office(model) as (agent, jobs):
        agent.kernel.models.register("child", child)
        subagents = Subagents([Persona("w", model="child")])
        started: list[Job] = []
        for number, gate in enumerate(gates):
            body = child_job(subagents, f"task {number}")
            started.append(jobs.start(agent, body, kind="agent", title="t"))
            await gate.reached()
        first, second = started
        agent.followup("go")
        await streaming.reached()
        gates[0].open()
        await first.wait()
        receipt = agent.cancel()
        assert receipt.turn == 1
        assert receipt.kept == (f"{first.id}-ended",)
        await agent.when_idle()
        assert [job.status for job in jobs.of(agent)] == ["completed", "running"]
        gates[1].open()
        await second.wait()
        await agent.when_idle()
        assert notices(agent) == [f"{first.id}-ended", f"{second.id}-ended"]
        assert second.output.endswith("second\n")
        ended = [
            f for f in facts(agent) if isinstance(f, ak.SubagentDescribed) and f.ending
        ]
        assert [f.ending and f.ending.kind for f in ended] == ["completed"] * 2
        for fact in ended:
            async with await agent.kernel.resume(fact.child) as resumed:
                assert resumed.session.header.lineage.parent == "s"


async def test_more_jobs_than_allowed_are_refused() -> None:
    """Nothing is queued silently; a place that gets free can be taken at once."""
    gate, other = Gate(), Gate()
    async with office(ScriptedModel(default=["ok"]), max_jobs=2) as (agent, jobs):
        one = start(jobs, agent, gate)
        start(jobs, agent, other)
        with pytest.raises(JobLimitError, match="2 jobs"):
            start(jobs, agent, other)
        assert len(jobs.of(agent)) == 2
        gate.open()
        await one.wait()
        start(jobs, agent, other)
        other.open()
        await agent.when_idle()


async def test_a_job_that_is_killed_is_told_as_such_and_once() -> None:
    """Killing again, or after the end, changes nothing."""
    model = ScriptedModel(default=["ok"])
    async with office(model) as (agent, jobs):
        gate = Gate()
        job, unborn = start(jobs, agent, gate), start(jobs, agent, gate, "unborn")
        assert unborn.kill()
        await gate.reached()
        assert job.kill()
        assert not job.kill()
        assert await job.wait() == "killed"
        assert await unborn.wait() == "killed"
        assert not job.kill()
        await agent.when_idle()
        assert Counter(notices(agent)) == {
            f"{job.id}-ended": 1,
            f"{unborn.id}-ended": 1,
        }
        assert gate.arrivals == 1
    assert "was killed" in texts(model.requests[0].messages)[0]


async def test_a_job_whose_work_raises_has_failed_and_harms_nobody() -> None:
    """The error is its result, and no `agent/error` of its owner."""

    async def body(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        raise RuntimeError("out of paper")

    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        errors: list[ak.ErrorReported] = []
        agent.on(ak.ErrorReported, errors.append)
        job = jobs.start(agent, body, kind="test", title="print")
        assert await job.wait() == "failed"
        assert job.result is not None
        assert job.result.text == "RuntimeError: out of paper"
        await agent.when_idle()
        assert not errors


async def test_jobs_end_with_their_agent_and_the_notice_waits_for_a_resume() -> None:
    """Children of jobs go first; afterwards the model still learns of it, once."""
    store = ak.MemoryStore()
    gate = Gate()
    gone: list[str] = []
    async with office(ScriptedModel(), store=store) as (agent, jobs):
        child = ScriptedModel([gate])
        agent.kernel.models.register("child", child)
        agent.kernel.on(ak.AgentDisposed, lambda p: gone.append(p.agent.id))
        body = child_job(Subagents([Persona("w", model="child")]), "go")
        job = jobs.start(agent, body, kind="agent", title="t")
        await gate.reached()
        [below] = [a for a in agent.kernel.agents if a is not agent]
    assert job.status == "ended"
    assert gone == [below.id, "s"]
    with pytest.raises(ak.AgentDisposedError):
        start(jobs, agent, gate)
    model = ScriptedModel(default=["ok"])
    async with office(model, store=store) as (agent, jobs):
        await trio.testing.wait_all_tasks_blocked()
        assert pending(agent) == [f"{job.id}-ended"]
        agent.followup("hello again")
        await agent.when_idle()
        assert notices(agent) == [f"{job.id}-ended"]
        assert [r.ending for r in await jobs.records(agent)] == ["ended"]


@pytest.mark.clause("I3a")
async def test_jobs_that_a_crash_cut_off_are_reported_as_interrupted_once() -> None:
    """At whatever event the log was cut; and a second restart adds nothing."""
    whole = ak.MemoryStore()
    gate = Gate()
    child = ScriptedModel([gate])
    async with office(ScriptedModel(default=["ok"]), store=whole) as (agent, jobs):
        agent.kernel.models.register("child", child)
        done, body = Gate(), child_job(Subagents([Persona("w", model="child")]), "go")
        done.open()
        start(jobs, agent, done)
        jobs.start(agent, body, kind="agent", title="t")
        await gate.reached()
        await agent.when_idle()
        live = list(agent.session.events)
    started = 0
    events: list[ak.SessionEvent] = []
    for cut in range(1, len(live) + 1):
        store = ak.MemoryStore()
        async with store:
            claim = await store.claim("s", token="gone", create=True)  # noqa: S106  # the name of a claim
            await store.write([ak.Append(claim, live[:cut])])
            await store.release(claim)
        begun = sum(
            isinstance(e.data, ak.Extension) and e.data.name == "job/started"
            for e in live[:cut]
        )
        started = max(started, begun)
        for attempt in range(2):
            async with office(ScriptedModel(default=["ok"]), store=store) as (a, jobs):
                await trio.testing.wait_all_tasks_blocked()
                started_turns = {type(fact) for fact in facts(a)} & {ak.TurnStarted}
                assert not started_turns, "a resume starts nothing"
                records = await jobs.records(a)
                assert [bool(record.ending) for record in records] == [True] * begun
                for record in records:
                    assert a.session.record(f"{record.id}-ended"), f"cut at {cut}"
                if attempt:
                    a.followup("hello")
                    await a.when_idle()
                    assert not pending(a)
            events = await stored(store)
            check_log(events)
            children = [
                e.data for e in events if isinstance(e.data, ak.SubagentDescribed)
            ]
            assert [f.ending is None for f in children] in ([], [True, False])
        told = Counter(
            e.data.message.id
            for e in events
            if isinstance(e.data, ak.MessageEntered) and e.data.message.kind == "notice"
        )
        assert list(told.values()) == [1] * begun
    assert started == 2


@pytest.mark.case("SUB-10")
async def test_a_fork_does_not_own_the_jobs_in_its_history() -> None:
    """They run for the original, and only the original is told of their end."""
    store, gate = ak.MemoryStore(), Gate()
    async with office(ScriptedModel(default=["ok"]), store=store) as (agent, jobs):
        job = start(jobs, agent, gate)
        async with await agent.kernel.fork(agent, "fork") as fork:
            assert not jobs.of(fork)
            assert not await jobs.records(fork)
            with pytest.raises(UnknownJobError):
                jobs.get(fork, job.id)
            before = fork.session.last_seq
        async with await agent.kernel.resume("fork") as fork:
            await trio.testing.wait_all_tasks_blocked()
            assert fork.session.last_seq == before
            assert not pending(fork)
        gate.open()
        await job.wait()
        await agent.when_idle()
        assert notices(agent) == [f"{job.id}-ended"]


@pytest.mark.clause("I6")
@pytest.mark.case("SUB-04", "LIFE-04")
async def test_twenty_five_children_that_end_at_once_are_each_told_once() -> None:
    """Twenty end in one tick of a streaming turn, five in the tick it goes idle."""
    streaming, first, second = Gate(), Gate(), Gate()
    model = ScriptedModel(["begin ", streaming, "end"], default=["noted"])
    early_script: list[str | Gate] = [first, "early"]
    late_script: list[str | Gate] = [second, "late"]
    child = ScriptedModel(*[early_script] * 20, *[late_script] * 5)
    async with office(model) as (agent, jobs):
        agent.kernel.models.register("child", child)
        subagents = Subagents([Persona("w", model="child")])
        started: list[Job] = []
        for number in range(25):
            body = child_job(subagents, f"task {number}")
            started.append(jobs.start(agent, body, kind="agent", title=f"{number}"))
            await trio.testing.wait_all_tasks_blocked()
        agent.followup("go")
        await streaming.reached()

        def idle(payload: ak.StatusChanged) -> None:
            if payload.status == "idle":
                second.open()

        agent.on(ak.StatusChanged, idle)
        first.open()
        await trio.testing.wait_all_tasks_blocked()
        assert sum(job.status == "completed" for job in started) == 20
        streaming.open()
        for job in started:
            await job.wait()
        await agent.when_idle()
        assert Counter(notices(agent)) == {f"{job.id}-ended": 1 for job in started}
        assert not pending(agent)
        check_log(agent.session.events)
    seen = "\n".join(texts(model.requests[-1].messages))
    for job in started:
        assert seen.count(f"Job {job.id} (") == 1
    early = "\n".join(texts(model.requests[1].messages))
    assert early.count("early") == 20


def test_a_job_that_ends_as_its_owner_goes_idle_is_never_lost() -> None:
    """In every order of the tasks: told once, and either way it was a race."""

    async def story() -> None:
        gate = Gate()
        model = ScriptedModel(["one", gate, "two"], default=["more"])
        async with office(model) as (agent, jobs):
            job = start(jobs, agent, gate)
            agent.followup("go")
            await gate.reached()
            gate.open()
            await job.wait()
            await agent.when_idle()
            assert notices(agent) == [f"{job.id}-ended"]
            turns.add(len([f for f in facts(agent) if isinstance(f, ak.TurnEnded)]))
            check_log(agent.session.events)

    turns: set[int] = set()
    run_under_schedules(story, seeds=range(40))
    assert turns


async def test_a_model_starts_lists_reads_waits_for_and_kills_its_jobs(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """And reaches none of another agent's."""
    child = ScriptedModel(["one ", 5.0, "two"], [1000.0])
    model = ScriptedModel(
        [call("job_start_agent", prompt="first")],
        [call("job_start_agent", prompt="second")],
        [call("job_list")],
        [call("job_read", job="job-999")],
        ["end"],
        default=["end"],
    )
    async with office(model) as (agent, jobs):
        agent.kernel.models.register("child", child)
        subagents = Subagents([Persona("w", model="child")])
        for tool in job_tools(jobs, subagents=subagents, commands=False):
            agent.tools.add(tool)
        agent.followup("go")
        await agent.when_idle()
        first, second = jobs.of(agent)
        listed = texts(model.requests[3].messages)[-1].splitlines()
        assert listed == [
            f"{first.id} [agent] running: first",
            f"{second.id} [agent] running: second",
        ]
        refused = model.requests[4].messages[-1]
        assert isinstance(refused, ak.ToolResults)
        assert refused.results[0].error is not None
        assert "no job 'job-999'" in refused.results[0].error.message
        model.add(
            [call("job_wait", job=first.id, seconds=1)],
            [call("job_kill", job=second.id)],
            [call("job_wait", job=first.id)],
        )
        agent.followup("wait for them")
        await agent.when_idle()
        assert (first.status, second.status) == ("completed", "killed")
    shown = texts(model.requests[-1].messages)
    assert any("running" in line and "one " in line for line in shown)
    assert any("completed" in line and "one two" in line for line in shown)


async def test_what_a_job_says_is_bounded() -> None:
    """In memory, in the log and in the notice; the beginning and the end are kept."""

    async def body(job: Job) -> JobResult:
        for number in range(10_000):
            job.write(f"line {number}\n")
        await trio.lowlevel.checkpoint()
        return JobResult(job.output * 10)

    model = ScriptedModel(default=["ok"])
    store = ak.MemoryStore()
    async with office(model, store=store) as (agent, jobs):
        job = jobs.start(agent, body, kind="test", title="talk")
        await job.wait()
        assert "line 0\n" in job.output
        assert "line 9999\n" in job.output
        assert len(job.output) < 70_000
        await agent.when_idle()
    assert len(texts(model.requests[0].messages)[0]) < 5000
    assert max(len(ak.encode_event(e)[0]) for e in await stored(store)) < 10_000


def test_limits_of_jobs_make_sense() -> None:
    """No limit is a limit of nothing."""

    async def story() -> None:
        async with ak.open_kernel(ak.MemoryStore()) as kernel:
            with pytest.raises(ValueError, match="at least 1"):
                Jobs(kernel, max_jobs=0)
            with pytest.raises(ValueError, match="both are off"):
                job_tools(Jobs(kernel), commands=False)

    trio.run(story)


async def test_an_agent_that_had_jobs_is_let_go_when_it_is_gone() -> None:
    """Neither its jobs nor what is known of them keep it in memory."""

    async def body(_job: Job) -> JobResult:
        await trio.lowlevel.checkpoint()
        return JobResult()

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        jobs = Jobs(kernel)
        gone: list[weakref.ref[ak.Agent]] = []
        for number in range(3):
            async with kernel.open(f"s{number}", model="m") as agent:
                await jobs.start(agent, body, kind="test", title="t").wait()
                await agent.when_idle()
                assert len(await jobs.records(agent)) == 1
                assert len(jobs.of(agent)) == 1
                gone.append(weakref.ref(agent))
            assert not jobs.of(agent)
            with pytest.raises(ak.AgentDisposedError):
                jobs.start(agent, body, kind="test", title="t")
            assert len(await jobs.records(agent)) == 1
            del agent
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            gc.collect()
        assert [ref() for ref in gone] == [None] * 3
