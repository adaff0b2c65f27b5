"""A kernel in a process of its own, on a disk that is full or cannot be written.

`python -m tests.integration.disk_worker MODE WAY KIND FOLDER`. The way `mounted` says
that the folder is a small file system of this process alone; `limited` that none could
be had, and that the limit of the operating system on files stands for it. It prints
what it has seen, a line for each thing; what goes wrong ends it with a traceback.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.crashing_kernel import make_store

_UNLIMITED = resource.getrlimit(resource.RLIMIT_FSIZE)


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  # this is the program's output


def fill(way: str, folder: Path) -> Callable[[], None]:
    """Use up the disk; the result gives the space back."""
    if way == "limited":
        largest = max(p.stat().st_size for p in folder.rglob("*") if p.is_file())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, _UNLIMITED[1]))
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, _UNLIMITED)
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return filler.unlink


def forbid_writing(way: str, folder: Path) -> None:
    if way == "limited":
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, _UNLIMITED[1]))
    else:
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)  # noqa: S607  # wherever it is


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def read_all(agent: ak.Agent) -> list[ak.SessionEvent]:
    return list(await agent.session.read(limit=10_000))


async def full(way: str, kind: str, folder: Path) -> None:
    """Run out of space, be told, send on, get space, and have everything done."""
    model = ScriptedModel(default=["an answer"])
    async with ak.open_kernel(make_store(kind, folder), strict=True) as kernel:
        kernel.models.register("m", model)
        agent = (await kernel.create("s", model="m")).agent
        failures: list[ak.ErrorReported] = []
        agent.on(ak.ErrorReported, failures.append)
        say((await agent.outcome(agent.followup("before").id)).kind)
        give_back = fill(way, folder)
        sent = [agent.followup("x" * 30_000)]
        await agent.when_idle()
        for number in range(4):
            sent.append(agent.followup(f"{number} " + "y" * 30_000))
            await agent.when_idle()
            try:
                await agent.session.flush(sent[-1].seq)
            except ak.StorageError as error:
                say("refused", error.durable_seq == agent.session.durable_seq)
        asked = len(model.requests)
        say("reported", {type(e.error).__name__ for e in failures})
        give_back()
        # The writer tries again by itself, with pauses; somebody who asks need not wait.
        await agent.session.flush()
        for one in sent:
            say((await agent.outcome(one.id)).kind)
        await agent.when_idle()
        say("waited", len(model.requests) - asked >= 4)
        live = list(agent.session.events)
        assert await read_all(agent) == live
        check_log(live)
    async with ak.open_kernel(make_store(kind, folder), strict=True) as kernel:
        kernel.models.register("m", model)
        agent = (await kernel.resume("s")).agent
        assert await read_all(agent) == live
        say((await agent.outcome(agent.followup("after").id)).kind)


async def read_only(way: str, kind: str, folder: Path) -> None:
    """Open a session where nothing can be written any more: an error, and no harm."""
    async with ak.open_kernel(make_store(kind, folder)) as kernel:
        kernel.models.register("m", ScriptedModel(default=["an answer"]))
        agent = (await kernel.create("s", model="m")).agent
        say((await agent.outcome(agent.followup("before").id)).kind)
    before = contents(folder)
    forbid_writing(way, folder)
    try:
        async with ak.open_kernel(make_store(kind, folder)) as kernel:
            kernel.models.register("m", ScriptedModel(default=["an answer"]))
            agent = (await kernel.resume("s")).agent
            sent = agent.followup("in vain")
            await agent.session.flush(sent.seq)
    except ak.StorageError as error:
        say("refused", type(error).__name__)
    after = contents(folder)
    if way == "mounted":
        say("unchanged", before == after)
    else:
        say("unchanged", all(after[p].startswith(before[p][:100]) for p in before))


MODES = {"full": full, "read-only": read_only}

if __name__ == "__main__":
    trio.run(MODES[sys.argv[1]], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
