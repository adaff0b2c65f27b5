"""What a power loss leaves of the SQLite store: a file system that forgets.

The store's own statements run on a second SQLite, which lets its files be watched:
every write, cut, sync and removal is recorded while an agent plays the story of the
crash tests. Each cut of the record leaves files of which only what was synced is
certain; of the rest any sector may be there or not. The real store resumes from them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import apsw
import pytest

import agentkernel as ak
from agentkernel.stores import sqlite
from tests.integration.crashing_kernel import story
from tests.integration.test_power_loss_kernel import check_left

SECTOR = 512
WATCHED = ("agents.db", "agents.db-wal", "agents.db-journal")


class Left:
    """One file: what is certain of it, and what its users see."""

    def __init__(self) -> None:
        self.certain: bytes | None = None
        self.seen: bytes = b""
        # Whether its name is gone, which is certain only when its folder was synced.
        self.removed = False

    def whole(self) -> bytes | None:
        """Give what is left if everything survives; None for no file."""
        return None if self.removed else self.seen

    def torn(self, chance: random.Random | None) -> bytes | None:
        """Give what is left if only chance parts survive of what is not certain."""
        if chance is None:
            return self.certain
        old = self.certain
        if (self.removed or old is None) and chance.random() < 0.5:
            return None
        old = old or b""
        longest, shortest = max(len(old), len(self.seen)), min(len(old), len(self.seen))
        old, new = old.ljust(longest, b"\0"), self.seen.ljust(longest, b"\0")
        parts = [
            (new if chance.random() < 0.5 else old)[at : at + SECTOR]
            for at in range(0, longest, SECTOR)
        ]
        return b"".join(parts)[: chance.randint(shortest, longest)]


Disk = dict[str, Left]
Step = Callable[[Disk], object]


class Record:
    """The steps so far, each with the number of events that were promised before."""

    def __init__(self) -> None:
        self.steps: list[tuple[Step, int]] = []
        self.promised = 0

    def add(self, step: Step) -> None:
        self.steps.append((step, self.promised))


class Watching(apsw.VFS):
    """The file system of this machine; what happens to the database is recorded."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.name = f"watching-{id(self)}"
        super().__init__(self.name, base="")

    def xOpen(  # noqa: N802  # the name is SQLite's
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return WatchedFile(self.record, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802, FBT001  # likewise
        super().xDelete(filename, syncdir)
        known = Path(filename).name

        def step(disk: Disk) -> None:
            if syncdir:
                disk.pop(known, None)
            elif known in disk:
                disk[known].removed = True

        if known in WATCHED:
            self.record.add(step)


class WatchedFile(apsw.VFSFile):
    def __init__(
        self,
        record: Record,
        path: str | None,
        name: str | apsw.URIFilename | None,
        flags: list[int],
    ) -> None:
        super().__init__("", name, flags)
        self.known = "" if path is None else Path(path).name
        self.record = record

    def add(self, change: Callable[[Left], object]) -> None:
        known = self.known

        def step(disk: Disk) -> None:
            left = disk.get(known)
            if left is None or left.removed:
                left = disk[known] = Left()
            change(left)

        if known in WATCHED:
            self.record.add(step)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # likewise
        super().xWrite(data, offset)  # pyright: ignore[reportUnknownMemberType]  # the stubs name a type that they lack
        copy = bytes(data)

        def write(left: Left) -> None:
            padded = left.seen.ljust(offset, b"\0")
            left.seen = padded[:offset] + copy + padded[offset + len(copy) :]

        self.add(write)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # likewise
        super().xTruncate(newsize)

        def truncate(left: Left) -> None:
            left.seen = left.seen[:newsize]

        self.add(truncate)

    def xSync(self, flags: int) -> None:  # noqa: N802  # likewise
        super().xSync(flags)

        def sync(disk: Disk) -> None:
            left = disk.setdefault(known, Left())
            if left.certain is None:
                # SQLite syncs the folder as well, once, for a journal that is new.
                for name in [name for name in disk if disk[name].removed]:
                    del disk[name]
            left.certain = left.seen

        known = self.known
        if known in WATCHED:
            self.record.add(sync)


class Connection:
    """The part of `sqlite3.Connection` that the store uses, on a watched disk."""

    def __init__(
        self, vfs: Watching, sync: str, path: Path, busy_timeout: float
    ) -> None:
        self._inner = apsw.Connection(str(path), vfs=vfs.name)
        self._inner.set_busy_timeout(int(busy_timeout * 1000))
        self._sync = sync

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def execute(self, sql: str, values: Sequence[object] = ()) -> apsw.Cursor:
        if sql.startswith("PRAGMA synchronous"):
            sql = f"PRAGMA synchronous={self._sync}"
        return self._inner.execute(sql, tuple(values))  # pyright: ignore[reportUnknownMemberType]  # the stubs name a type that they lack

    def executemany(
        self, sql: str, values: Sequence[Sequence[object]]
    ) -> apsw.Cursor | Iterator[object]:
        return self._inner.executemany(sql, values)  # pyright: ignore[reportUnknownMemberType]  # the stubs name a type that they lack

    def close(self) -> None:
        self._inner.close()


async def recorded(
    folder: Path, patch: pytest.MonkeyPatch, sync: str
) -> tuple[Record, list[ak.Fact]]:
    """Play the story once; give the steps of the disk, and all that happened."""
    record = Record()

    def ack(line: str) -> None:
        if line.startswith("event "):
            record.promised = int(line.split()[1])

    vfs = Watching(record)
    with patch.context() as patched:
        patched.setattr(sqlite, "connect", partial(Connection, vfs, sync))
        await story(ak.SqliteStore(folder / "agents.db"), ack, lambda _call: None)
    async with ak.SqliteStore(folder / "agents.db") as store:
        events = await store.read("s", limit=10_000)
    return record, [event.data for event in events]


def leave(disk: Disk, folder: Path, chances: str, seed: int) -> None:
    """Put what is left into a folder: the certain part, all, or by chance."""
    folder.mkdir()
    chance = random.Random(chances) if seed >= 0 else None  # noqa: S311  # a seed, not a secret
    for name, left in disk.items():
        content = left.whole() if seed == -1 else left.torn(chance)
        if content is not None:
            (folder / name).write_bytes(content)


async def cut_everywhere(
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    seeds: int,
    *,
    stride: int = 1,
    sync: str = "FULL",
) -> Counter[int]:
    """Cut the power after each step; count the states by how much was found."""
    record, whole = await recorded(tmp_path, patch, sync)
    found: Counter[int] = Counter()
    for cut in range(1, len(record.steps) + 1, stride):
        promised = record.steps[cut][1] if cut < len(record.steps) else record.promised
        disk: Disk = {}
        for step, _ in record.steps[:cut]:
            step(disk)
        for seed in range(-2, seeds):
            folder = tmp_path / f"left-{cut}-{seed}"
            leave(disk, folder, f"{cut} {seed}", seed)
            try:
                store = ak.SqliteStore(folder / "agents.db")
                found[await check_left(store, promised, whole)] += 1
            except BaseException as error:
                error.add_note(f"power cut after step {cut}, seed {seed}")
                raise
    return found


@pytest.mark.clause("D2b", "D4", "D5a")
async def test_a_session_in_sqlite_survives_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a sample of the steps; with nothing unsynced left, all of it, chance sectors."""
    found = await cut_everywhere(tmp_path, monkeypatch, seeds=1, stride=6)
    assert found.total() > 100
    assert found[0]
    assert len(found) > 10


@pytest.mark.long
async def test_a_session_in_sqlite_survives_a_power_loss_after_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of the same story, with four ways to tear what was not synced."""
    found = await cut_everywhere(tmp_path, monkeypatch, seeds=4)
    assert found.total() > 1000


@pytest.mark.clause("D2b")
async def test_commits_that_are_not_synced_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step less than `FULL` keeps the file whole and loses what was promised."""
    with pytest.raises(AssertionError, match="lost"):
        await cut_everywhere(tmp_path, monkeypatch, seeds=0, sync="NORMAL")
