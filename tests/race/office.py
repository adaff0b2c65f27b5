"""What tests of jobs share: an agent with jobs, a job behind a gate, its notices."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

import agentkernel as ak
from agentkernel.bridges.jobs import Job, JobResult, Jobs
from agentkernel.testing import Gate, ScriptedModel
from tests.race.parts import facts

__all__ = ["notices", "office", "pending", "start"]


@asynccontextmanager
async def office(
    model: ScriptedModel, *, store: ak.SessionStore | None = None, max_jobs: int = 30
) -> AsyncGenerator[tuple[ak.Agent, Jobs]]:
    """An agent `s`, created or resumed, and the jobs of its kernel."""
    async with ak.open_kernel(store or ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        jobs = Jobs(kernel, max_jobs=max_jobs)
        async with kernel.open("s", model="m") as agent:
            with trio.fail_after(3600):
                yield agent, jobs


def start(jobs: Jobs, agent: ak.Agent, gate: Gate, title: str = "work") -> Job:
    async def body(_job: Job) -> JobResult:
        await gate.wait()
        return JobResult(f"{title} is done")

    return jobs.start(agent, body, kind="test", title=title)


def notices(agent: ak.Agent) -> list[str]:
    """The ids of the notices that have entered the history."""
    return [
        fact.message.id
        for fact in facts(agent)
        if isinstance(fact, ak.MessageEntered) and fact.message.kind == "notice"
    ]


def pending(agent: ak.Agent) -> list[str]:
    return [m.id for m in (*agent.inbox.next_step, *agent.inbox.next_turn)]
