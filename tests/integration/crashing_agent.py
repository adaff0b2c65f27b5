"""A program that kills itself at chosen steps between a claim and the first byte.

`python -m tests.integration.crashing_agent KIND FOLDER POINT...` forks one process
for each point. Each parks three messages durably, wakes its agent, and kills itself
without warning at its POINT-th task step after the wake. What listeners flush on the
way decides what the disk knows.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.stores import JsonlStore, SqliteStore


def make_store(kind: str, folder: Path) -> ak.SessionStore:
    if kind == "jsonl":
        return JsonlStore(folder)
    return SqliteStore(folder / "sessions.db")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Killer(trio.abc.Instrument):
    """Kills the process at a step that is counted from `armed` on."""

    def __init__(self, point: int) -> None:
        self.left = point
        self.armed = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.armed:
            self.left -= 1
            if self.left <= 0:
                die()


class DyingModel:
    """A model whose first byte is the last point at which to die."""

    def stream(
        self, request: ak.ModelRequest, /
    ) -> AbstractAsyncContextManager[AsyncIterable[ak.Chunk]]:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncGenerator[AsyncIterable[ak.Chunk], None]:
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        die()
        yield self._chunks()

    async def _chunks(self) -> AsyncIterator[ak.Chunk]:
        await trio.lowlevel.checkpoint()
        yield ak.TextChunk("never")


async def work(kind: str, folder: Path, killer: Killer) -> None:
    async with ak.open_kernel(make_store(kind, folder)) as kernel:
        kernel.models.register("m", DyingModel())
        agent = (await kernel.create("s", model="m")).agent

        async def pre_step(payload: ak.PreStep, _next: object) -> ak.Enter | ak.Reject:
            await agent.session.flush()
            return ak.Enter(payload.messages)

        async def request(payload: ak.Request, _next: object) -> ak.ModelRequest:
            await agent.session.flush()
            return payload.request

        agent.on(ak.PreStep, pre_step)
        agent.on(ak.Request, request)
        agent.inject(message("rides"))
        agent.followup(message("first"))
        agent.followup(message("second"))
        agent.cancel(keep_inbox=True)
        await agent.when_idle()
        await agent.session.flush()
        killer.armed = True
        agent.wake()
        await trio.sleep_forever()


def message(text: str) -> ak.UserMessage:
    return ak.UserMessage(text, (ak.TextBlock(text),))


def main(kind: str, folder: Path, points: list[int]) -> None:
    for point in points:
        pid = os.fork()
        if not pid:
            own = folder / str(point)
            own.mkdir()
            killer = Killer(point)
            trio.run(partial(work, kind, own, killer), instruments=[killer])
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            sys.exit(f"the process of point {point} ended by itself: {status}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(a) for a in sys.argv[3:]])
