"""Disks that are full, read-only, failing or slow, and owners that sleep: for real."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.stores.files import File, Files
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.crashing_kernel import make_store
from tests.integration.test_store_crash import Worker
from tests.race.parts import invalidity

ROOT = Path(__file__).parents[2]
KINDS = ["jsonl", "sqlite"]
MOUNT = 'mount -t tmpfs -o size=1m tmpfs "$0" && exec "$@"'


@cache
def may_mount() -> bool:
    """Whether this machine lets us have a small file system of our own."""
    try:
        done = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],  # noqa: S607  # wherever it is
            check=False,
            capture_output=True,
        )
    except FileNotFoundError:
        return False
    return done.returncode == 0


def run_on_small_disk(mode: str, kind: str, folder: Path) -> list[str]:
    """Run `disk_worker` on a disk that is small, or limited by the system."""
    way = "mounted" if may_mount() else "limited"
    program = [sys.executable, "-m", "tests.integration.disk_worker"]
    program += [mode, way, kind, str(folder)]
    if way == "mounted":
        program = ["unshare", "-rm", "sh", "-c", MOUNT, str(folder), *program]
    done = subprocess.run(
        program,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.clause("D3a", "D3b", "D3c")
@pytest.mark.case("STORE-05", "STORE-06")
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_was_full_and_has_space_again_has_lost_and_doubled_nothing(
    tmp_path: Path, kind: str
) -> None:
    """No restart: what was sent meanwhile was refused its flush, and runs now."""
    assert run_on_small_disk("full", kind, tmp_path) == [
        "completed",
        *["refused True"] * 4,
        "reported {'StorageError'}",
        *["completed"] * 5,
        "waited True",
        "completed",
    ]


@pytest.mark.clause("D3a")
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_cannot_be_written_is_an_error_and_stays_as_it_was(
    tmp_path: Path, kind: str
) -> None:
    """Whoever opens a session there is told, and the session is there afterwards."""
    assert run_on_small_disk("read-only", kind, tmp_path) == [
        "completed",
        "refused StorageError",
        "unchanged True",
    ]


class TroubledFiles(Files):
    """A disk whose syncs a test decides about."""

    def __init__(self) -> None:
        self.on_sync: Callable[[], object] = bool
        # What happened to segments, in order.
        self.steps: list[str] = []

    def create(self, path: Path) -> File:
        return TroubledFile(self, path, super().create(path).descriptor)


class TroubledFile(File):
    def __init__(self, files: TroubledFiles, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._files = files

    def append(self, data: bytes) -> None:
        self._files.steps.append("append")
        super().append(data)

    def sync(self) -> None:
        try:
            self._files.on_sync()
        except OSError:
            self._files.steps.append("failed")
            raise
        super().sync()
        self._files.steps.append("sync")


def lines_of(folder: Path) -> int:
    """Count the lines of a session that are events."""
    return sum(len(p.read_bytes().splitlines()) - 1 for p in folder.glob("*.jsonl"))


@pytest.mark.clause("D3a", "D3b")
async def test_after_a_failed_fsync_the_events_are_written_again(
    tmp_path: Path,
) -> None:
    """A second sync alone would lie: what the first one lost is not tried again."""
    files = TroubledFiles()
    failing = False

    def sync() -> None:
        if failing:
            raise OSError(errno.EIO, "the disk fails")

    files.on_sync = sync
    async with ak.open_kernel(ak.JsonlStore(tmp_path, files=files)) as kernel:
        kernel.models.register("m", ScriptedModel(default=["an answer"]))
        agent = (await kernel.create("s", model="m")).agent
        await agent.session.flush()
        failing = True
        sent = agent.followup("hello")
        await agent.when_idle()
        with pytest.raises(ak.StorageError):
            await agent.session.flush(sent.seq)
        failing = False
        await agent.session.flush(sent.seq)
        assert (await agent.outcome(sent.id)).kind == "completed"
        await agent.session.flush()
        found = await agent.session.read(limit=1000)
        assert list(found) == list(agent.session.events)
        check_log(found)
    assert "failed" in files.steps
    assert ("failed", "sync") not in list(pairwise(files.steps))
    assert lines_of(tmp_path / "sessions" / "s") == len(found)


@asynccontextmanager
async def blocked_disk(
    kind: str, folder: Path
) -> AsyncGenerator[tuple[ak.SessionStore, Callable[[], None], Callable[[], None]]]:
    """Make a store, and what blocks and releases its disk."""
    if kind == "jsonl":
        files = TroubledFiles()
        free = threading.Event()
        free.set()
        files.on_sync = free.wait
        try:
            yield ak.JsonlStore(folder, files=files), free.clear, free.set
        finally:
            free.set()
        return
    path = folder / "agents.db"
    other: list[sqlite3.Connection] = []

    def block() -> None:
        other.append(sqlite3.connect(path, isolation_level=None))
        other[0].execute("BEGIN IMMEDIATE")

    def release() -> None:
        while other:
            other.pop().close()

    try:
        yield ak.SqliteStore(path), block, release
    finally:
        release()


@pytest.mark.clause("D2d", "D3d", "C11b", "C11d")
@pytest.mark.case("STORE-07")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_disk_that_hangs_is_named_and_work_goes_on_when_it_is_back(
    tmp_path: Path, kind: str
) -> None:
    """A write that hangs in its thread: running is the truth, and it can be stopped.

    The stop ends the turn's wait for the disk, not the write, which nothing abandons.
    """
    async with blocked_disk(kind, tmp_path) as (store, block, release):
        async with ak.open_kernel(store, stuck_after=0.01, strict=True) as kernel:
            kernel.models.register("m", ScriptedModel(default=["an answer"]))
            agent = (await kernel.create("s", model="m")).agent
            await agent.session.flush()
            stuck = trio.Event()
            named: list[str] = []

            def report(payload: ak.AgentStuck) -> None:
                named.extend(b.kind for b in payload.blockers)
                stuck.set()

            agent.on(ak.AgentStuck, report)
            block()
            sent = agent.followup("hello")
            with trio.fail_after(30):
                await stuck.wait()
            assert "flush" in named
            assert agent.status == "running"
            assert "flush" in {b.kind for b in agent.blockers()}
            with trio.move_on_after(0) as wait:
                await agent.session.flush(sent.seq)
            assert wait.cancelled_caught
            release()
            with trio.fail_after(30):
                await agent.when_idle()
                assert (await agent.outcome(sent.id)).kind == "completed"
            assert not agent.blockers()
            live = list(agent.session.events)
            assert list(await agent.session.read(limit=1000)) == live
            check_log(live)


@asynccontextmanager
async def owner(kind: str, folder: Path, name: str) -> AsyncGenerator[Worker]:
    """Start a process of `owning_kernel` that is ready to begin."""
    process = await trio.lowlevel.open_process(
        [
            *(sys.executable, "-m", "tests.integration.owning_kernel"),
            *(kind, str(folder), name),
        ],
        stdin=-1,
        stdout=-1,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    worker = Worker(process)
    try:
        with trio.fail_after(60):
            assert await worker.line() == "ready"
            yield worker
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()


@pytest.mark.clause("D5a", "D5b")
@pytest.mark.case("STORE-04")
@pytest.mark.parametrize("kind", KINDS)
async def test_an_owner_displaced_in_its_sleep_adds_nothing_when_it_wakes(
    tmp_path: Path, kind: str
) -> None:
    """Stopped inside a tool, taken over, gone on with, woken: told, and harmless."""
    async with owner(kind, tmp_path, "first") as old:
        await old.go()
        assert await old.line() == "owner 1"
        assert await old.line() == "working"
        old.process.send_signal(signal.SIGSTOP)
        model = ScriptedModel(default=["an answer"])
        async with ak.open_kernel(make_store(kind, tmp_path), strict=True) as kernel:
            kernel.models.register("m", model)
            with pytest.raises(ak.SessionBusyError):
                await kernel.resume("s")
            agent = (await kernel.resume("s", takeover=True)).agent
            taken = agent.session.last_seq
            first = agent.followup("mine")
            assert (await agent.outcome(first.id)).kind == "completed"
            old.process.send_signal(signal.SIGCONT)
            await old.go()
            said, _, durable = (await old.line()).partition(" ")
            assert said == "displaced"
            assert int(durable) <= taken
            assert (await agent.outcome(agent.followup("more").id)).kind == "completed"
            found = await agent.session.read(limit=1000)
            assert list(found[-len(agent.session.events) :]) == list(
                agent.session.events
            )
            report = check_log(found)
            assert [e.kind for e in report.turns.values() if e is not None] == [
                "interrupted",
                "completed",
                "completed",
            ]
            assert invalidity(model.requests[-1].messages) is None


@pytest.mark.clause("D5a", "D5b")
@pytest.mark.case("STORE-04", "STORE-11")
@pytest.mark.parametrize("kind", KINDS)
async def test_of_two_processes_one_gets_the_session_and_the_other_after_its_death(
    tmp_path: Path, kind: str
) -> None:
    """Both want it at once; the loser is refused. A killed winner leaves it free."""
    async with owner(kind, tmp_path, "a") as one, owner(kind, tmp_path, "b") as two:
        await one.go()
        await two.go()
        said = {await one.line(): one, await two.line(): two}
        assert set(said) == {"busy", "owner 1"}
        winner = said["owner 1"]
        assert await winner.line() == "working"
        await winner.kill()
    async with owner(kind, tmp_path, "c") as heir:
        await heir.go()
        assert await heir.line() == "owner 2"
        assert await heir.line() == "working"
        await heir.go()
        assert await heir.line() == "ended completed"
    async with make_store(kind, tmp_path) as store:
        report = check_log(await store.read("s"))
        assert [e.kind for e in report.turns.values() if e is not None] == [
            "interrupted",
            "completed",
        ]
