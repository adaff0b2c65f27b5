"""Stores and processes: killed owners, stopped owners, competing owners, a full disk."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from tests.integration.store_worker import KINDS, event, open_store, read_all

ROOT = Path(__file__).parents[2]
NEXT = "next"


class Worker:
    """A process of `store_worker`, and the lines that it prints."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = b""

    async def line(self) -> str:
        """Give the next line, empty at the end."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffer:
            more = await self.process.stdout.receive_some()
            if not more:
                return ""
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode()

    async def lines(self) -> list[str]:
        """Give what is left to read, up to the end of the process or `done`."""
        found: list[str] = []
        while (line := await self.line()) not in {"", "done"}:
            found.append(line)
        return found

    async def go(self) -> None:
        """Let a worker begin that waits to be told."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(b"go\n")

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def worker(mode: str, folder: Path, token: str) -> AsyncGenerator[Worker]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", "tests.integration.store_worker", mode, folder, token],
        stdin=-1,
        stdout=-1,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        with trio.fail_after(60):
            yield Worker(process)
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    await stream.aclose()


def acknowledged(lines: list[str]) -> dict[str, int]:
    """Find the last event that the worker knew to be durable, for each store."""
    last = dict.fromkeys(KINDS, 0)
    for line in lines:
        kind, _, number = line.partition(" ")
        if number.isdigit():
            last[kind] = int(number)
    return last


async def check_after_crash(store: ak.SessionStore, acked: int) -> int:
    """Resume a session whose writer was killed; give the last event found."""
    create = not any(session.last_seq for session in await store.sessions())
    assert not (create and acked)
    claim = await store.claim("s", token=NEXT, create=create)
    assert claim.last_seq >= acked
    found = await read_all(store, "s")
    assert found == [event(seq) for seq in range(1, claim.last_seq + 1)]
    after = event(claim.last_seq + 1, "parent")
    assert not await store.write([ak.Append(claim, [after])])
    assert await read_all(store, "s") == [*found, after]
    return claim.last_seq


@pytest.mark.clause("D2b", "D4", "D5b")
async def test_a_writer_killed_anywhere_loses_nothing_it_knew_to_be_durable(
    tmp_path: Path,
) -> None:
    """Kill at 20 seeded points; what was acknowledged is there, in order, once.

    A session killed before its first event was acknowledged may not exist; an event
    may be there that nobody had acknowledged.
    """
    chance = random.Random(7)  # noqa: S311  # a seed, not a secret
    points = [0, 1, *(chance.randrange(2, 60) for _ in range(18))]
    checked: list[int] = []
    limit = trio.CapacityLimiter(3)

    async def crash(number: int, point: int) -> None:
        folder = tmp_path / str(number)
        async with limit:
            async with worker("write", folder, "first") as writer:
                assert await writer.line() == "ready"
                seen = [await writer.line() for _ in range(point)]
                await writer.kill()
                seen += await writer.lines()
            acked = acknowledged(seen)
            for kind in KINDS:
                async with open_store(kind, folder) as store:
                    checked.append(await check_after_crash(store, acked[kind]))

    async with trio.open_nursery() as nursery:
        for number, point in enumerate(points):
            nursery.start_soon(crash, number, point)
    assert len(checked) == len(points) * len(KINDS)


async def displace(writer: Worker, store: ak.SessionStore, seen: list[str]) -> ak.Claim:
    """Take a session over from a writer that is stopped.

    SQLite's lock cannot be taken from a process that was stopped inside a commit:
    then let it run a little and stop it elsewhere.
    """
    while True:
        try:
            with pytest.raises(ak.SessionBusyError):
                await store.claim("s", token=NEXT, create=False)
            return await store.claim("s", token=NEXT, create=False, takeover=True)
        except ak.StorageError as error:
            if "locked" not in str(error):
                raise
        writer.process.send_signal(signal.SIGCONT)
        seen.append(await writer.line())
        writer.process.send_signal(signal.SIGSTOP)


@pytest.mark.clause("D5b")
@pytest.mark.case("STORE-04")
@pytest.mark.parametrize("seed", range(4))
async def test_an_owner_that_was_displaced_in_its_sleep_cannot_append(
    tmp_path: Path, seed: int
) -> None:
    """Stopped at a seeded point, displaced, woken: it is told, and adds nothing."""
    chance = random.Random(seed)  # noqa: S311  # a seed, not a secret
    async with AsyncExitStack() as stack:
        writer = await stack.enter_async_context(worker("write", tmp_path, "first"))
        assert await writer.line() == "ready"
        seen = [await writer.line() for _ in range(chance.randrange(2, 40))]
        bases: dict[str, int] = {}
        stores = {kind: open_store(kind, tmp_path, patience=0.1) for kind in KINDS}
        for store in stores.values():
            await stack.enter_async_context(store)
        writer.process.send_signal(signal.SIGSTOP)
        for kind, store in stores.items():
            claim = await displace(writer, store, seen)
            bases[kind] = claim.last_seq
            mine = [event(claim.last_seq + n, "parent") for n in (1, 2)]
            assert not await store.write([ak.Append(claim, mine)])
        writer.process.send_signal(signal.SIGCONT)
        seen += await writer.lines()
        for kind, store in stores.items():
            assert f"{kind} displaced" in seen
            assert acknowledged(seen)[kind] <= bases[kind]
            found = await read_all(store, "s")
            assert found == [
                *(event(seq) for seq in range(1, bases[kind] + 1)),
                *(event(bases[kind] + n, "parent") for n in (1, 2)),
            ]


@pytest.mark.clause("D5b")
@pytest.mark.case("STORE-11")
async def test_each_dead_session_is_taken_by_exactly_one_of_two(tmp_path: Path) -> None:
    """Two sweep the same 20 at once; then one of them dies, and its part is free.

    The sessions' first owner is killed while it holds all of them.
    """
    ids = [f"s{number}" for number in range(20)]
    for kind in KINDS:
        async with open_store(kind, tmp_path) as store:
            for session_id in ids:
                claim = await store.claim(session_id, token=NEXT, create=True)
                await store.write([ak.Append(claim, [event(1)])])
    async with worker("take", tmp_path, "zero") as dead:
        assert await dead.line() == "ready"
        await dead.go()
        assert len(await dead.lines()) == len(KINDS) * len(ids)
    async with (
        worker("take", tmp_path, "one") as one,
        worker("take", tmp_path, "two") as two,
    ):
        assert await one.line() == await two.line() == "ready"
        await one.go()
        await two.go()
        first, second = await one.lines(), await two.lines()
        assert sorted(first + second) == sorted(
            f"{kind} {session_id} 3" for kind in KINDS for session_id in ids
        )
        await one.kill()
        for kind in KINDS:
            async with open_store(kind, tmp_path) as store:
                for line in first:
                    if line.startswith(kind):
                        claim = await store.claim(
                            line.split()[1], token=NEXT, create=False
                        )
                        assert claim.epoch == 4
                for line in second:
                    if line.startswith(kind):
                        with pytest.raises(ak.SessionBusyError):
                            await store.claim(line.split()[1], token=NEXT, create=False)


@pytest.mark.clause("D3b", "D3c")
@pytest.mark.case("STORE-06")
async def test_a_full_disk_loses_and_doubles_nothing_once_it_has_space(
    tmp_path: Path,
) -> None:
    """The operating system refuses to let files grow, three times; then it does not.

    A limit on the size of files fails like a full disk: in the middle of a write.
    """
    async with worker("fill", tmp_path, "first") as writer:
        seen = await writer.lines()
    for kind in KINDS:
        mine = [line.removeprefix(f"{kind} ") for line in seen if line.startswith(kind)]
        assert mine == [*["failed StorageError", "sees 1"] * 3, "displaced 0", "sees 5"]
        async with open_store(kind, tmp_path) as store:
            assert await read_all(store, "s") == [
                event(1),
                *(event(seq, size=40_000) for seq in range(2, 6)),
            ]
