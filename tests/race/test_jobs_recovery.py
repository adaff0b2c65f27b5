"""Jobs that a crash cut off, as the next life of their session finds them."""

from __future__ import annotations

import math

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.jobs import Jobs, UnknownJobError, job_tools
from agentkernel.testing import FaultyStore, Gate, ScriptedModel, call, check_log
from tests.race.office import notices, office, pending, start
from tests.race.parts import facts, plant, stored, texts


async def crashed(titles: tuple[str, ...] = ("build",)) -> list[ak.SessionEvent]:
    """What is left of a session whose agent had jobs of these titles running."""
    async with office(ScriptedModel()) as (agent, jobs):
        for title in titles:
            start(jobs, agent, Gate(), title)
        await wait_all_tasks_blocked()
        return list(agent.session.events)


@pytest.mark.clause("I6", "I3a", "I1a")
@pytest.mark.case("SUB-04")
async def test_a_wake_is_enough_for_the_news_of_what_a_crash_cut_off() -> None:
    """The news is parked and starts nothing; nobody has to say anything to hear it."""
    store = await plant(await crashed(("build", "serve")))
    model = ScriptedModel(["noted"])
    async with office(model, store=store) as (agent, _):
        await wait_all_tasks_blocked()
        news = pending(agent)
        assert len(news) == 2
        assert agent.status == "idle"
        assert not [f for f in facts(agent) if isinstance(f, ak.TurnStarted)]
        assert agent.wake()
        await agent.when_idle()
        assert notices(agent) == news
        check_log(await stored(store))
    said = "\n".join(texts(model.requests[0].messages))
    assert "(build) was interrupted by a restart" in said
    assert "(serve) was interrupted by a restart" in said


@pytest.mark.clause("D5c")
async def test_the_id_of_a_job_that_no_log_remembers_names_no_other() -> None:
    """A crash can lose the start of a job that a client has seen, and its number."""
    async with office(ScriptedModel()) as (agent, jobs):
        seen = start(jobs, agent, Gate()).id
        left = list(agent.session.events)[:1]
    gate = Gate()
    async with office(ScriptedModel(), store=await plant(left)) as (agent, jobs):
        job = start(jobs, agent, gate)
        await gate.reached()
        assert job.id != seen
        with pytest.raises(UnknownJobError):
            jobs.get(agent, seen)
        assert job.status == "running"


def odd(name: str, body: ak.JsonValue) -> ak.Extension:
    return ak.Extension(f"job/{name}", body)


@pytest.mark.parametrize(
    "record",
    [
        odd("started", "text"),
        odd("started", {"owner": "s"}),
        odd("started", {"owner": "s", "job": 7, "kind": None, "title": []}),
        odd("ended", {"owner": "s"}),
        odd("ended", {"owner": "s", "job": ["a"], "ending": "completed"}),
        odd("ended", {"owner": "s", "job": "j", "ending": "succeeded"}),
        odd("ended", {"owner": "s", "job": "j", "ending": [], "text": 5}),
        odd("ended", {"owner": "s", "job": "j"}),
    ],
)
async def test_an_odd_record_of_a_job_keeps_no_other_job_from_its_end(
    record: ak.Extension,
) -> None:
    """Whoever wrote it: its neighbours are closed and told of, now and later."""
    events = await crashed(("build", "serve"))
    first = events[1]
    body = {"owner": "s", "job": "j", "kind": "k", "title": "t"}
    facts = [
        events[0].data,
        odd("started", body),
        record,
        *(e.data for e in events[1:]),
    ]
    store = await plant(
        [
            ak.SessionEvent(seq, first.time, fact, first.ignorable)
            for seq, fact in enumerate(facts, 1)
        ]
    )
    for _ in range(2):
        async with office(ScriptedModel(), store=store) as (agent, jobs):
            errors: list[ak.ErrorReported] = []
            agent.on(ak.ErrorReported, errors.append)
            await wait_all_tasks_blocked()
            assert not errors
            known = {r.title: r.ending for r in await jobs.records(agent)}
            assert known["build"] == known["serve"] == "interrupted"
            assert known["t"] in {"failed", "interrupted"}
            assert len(pending(agent)) >= 3


def failing_reads(kernel: ak.Kernel, store: FaultyStore, times: float) -> None:
    """Let the store fail its reads once a session has been resumed."""
    kernel.on(ak.AgentCreated, lambda _: store.fail("read", times=times))


@pytest.mark.clause("D3a", "D3b", "I6")
async def test_recovery_waits_for_a_store_that_cannot_be_read(
    autojump_clock: MockClock,
) -> None:
    """Told once, tried again: the news is there as soon as it can be, in this life."""
    store = FaultyStore(await plant(await crashed()))
    model = ScriptedModel(["noted"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", model)
        jobs = Jobs(kernel)
        failing_reads(kernel, store, 5)
        errors: list[tuple[str, BaseException]] = []
        kernel.on(ak.ErrorReported, lambda p: errors.append((p.where, p.error)))
        async with kernel.open("s", model="m") as agent:
            await wait_all_tasks_blocked()
            assert not pending(agent)
            await trio.sleep(60)
            [record] = await jobs.records(agent)
            assert record.ending == "interrupted"
            assert pending(agent) == [f"{record.id}-ended"]
            assert agent.wake()
            await agent.when_idle()
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline > 3600
    assert [(where, type(error)) for where, error in errors] == [
        ("task lost jobs", ak.StorageError)
    ]


@pytest.mark.clause("I6")
@pytest.mark.case("SUB-04")
@pytest.mark.parametrize("failures", [0, 3])
async def test_the_end_of_a_recovery_can_be_waited_for(
    autojump_clock: MockClock, failures: int
) -> None:
    """A wake right after a resume comes too soon, one behind the wait does not."""
    store = FaultyStore(await plant(await crashed(("build", "serve"))))
    model = ScriptedModel(["noted"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", model)
        jobs = Jobs(kernel)
        if failures:
            failing_reads(kernel, store, failures)
        async with kernel.open("s", model="m") as agent:
            assert not agent.wake()
            await jobs.recovered(agent)
            assert len(pending(agent)) == 2
            assert agent.wake()
            await agent.when_idle()
            assert len(notices(agent)) == 2
            await jobs.recovered(agent)
        check_log(await stored(store))


async def test_a_wait_for_a_recovery_ends_with_the_agent(
    autojump_clock: MockClock,
) -> None:
    """There is no end of it to wait for, in this life; of a new agent there is none."""
    store = FaultyStore(await plant(await crashed()))
    ended: list[str] = []

    async with ak.open_kernel(store) as kernel, trio.open_nursery() as nursery:
        kernel.models.register("m", ScriptedModel())
        jobs = Jobs(kernel)
        new = (await kernel.create("new", model="m")).agent
        await jobs.recovered(new)
        failing_reads(kernel, store, math.inf)

        async def wait(agent: ak.Agent) -> None:
            with pytest.raises(ak.AgentDisposedError):
                await jobs.recovered(agent)
            ended.append(agent.id)

        async with kernel.open("s", model="m") as agent:
            nursery.start_soon(wait, agent)
            await trio.sleep(60)
            assert not ended
        await wait(agent)
        await wait_all_tasks_blocked()
        assert ended == ["s", "s"]


@pytest.mark.clause("S3a")
async def test_an_agent_may_leave_while_its_jobs_are_not_recovered(
    autojump_clock: MockClock,
) -> None:
    """The next life makes it good, and it is told once."""
    inner = await plant(await crashed())
    store = FaultyStore(inner)
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("m", ScriptedModel())
        Jobs(kernel)
        failing_reads(kernel, store, math.inf)
        async with kernel.open("s", model="m") as agent:
            await trio.sleep(60)
            assert not pending(agent)
    for _ in range(2):
        async with office(ScriptedModel(), store=inner) as (agent, jobs):
            await wait_all_tasks_blocked()
            assert [r.ending for r in await jobs.records(agent)] == ["interrupted"]
            assert len(pending(agent)) == 1


async def ask(
    agent: ak.Agent, model: ScriptedModel, *calls: ak.ToolCallChunk
) -> list[str]:
    """Have the model call tools, and list what it is given back."""
    model.add(list(calls), ["end"])
    agent.followup("go")
    await agent.when_idle()
    block = model.requests[-1].messages[-1]
    assert isinstance(block, ak.ToolResults)
    return [
        result.error.message
        if result.error is not None
        else "".join(b.text for b in result.content if isinstance(b, ak.TextBlock))
        for result in block.results
    ]


@pytest.mark.case("SUB-04")
async def test_a_model_can_ask_for_the_jobs_that_its_history_names() -> None:
    """Those of an earlier life are listed, read, and found to have ended."""
    done = Gate()
    done.open()
    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        ended, lost = start(jobs, agent, done, "build"), start(jobs, agent, Gate())
        await agent.when_idle()
        await wait_all_tasks_blocked()
        events = list(agent.session.events)
    model = ScriptedModel(default=["ok"])
    async with office(model, store=await plant(events)) as (agent, jobs):
        for tool in job_tools(jobs):
            agent.tools.add(tool)
        await wait_all_tasks_blocked()
        new = start(jobs, agent, Gate(), "serve")
        [listed] = await ask(agent, model, call("job_list"))
        assert listed.splitlines() == [
            f"{ended.id} [test] completed: build",
            f"{lost.id} [test] interrupted: work",
            f"{new.id} [test] running: serve",
        ]
        said = await ask(
            agent,
            model,
            call("job_read", job=ended.id),
            call("job_wait", job=lost.id),
            call("job_kill", job=lost.id),
            call("job_read", job="job-0"),
        )
        assert said[0] == f"{ended.id} [test] completed: build\nbuild is done"
        assert said[1].splitlines() == [f"{lost.id} [test] interrupted: work"]
        assert said[2] == f"{lost.id} [test] interrupted: work"
        assert "no job 'job-0'" in said[3]
        for job in (ended, lost, new):
            assert job.id in said[3]


@pytest.mark.clause("D3a")
async def test_jobs_of_now_are_listed_while_the_store_cannot_be_read() -> None:
    """And the model is told that there may be others."""
    store = FaultyStore(await plant(await crashed()))
    model = ScriptedModel(default=["ok"])
    async with office(model, store=store) as (agent, jobs):
        for tool in job_tools(jobs):
            agent.tools.add(tool)
        await wait_all_tasks_blocked()
        new = start(jobs, agent, Gate(), "serve")
        await agent.session.flush()
        store.fail("read", times=math.inf)
        [listed] = await ask(agent, model, call("job_list"))
        assert listed.splitlines()[0] == f"{new.id} [test] running: serve"
        assert "cannot be read" in listed
        [shown] = await ask(agent, model, call("job_read", job=new.id))
        assert shown.startswith(f"{new.id} [test] running")
        [other] = await ask(agent, model, call("job_read", job="job-0"))
        assert "scripted" in other
