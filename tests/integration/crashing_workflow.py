"""A program that is killed while a workflow runs: `SIGKILL`, at a chosen point.

`python -m tests.integration.crashing_workflow KIND FOLDER POINT...` forks one process
for each point, which runs the workflow in a folder of its own and dies there; see
`crashing_kernel` for what a point is. What its agents were asked goes into the file
`asked`, what the function was given into the file `got`, line by line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.bridges.workflow import Flow, WorkflowOptions, run_workflow
from tests.integration.crashing_kernel import Killer, KillingFiles, make_store
from tests.race.parts import texts

__all__ = ["EXPECTED", "run_study"]

Note = Callable[[str], object]
RATING: ak.JsonObject = {
    "type": "object",
    "properties": {"rating": {"type": "integer"}},
    "required": ["rating"],
}
EXPECTED = {"text": "READ IT", "rating": {"rating": 5}, "sum": "SUM UP READ IT"}


class Worker:
    """Answers in upper case; rates with 5 where it has the tool for it."""

    def __init__(self, asked: Note) -> None:
        self._asked = asked

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk]]:
        last = request.messages[-1]
        if isinstance(last, ak.UserMessage):
            self._asked(last.text.splitlines()[0])
        yield self._chunks(request)

    async def _chunks(self, request: ak.ModelRequest) -> AsyncIterator[ak.Chunk]:
        await trio.lowlevel.checkpoint()
        last = request.messages[-1]
        if request.tools and isinstance(last, ak.UserMessage):
            yield ak.ToolCallChunk("answer", '{"rating": 5}')
            yield ak.FinishChunk("tool-calls")
            return
        yield ak.TextChunk(texts(request.messages)[-1].upper())
        yield ak.FinishChunk("stop")


async def run_study(store: ak.SessionStore, asked: Note, got: Note) -> object:
    """Run the workflow `w`: two agents side by side, and one behind them."""

    async def read(flow: Flow) -> ak.JsonValue:
        text = await flow.agent("read it")
        got("read it")
        return text

    async def rate(flow: Flow) -> ak.JsonValue:
        rating = await flow.agent("rate it", schema=RATING)
        got("rate it")
        return rating

    async def study(flow: Flow) -> dict[str, ak.JsonValue]:
        text, rating = await flow.parallel([read, rate])
        flow.phase("sum")
        summed = await flow.agent(f"sum up {text}")
        got(f"sum up {text}")
        return {"text": text, "rating": rating, "sum": summed}

    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", Worker(asked))
        ways = WorkflowOptions(model="m")
        done = await run_workflow(kernel, study, session_id="w", options=ways)
    return done.value


def play(kind: str, folder: Path, point: str) -> None:
    """Run the workflow in this process, which ends with it."""
    folder.mkdir()
    killer = Killer(point)
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
    asked, got = os.open(folder / "asked", flags), os.open(folder / "got", flags)

    def note(file: int, line: str) -> None:
        os.write(file, f"{line}\n".encode())

    store = make_store(kind, folder, KillingFiles(killer))
    threading.setprofile(killer.profile)
    trio.run(
        run_study, store, partial(note, asked), partial(note, got), instruments=[killer]
    )
    threading.setprofile(None)
    counts = "\n".join(f"{name} {number}" for name, number in killer.counts.items())
    (folder / "counts").write_text(counts, "utf-8")


def main(kind: str, folder: Path, points: list[str]) -> None:
    for point in points:
        pid = os.fork()
        if not pid:
            play(kind, folder / point.replace(":", "-"), point)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status and not os.WIFSIGNALED(status):
            sys.exit(f"the process of {point} failed: {status}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
