"""The SQLite store, other programs at the same file, and text in every store."""

from __future__ import annotations

import sqlite3
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.stores.database import connect, make_file, prepare
from tests.integration.store_worker import event, open_store, read_all

ONE, TWO = "one", "two"

# Another program: takes the write lock, says so, gives it back when told to.
LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
sys.stdout.write("locked\\n")
sys.stdout.flush()
sys.stdin.readline()
connection.execute("COMMIT")
"""


@asynccontextmanager
async def locked(path: Path) -> AsyncGenerator[trio.Process]:
    process = await trio.lowlevel.open_process(
        [sys.executable, "-c", LOCKER, path], stdin=-1, stdout=-1
    )
    assert process.stdin is not None
    assert process.stdout is not None
    async with process.stdin, process.stdout:
        try:
            assert await process.stdout.receive_some() == b"locked\n"
            yield process
        finally:
            with trio.CancelScope(shield=True):
                process.kill()
                await process.wait()


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def unlock(process: trio.Process) -> None:
    assert process.stdin is not None
    await process.stdin.send_all(b"\n")


@pytest.mark.clause("D2a", "D6a")
@pytest.mark.case("STORE-07")
async def test_a_lock_of_another_program_delays_writes_and_nothing_else(
    tmp_path: Path,
) -> None:
    """30 sessions are written while another program holds the lock.

    Until it lets go, other tasks run and reads are answered; then all is there.
    """
    path = tmp_path / "agents.db"
    ids = [f"s{number}" for number in range(30)]
    async with ak.SqliteStore(path) as store:
        claims = [await store.claim(s, token=ONE, create=True) for s in ids]
        await store.write([ak.Append(claim, [event(1)]) for claim in claims])
        written = trio.Event()

        async def write() -> None:
            batch = [ak.Append(c, [event(2), event(3)]) for c in claims]
            assert not await store.write(batch)
            written.set()

        async with locked(path) as process, trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for session_id in ids:
                assert await read_all(store, session_id) == [event(1)]
            assert not written.is_set()
            await unlock(process)
            await written.wait()
        for session_id in ids:
            assert await read_all(store, session_id) == [event(n) for n in (1, 2, 3)]


@pytest.mark.clause("D3b")
@pytest.mark.case("STORE-07")
async def test_a_lock_that_is_held_too_long_is_an_error_and_loses_nothing(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agents.db"
    async with ak.SqliteStore(path, busy_timeout=0.05) as store:
        claim = await store.claim("s", token=ONE, create=True)
        async with locked(path) as process:
            for call in (
                lambda: store.write([ak.Append(claim, [event(1)])]),
                lambda: store.claim("t", token=ONE, create=True),
            ):
                with pytest.raises(ak.StorageError, match="locked"):
                    await call()
            await unlock(process)
            await process.wait()
        await store.write([ak.Append(claim, [event(1), event(2)])])
        assert await read_all(store, "s") == [event(1), event(2)]


@pytest.mark.clause("D2b")
def test_each_commit_is_synced_to_the_disk(tmp_path: Path) -> None:
    """In WAL mode anything less than FULL loses commits with the power."""
    path = tmp_path / "agents.db"
    make_file(path)
    with closing(connect(path, 1.0)) as writer:
        prepare(writer, path, 1.0)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.clause("D6c")
async def test_what_the_store_makes_is_private_to_its_owner(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    async with ak.SqliteStore(folder / "agents.db") as store:
        claim = await store.claim("s", token=ONE, create=True)
        await store.write([ak.Append(claim, [event(1)])])
        found = [folder, *folder.rglob("*")]
        assert {path.name for path in found} >= {"agents.db", "agents.db-wal"}
        for path in found:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600)


async def test_nothing_but_the_database_is_left_once_the_store_is_closed(
    tmp_path: Path,
) -> None:
    async with ak.SqliteStore(tmp_path / "agents.db") as store:
        claim = await store.claim("s", token=ONE, create=True)
        await store.write([ak.Append(claim, [event(1)])])
    assert names(tmp_path) == ["agents.db"]


async def test_a_database_of_a_later_version_is_refused(tmp_path: Path) -> None:
    """The message names both versions; the file is as it was."""
    path = tmp_path / "agents.db"
    async with ak.SqliteStore(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(ak.StorageError, match=r"version 99.*up to 1"):
        async with ak.SqliteStore(path):
            pass


@pytest.mark.clause("D4")
async def test_damage_is_an_error_that_names_the_event(tmp_path: Path) -> None:
    path = tmp_path / "agents.db"
    async with ak.SqliteStore(path) as store:
        claim = await store.claim("s", token=ONE, create=True)
        await store.write([ak.Append(claim, [event(n) for n in range(1, 6)])])
    connection = sqlite3.connect(path, isolation_level=None)
    for change, seq in (
        ("UPDATE event SET line = substr(line, 1, 40) WHERE seq = 4", 4),
        ("UPDATE event SET line = replace(line, '\"seq\":3', '\"seq\":2')", 3),
        ("DELETE FROM event WHERE seq = 2", 2),
    ):
        connection.execute(change)
        async with ak.SqliteStore(path) as store:
            with pytest.raises(ak.SessionFormatError) as caught:
                await store.read("s")
            assert caught.value.seq == seq
    connection.execute("DELETE FROM event WHERE seq = 5")
    connection.close()
    async with ak.SqliteStore(path) as store:
        with pytest.raises(ak.SessionFormatError):
            await store.claim("s", token=ONE, create=False)
    path.write_bytes(b"not a database at all" * 500)
    with pytest.raises(ak.StorageError):
        async with ak.SqliteStore(path):
            pass


@pytest.mark.clause("D5b")
async def test_a_claim_ends_with_its_store_even_if_it_could_not_be_given_back(
    tmp_path: Path,
) -> None:
    """Another program holds the lock while the owner leaves: the owner is gone."""
    path = tmp_path / "agents.db"
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(ak.SqliteStore(path))
        owner = ak.SqliteStore(path, busy_timeout=0.05)
        await owner.__aenter__()
        claim = await owner.claim("s", token=ONE, create=True)
        await owner.write([ak.Append(claim, [event(1)])])
        with pytest.raises(ak.SessionBusyError):
            await other.claim("s", token=TWO, create=False)
        async with locked(path):
            with pytest.raises(ak.StorageError, match="locked"):
                await owner.__aexit__(None, None, None)
        claim = await other.claim("s", token=TWO, create=False)
        assert claim.epoch == 2


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-08", "STORE-09")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_text_that_no_encoder_likes_is_kept_by_one_rule(
    tmp_path: Path, kind: str
) -> None:
    """NUL stays, UTF-16 read as text stays, half of a surrogate pair is U+FFFD."""
    texts = [
        "a\x00b",
        "h\x00i\x00",
        "cut \ud83d",
        b"\xff\xfe".decode(errors="surrogateescape"),
    ]
    result = ak.ToolResult(
        "c",
        "tool",
        tuple(ak.TextBlock(text) for text in texts),
        ak.ToolFailure("code", texts[0] + texts[2]),
    )
    events = [
        ak.SessionEvent(1, 1.0, ak.ToolReturned(1, 1, "c", result)),
        ak.SessionEvent(2, 1.0, ak.ChunkStreamed(1, 1, 1, ak.TextChunk("\ud83d"))),
    ]
    async with open_store(kind, tmp_path) as store:
        claim = await store.claim("s", token=ONE, create=True)
        await store.write([ak.Append(claim, events)])
    async with open_store(kind, tmp_path) as store:
        first, second = await store.read("s")
    assert isinstance(first.data, ak.ToolReturned)
    clean = ["a\x00b", "h\x00i\x00", "cut \ufffd", "\ufffd\ufffd"]
    assert first.data.message.content == tuple(ak.TextBlock(text) for text in clean)
    assert first.data.message.error == ak.ToolFailure("code", "a\x00bcut \ufffd")
    assert second.data == ak.ChunkStreamed(1, 1, 1, ak.TextChunk("\ufffd"))
