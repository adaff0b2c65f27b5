"""One job: work that outlives the turn that started it, but not its agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import get_ident
from typing import Final, Literal, TypeAlias, final

import msgspec
import trio

import agentkernel as ak
from agentkernel.tools import BoundedOutput

__all__ = ["Job", "JobBody", "JobEnding", "JobResult", "JobStatus"]

JobEnding: TypeAlias = Literal["completed", "failed", "killed", "ended", "interrupted"]
JobStatus: TypeAlias = JobEnding | Literal["running"]

WORDS: Final[dict[JobEnding, str]] = {
    "completed": "has completed",
    "failed": "has failed",
    "killed": "was killed",
    "ended": "was ended together with its agent",
    "interrupted": "was interrupted by a restart",
}


class JobResult(msgspec.Struct, frozen=True):
    """What a job gave back.

    Attributes:
      text: for the model, together with the news that the job has ended.
      ending: how it ended: `failed` if it did not do what it was started for, `ended`
        if its agent's end took it along.
      meta: JSON for observers and logs.

    """

    text: str = ""
    ending: Literal["completed", "failed", "ended"] = "completed"
    meta: ak.JsonObject = msgspec.field(default_factory=dict[str, ak.JsonValue])


JobBody: TypeAlias = Callable[["Job"], Awaitable[JobResult]]


@final
class Job:
    """A job that was started in this process; made by `Jobs.start`.

    Its verbs belong to the kernel's Trio thread: in another they raise
    `WrongThreadError`, and nothing has happened. It lives until its work has ended;
    afterwards it can still be read.

    Attributes:
      id: unique in the session of its owner, also among jobs that a crash forgot.
      owner: the agent that it works for.
      kind: `command`, `agent`, or a word of whoever started it.
      title: what it is about, for people and models.
      result: what it gave back, None as long as it runs.
      status: `running`, or how it ended.

    """

    def __init__(
        self, job_id: str, owner: ak.Agent, kind: str, title: str, *, max_bytes: int
    ) -> None:
        self.id = job_id
        self.owner = owner
        self.kind = kind
        self.title = title
        self.result: JobResult | None = None
        self.status: JobStatus = "running"
        self._output = BoundedOutput(max_bytes)
        self._ended = trio.Event()
        # Replaced each time there is more; made when somebody waits for it.
        self._more: trio.Event | None = None
        self._killed = False
        self._cancel: Callable[[], None] | None = None
        self._thread = get_ident()

    def __repr__(self) -> str:
        return f"<Job {self.id!r} {self.status}>"

    def write(self, data: bytes | bytearray | str) -> None:
        """Take output of the work: its beginning and its end are kept.

        Not a checkpoint.
        """
        self._check_thread("write")
        if isinstance(data, str):
            data = ak.clean_text(data).encode()
        self._output.write(data)
        self._release()

    async def wait_for_output(self) -> bool:
        """Wait until the work says more than it has, or has ended.

        Always a checkpoint.

        Cancellation:
          The wait ends; nothing else changes.

        Returns:
          Whether it still runs.

        """
        self._check_thread("wait_for_output")
        if self.status == "running":
            if self._more is None:
                self._more = trio.Event()
            await self._more.wait()
        else:
            await trio.lowlevel.checkpoint()
        return self.status == "running"

    def _release(self) -> None:
        if self._more is not None:
            self._more.set()
            self._more = None

    @property
    def output(self) -> str:
        """What the work has said so far, bounded."""
        return self._output.captured().text

    @property
    def was_killed(self) -> bool:
        """Whether somebody asked for its end."""
        return self._killed

    def kill(self) -> bool:
        """Ask for the end of the work; `wait` tells when it is there.

        Not a checkpoint.

        Returns:
          Whether it was running, and nobody had asked before.

        """
        self._check_thread("kill")
        if self.status != "running" or self._killed:
            return False
        self._killed = True
        if self._cancel is not None:
            self._cancel()
        return True

    async def wait(self) -> JobStatus:
        """Wait until the work has ended.

        Always a checkpoint.

        Cancellation:
          The wait ends; the job goes on.

        """
        self._check_thread("wait")
        await self._ended.wait()
        return self.status

    def _check_thread(self, verb: str) -> None:
        if get_ident() != self._thread:
            raise ak.WrongThreadError(verb, "job")

    def begin(self, cancel: Callable[[], None]) -> None:
        """Take what tells the work to end; `Jobs` does this. Not a checkpoint."""
        self._cancel = cancel

    def end(self, ending: JobEnding, result: JobResult) -> None:
        """Record the end of the work; `Jobs` does this. Not a checkpoint."""
        self.status = ending
        self.result = result
        self._ended.set()
        self._release()
