"""What jobs are made of: a command in the background, a child that nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Unpack

import outcome
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import ChildOptions, Report, Subagents
from agentkernel.tools import ProcessGroup, ProcessLimits, open_process_group
from agentkernel.tools.attended import attended

from .job import Job, JobBody, JobResult

__all__ = ["child_job", "command_job"]

_CHUNK = 65536
_LIMITS = ProcessLimits()


def command_job(
    argv: Sequence[str] | str,
    *,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    limits: ProcessLimits = _LIMITS,
) -> JobBody:
    """Make the body of a job that runs a command in a process group of its own.

    The job ends when the command's leader has exited and whatever it left behind is
    ended. Killing the job, or ending its agent, ends the whole family (SIGTERM, grace,
    SIGKILL) and reaps it. Not a checkpoint.

    Args:
      argv: program and arguments; a string is run by `/bin/sh -c`.
      cwd: where to run.
      env: the whole environment; None for one without what looks secret.
      limits: `grace` and `drain` count.

    Raises:
      ValueError: if there is no command.

    """
    if not argv:
        raise ValueError("there is no command to run")

    async def body(job: Job) -> JobResult:
        async with open_process_group(
            argv, cwd=cwd, env=env, stdin="null", stderr="stdout", limits=limits
        ) as group:
            reader = _Reader(group, job)

            async def end(waited: outcome.Outcome[int]) -> None:
                if isinstance(waited, outcome.Value):
                    await reader.wait_drained(limits.drain)
                await group.end()
                await reader.wait_drained(limits.drain)

            waited = await attended(group.wait, attendant=reader.run, end=end)
        waited.unwrap()
        return _command_result(group, job)

    return body


def _command_result(group: ProcessGroup, job: Job) -> JobResult:
    lines = [f"exit code {group.exit_code}"]
    for left in group.survivors:
        verb = "ended" if left.ended else "could not be ended and still runs"
        lines.append(f"background process {left.pid} {verb}: {left.command}")
    if job.output:
        lines.append(job.output)
    return JobResult(
        "\n".join(lines),
        "completed" if group.exit_code == 0 else "failed",
        meta={
            "exit_code": group.exit_code,
            "pid": group.pid,
            "survivors": [
                {"pid": one.pid, "command": one.command, "ended": one.ended}
                for one in group.survivors
            ],
        },
    )


class _Reader:
    """Carries a command's output into its job.

    Also while its family is being ended: it may still have something to say, and must
    not stall on a full pipe.
    """

    def __init__(self, group: ProcessGroup, job: Job) -> None:
        self._group = group
        self._job = job
        self._drained = trio.Event()

    async def run(self) -> None:
        """Read until the output has ended.

        Always a checkpoint.

        Cancellation:
          Passes through; what was read is in the job.

        """
        while data := await self._group.stdout.receive_some(_CHUNK):
            self._job.write(data)
        self._drained.set()

    async def wait_drained(self, seconds: float) -> None:
        """Wait until the output has ended, but not longer than `seconds`.

        Always a checkpoint.

        Cancellation:
          Passes through; nothing has changed.

        """
        with trio.move_on_after(seconds):
            await self._drained.wait()


def child_job(
    subagents: Subagents, prompt: str, **options: Unpack[ChildOptions]
) -> JobBody:
    """Make the body of a job that has a child of its owner do a task.

    A stop of a turn of the owner does not reach it. Killing the job cancels the
    child's turn as `PARENT` and waits for its end. What the child says becomes the
    job's output as it comes. Not a checkpoint.
    """

    async def body(job: Job) -> JobResult:
        def follow(child: ak.Agent) -> None:
            job.write(f"[{child.id}]\n")
            child.on(ak.Appended, listen)

        def listen(payload: ak.Appended) -> None:
            fact = payload.event.data
            if isinstance(fact, ak.ChunkStreamed):
                chunk = fact.chunk
                if isinstance(chunk, ak.TextChunk):
                    job.write(chunk.text)
            elif isinstance(fact, ak.AssistantReplied):
                job.write("\n")

        ways: ChildOptions = {**options, "detached": True, "on_open": follow}
        report = await subagents.run(job.owner, prompt, **ways)
        parts = [report.text] if report.text else []
        if report.failure is not None:
            parts.insert(0, report.failure.message)
        return JobResult(
            "\n".join(parts),
            _ending(report),
            meta={"child": report.child, "ending": report.ending},
        )

    return body


def _ending(report: Report) -> Literal["completed", "failed", "ended"]:
    if report.ok:
        return "completed"
    return "ended" if report.ending == "disposed" else "failed"
