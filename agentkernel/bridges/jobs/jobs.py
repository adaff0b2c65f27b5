"""Jobs of agents: started, listed, read, waited for, killed, and reported once.

A job belongs to an agent: a stop of a turn does not touch it, and it ends with its
agent. Its owner is told of its end by exactly one notice, whatever ended it: the notice
wakes an idle owner and joins the next step of a busy one.

Invariants. The end of a job is one act: its fact, its notice and the place that it
takes change together, without a checkpoint in between. What a crash cut off is made
good when the owner is resumed, as soon as the store can be read: jobs that were running
are closed as `interrupted`, and a notice that is missing is put into the inbox, where it
waits for the next wake. Reading takes a while: `Jobs.recovered` tells when that is done.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import final

import msgspec
import trio

import agentkernel as ak

from .endings import raised, returned, stays_raised
from .facts import (
    JobRecord,
    ended_fact,
    notice_of,
    shortened,
    started_fact,
)
from .job import Job, JobBody, JobEnding, JobResult
from .ledger import Ledger
from .recovery import recover

__all__ = ["JobLimitError", "Jobs", "UnknownJobError"]


class JobLimitError(ak.AgentKernelError):
    """If an agent has as many running jobs as it may; nothing was started."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"{limit} jobs are running, more are not allowed: wait for one, or kill one"
        )


class UnknownJobError(ak.AgentKernelError, LookupError):
    """If an agent has no job of that id: in this process, or for a tool in its log."""

    def __init__(self, job_id: str, known: tuple[str, ...]) -> None:
        self.job_id = job_id
        self.known = known
        hint = f"known: {', '.join(known)}" if known else "there are none"
        super().__init__(f"no job {job_id!r}; {hint}")


@final
class _Held:
    """What is kept of one agent while it lives."""

    def __init__(self, session: ak.Session) -> None:
        self.jobs: dict[str, Job] = {}
        self.ledger: Ledger = Ledger(session)
        # Of a resumed one: set when what was cut off is closed, or its agent is gone.
        self.recovered: trio.Event | None = None


@final
class Jobs:
    """The jobs of all agents of one kernel.

    Make it once, before agents are opened: it closes what a restart has cut off when
    their sessions are resumed. Its verbs belong to the kernel's Trio thread, and raise
    `WrongThreadError` in another.

    Attributes:
      max_jobs: how many jobs of one agent may run at once.
      max_bytes: how much of a job's output is kept in memory.
      max_ended: how many ended jobs of one agent stay listed.

    """

    def __init__(
        self,
        kernel: ak.Kernel,
        *,
        max_jobs: int = 8,
        max_bytes: int = 64 * 1024,
        max_ended: int = 50,
    ) -> None:
        """Set the limits, and watch for sessions that are resumed.

        Raises:
          ValueError: if a limit is less than 1.

        """
        if min(max_jobs, max_bytes, max_ended) < 1:
            raise ValueError("the limits of jobs must be at least 1")
        self.max_jobs = max_jobs
        self.max_bytes = max_bytes
        self.max_ended = max_ended
        # Of agents that live; dropped when they are gone.
        self._held: dict[ak.Agent, _Held] = {}
        self._thread = get_ident()
        kernel.on(ak.SessionStarted, self._opened)
        kernel.on(ak.AgentDisposed, self._gone)

    def start(self, owner: ak.Agent, body: JobBody, *, kind: str, title: str) -> Job:
        """Start a job of an agent. Not a checkpoint.

        `body(job)` is run in a task of the agent; what it raises makes the job
        `failed`, and is told by its leaves. It is told of its end by cancellation and
        lets it pass.

        Args:
          owner: the agent that it works for.
          body: the work.
          kind: a word for what it is.
          title: what it is about, for people and models.

        Raises:
          JobLimitError: if the agent has as many running jobs as it may.
          AgentDisposedError: if the agent's end has begun.

        """
        self._check_thread("start")
        jobs = self._of(owner).jobs
        running = sum(job.status == "running" for job in jobs.values())
        if running >= self.max_jobs:
            raise JobLimitError(self.max_jobs)
        # Unique in the session: a crash may lose a number, and no epoch.
        session = owner.session
        job_id = f"job-{session.epoch}-{session.last_seq + 1}"
        kind, title = ak.clean_text(kind), ak.clean_text(title)
        job = Job(job_id, owner, kind, title, max_bytes=self.max_bytes)
        run = partial(self._run, job, body)
        job.begin(owner.start_soon(run, name=f"{job_id} {kind}"))
        jobs[job_id] = job
        session.append(started_fact(job))
        self._forget_ended(jobs)
        return job

    def of(self, owner: ak.Agent) -> tuple[Job, ...]:
        """List an agent's jobs, the oldest first; ended ones as far as they are kept.

        Those of this process, as long as the agent lives; see `records` for others.
        Not a checkpoint.
        """
        self._check_thread("of")
        return tuple(self._of(owner).jobs.values())

    def get(self, owner: ak.Agent, job_id: str) -> Job:
        """Find a job of an agent. Not a checkpoint.

        Raises:
          UnknownJobError: if it has none of that id.

        """
        self._check_thread("get")
        jobs = self._of(owner).jobs
        if job_id not in jobs:
            raise UnknownJobError(job_id, tuple(jobs))
        return jobs[job_id]

    async def records(self, owner: ak.Agent) -> tuple[JobRecord, ...]:
        """Read from the store what is known of an agent's jobs, the oldest first.

        Those of earlier lives of its session are among them. Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          StorageError: if the log cannot be made durable, or not be read.

        """
        self._check_thread("records")
        return tuple((await self._of(owner).ledger.read()).values())

    async def recovered(self, owner: ak.Agent) -> None:
        """Wait until all that a restart has cut off is closed, and its news is pending.

        Only from then on does a `wake` after a resume find all of it. While the store
        cannot be read that is tried again, and this waits. There is nothing to wait
        for if the agent was not resumed. Always a checkpoint.

        Cancellation:
          The wait ends; nothing else changes.

        Raises:
          AgentDisposedError: if the agent has ended.
          WrongThreadError: if this is not the kernel's thread.

        """
        self._check_thread("recovered")
        recovered = self._of(owner).recovered
        if recovered is not None:
            await recovered.wait()
        else:
            await trio.lowlevel.checkpoint()
        if owner.session.closed:
            raise ak.AgentDisposedError(owner.id)

    def _check_thread(self, verb: str) -> None:
        if get_ident() != self._thread:
            raise ak.WrongThreadError(verb, "jobs")

    def _of(self, owner: ak.Agent) -> _Held:
        """Look up what is kept of an agent; of one that is gone nothing is."""
        held = self._held.get(owner)
        if held is None:
            held = _Held(owner.session)
            if not owner.session.closed:
                self._held[owner] = held
        return held

    def _gone(self, payload: ak.AgentDisposed) -> None:
        held = self._held.pop(payload.agent, None)
        if held is not None and held.recovered is not None:
            held.recovered.set()

    async def _run(self, job: Job, body: JobBody) -> None:  # noqa: ASYNC910  # its first step is a checkpoint
        """Run a job's work and record how it ended.

        Always a checkpoint.

        Cancellation:
          Passes through, once the work has ended and that is recorded.

        """
        try:
            # What was told to end before its first step does not begin.
            await trio.lowlevel.checkpoint()
            result = returned(await body(job))
        except BaseException as error:  # noqa: ASYNC103  # the boundary of a job: what it raises is how it ended
            ending, failure = raised(error, killed=job.was_killed)
            self._end(job, ending, failure)
            if stays_raised(error):
                raise
        else:
            self._end(job, result.ending, result)

    def _end(self, job: Job, ending: JobEnding, result: JobResult) -> None:
        """Record an end: its fact, its notice and its place, in one act."""
        result = msgspec.structs.replace(result, text=shortened(result.text))
        owner = job.owner
        record = JobRecord(job.id, owner.id, job.kind, job.title, ending, result.text)
        # Before the log, since an observer of the fact must find what it says: between
        # here and the fact nobody else's code runs, and who waits wakes up later.
        job.end(ending, result)
        # A session that could not be written to its end has closed before.
        with suppress(ak.AgentDisposedError):
            owner.session.append(ended_fact(owner.id, job.id, ending, result))
            owner.notice(notice_of(record))

    def _forget_ended(self, jobs: dict[str, Job]) -> None:
        ended = [job.id for job in jobs.values() if job.status != "running"]
        for job_id in ended[: max(0, len(ended) - self.max_ended)]:
            del jobs[job_id]

    def _opened(self, payload: ak.SessionStarted) -> None:
        """Have a resumed session looked through, by a task of its agent."""
        agent = payload.agent
        if payload.source == "resume":
            done = self._of(agent).recovered = trio.Event()
            lost = partial(recover, agent, agent.session.last_seq, done)
            agent.start_soon(lost, name="lost jobs")
