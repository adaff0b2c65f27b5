"""The tools by which a model has jobs: start, list, read, wait, kill.

The docstrings of the methods below are what a model is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, final

import trio
from msgspec import Meta

import agentkernel as ak
from agentkernel.bridges.subagents import ChildOptions, Subagents
from agentkernel.tools import FunctionTool

from .bodies import child_job, command_job
from .facts import JobRecord, shortened
from .job import Job
from .jobs import Jobs, UnknownJobError

__all__ = ["job_tools"]

_TITLE = 80
Seconds = Annotated[float, Meta(ge=0, le=600)]


def job_tools(
    jobs: Jobs,
    *,
    subagents: Subagents | None = None,
    commands: bool = True,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[ak.Tool, ...]:
    """Make the tools by which a model has jobs. Not a checkpoint.

    Each agent sees and reaches its own jobs only. Starting one is marked as needing
    approval if it may be a command.

    Args:
      jobs: the kernel's jobs.
      subagents: which children a job may be; None for none.
      commands: whether a job may be a shell command.
      cwd: where commands run.
      env: their whole environment; None for one without what looks secret.

    Raises:
      ValueError: if neither commands nor children are allowed.

    """
    if subagents is None and not commands:
        raise ValueError("a job has to be a command or a child: both are off")
    desk = _Desk(jobs, subagents, cwd=cwd, env=env)
    started: list[ak.Tool] = []
    if commands:
        started.append(
            FunctionTool(desk.start_command, name="job_start", needs_approval=True)
        )
    if subagents is not None:
        started.append(FunctionTool(desk.start_agent, name="job_start_agent"))
    return (
        *started,
        FunctionTool(desk.list_jobs, name="job_list", parallel_safe=True),
        FunctionTool(desk.read, name="job_read", parallel_safe=True),
        FunctionTool(desk.wait, name="job_wait", parallel_safe=True),
        FunctionTool(desk.kill, name="job_kill"),
    )


@final
class _Desk:
    """The bodies of the tools; they work for the agent whose call it is."""

    def __init__(
        self,
        jobs: Jobs,
        subagents: Subagents | None,
        *,
        cwd: str | Path | None,
        env: Mapping[str, str] | None,
    ) -> None:
        self._jobs = jobs
        self._subagents = subagents
        self._cwd = cwd
        self._env = env

    async def start_command(self, call: ak.ToolInvocation, command: str) -> str:
        """Run a shell command in the background.

        It goes on when your turn ends. You are told when it has ended.

        Args:
          call: the call itself.
          command: what the shell runs.

        """
        await trio.lowlevel.checkpoint()
        job = self._jobs.start(
            call.agent,
            command_job(command, cwd=self._cwd, env=self._env),
            kind="command",
            title=command[:_TITLE],
        )
        return f"Started {job.id}."

    async def start_agent(
        self, call: ak.ToolInvocation, prompt: str, agent: str | None = None
    ) -> str:
        """Have another agent do a task in the background.

        It goes on when your turn ends. You are told what it says when it has ended.

        Args:
          call: the call itself.
          prompt: the whole task; it knows nothing of this conversation.
          agent: which agent, if there are several.

        """
        await trio.lowlevel.checkpoint()
        assert self._subagents is not None
        options: ChildOptions = {"call_id": call.call_id}
        if agent is not None:
            options["persona"] = agent
        job = self._jobs.start(
            call.agent,
            child_job(self._subagents, prompt, **options),
            kind="agent",
            title=prompt[:_TITLE],
        )
        return f"Started {job.id}."

    async def list_jobs(self, call: ak.ToolInvocation) -> str:
        """List your jobs, the oldest first."""
        await trio.lowlevel.checkpoint()
        try:
            found, note = await self._jobs_of(call.agent), ""
        except ak.StorageError as error:
            found = dict[str, Job | JobRecord](self._here(call.agent))
            note = f"Earlier jobs cannot be read now: {error.message}"
        lines = [_line(job) for job in found.values()]
        return "\n".join([*lines, *filter(None, [note])]) or "There are no jobs."

    async def read(self, call: ak.ToolInvocation, job: str) -> str:
        """Read what a job has said so far.

        Args:
          call: the call itself.
          job: its id.

        """
        return _shown(await self._find(call.agent, job))

    async def wait(
        self, call: ak.ToolInvocation, job: str, seconds: Seconds = 60.0
    ) -> str:
        """Wait until a job has ended, or for some time, and read what it has said.

        Args:
          call: the call itself.
          job: its id.
          seconds: how long to wait at most.

        """
        found = await self._find(call.agent, job)
        if isinstance(found, Job):
            with trio.move_on_after(seconds):
                await found.wait()
        return _shown(found)

    async def kill(self, call: ak.ToolInvocation, job: str) -> str:
        """End a job now.

        Args:
          call: the call itself.
          job: its id.

        """
        found = await self._find(call.agent, job)
        if isinstance(found, Job):
            found.kill()
            await found.wait()
        return _line(found)

    def _here(self, agent: ak.Agent) -> dict[str, Job]:
        """List the jobs of this process by their ids."""
        return {job.id: job for job in self._jobs.of(agent)}

    async def _jobs_of(self, agent: ak.Agent) -> dict[str, Job | JobRecord]:
        """List jobs by their ids: the newest that only the log knows, then those here.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          StorageError: if the log cannot be read.

        """
        records = await self._jobs.records(agent)
        here = self._here(agent)
        gone = [one for one in records if one.id not in here]
        found: dict[str, Job | JobRecord] = {
            one.id: one for one in gone[-self._jobs.max_ended :]
        }
        return {**found, **here}

    async def _find(self, agent: ak.Agent, job_id: str) -> Job | JobRecord:
        """Find a job of this process, or what the log knows of another.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        Raises:
          UnknownJobError: if there is none of that id.
          StorageError: if it is none of this process, and the log cannot be read.

        """
        await trio.lowlevel.checkpoint()
        here = self._here(agent)
        if job_id in here:
            return here[job_id]
        for record in await self._jobs.records(agent):
            if record.id == job_id:
                return record
        raise UnknownJobError(job_id, tuple(await self._jobs_of(agent)))


def _line(job: Job | JobRecord) -> str:
    # What only the log knows, and knows no end of, a restart has cut off.
    status = job.status if isinstance(job, Job) else job.ending or "interrupted"
    return f"{job.id} [{job.kind}] {status}: {job.title}"


def _shown(job: Job | JobRecord) -> str:
    if isinstance(job, Job):
        text = job.output or ("" if job.result is None else job.result.text)
    else:
        text = job.text
    return f"{_line(job)}\n{shortened(text, 16_000)}"
