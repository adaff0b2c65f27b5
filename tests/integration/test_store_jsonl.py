"""The JSONL store and what may be wrong with its files, or happen between its steps."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import trio

import agentkernel as ak
from agentkernel.stores.files import File, Files
from agentkernel.stores.segment import folder_name
from tests.integration.store_worker import event, read_all

ONE, TWO = "one", "two"


MakeEvent: TypeAlias = Callable[[int], ak.SessionEvent]


def small(seq: int) -> ak.SessionEvent:
    return ak.SessionEvent(seq, 1.0, ak.TurnStarted(seq))


def events(
    first: int, last: int, make_event: MakeEvent = event
) -> list[ak.SessionEvent]:
    return [make_event(seq) for seq in range(first, last + 1)]


async def make(
    folder: Path, last: int, *, group: int = 1, make_event: MakeEvent = event
) -> Path:
    """Make a session of some events, written in groups, and release it."""
    async with ak.JsonlStore(folder) as store:
        claim = await store.claim("s", token=ONE, create=True)
        for first in range(1, last + 1, group):
            written = events(first, first + group - 1, make_event)
            await store.write([ak.Append(claim, written)])
    (path,) = found(folder, "*.jsonl")
    return path


def found(folder: Path, pattern: str) -> list[Path]:
    """Find files in the folders of the sessions."""
    return sorted((folder / "sessions").glob(f"*/{pattern}"))


async def append_two(
    folder: Path, last: int, make_event: MakeEvent = event
) -> tuple[str, ...]:
    """Claim, find events up to `last`, add two, and check after opening again."""
    async with ak.JsonlStore(folder) as store:
        assert await read_all(store, "s") == events(1, last, make_event)
        claim = await store.claim("s", token=TWO, create=False)
        assert claim.last_seq == last
        await store.write([ak.Append(claim, [make_event(last + 1)])])
        await store.write([ak.Append(claim, [make_event(last + 2)])])
    async with ak.JsonlStore(folder) as store:
        assert await read_all(store, "s") == events(1, last + 2, make_event)
    newest = found(folder, "*.jsonl")[-1]
    assert all(line.count(b'{"seq":') <= 1 for line in newest.read_bytes().splitlines())
    return claim.notices


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-01")
async def test_a_tail_cut_at_any_byte_is_set_aside_and_swallows_nothing(
    tmp_path: Path,
) -> None:
    """Each cut of the last record; two records follow; all whole ones are there."""
    whole = (await make(tmp_path / "whole", 3, make_event=small)).read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    name = folder_name("s")
    for cut in range(start, len(whole)):
        folder = tmp_path / str(cut)
        (folder / "sessions" / name).mkdir(parents=True)
        (folder / "sessions" / name / "000001.jsonl").write_bytes(whole[:cut])
        complete = cut == len(whole) - 1
        notices = await append_two(folder, 3 if complete else 2, make_event=small)
        torn = found(folder, "torn/*")
        if cut == start or complete:
            assert not notices
            assert not torn
        else:
            assert [path.read_bytes() for path in torn] == [whole[start:cut]]
            assert str(torn[0]) in notices[0]


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-01")
@pytest.mark.parametrize(
    "tail",
    [
        b"\n",
        b"\x00" * 500,
        b"\x00" * 500 + b"\n",
        b"\xff\xfe\n\n\x00{\n",
        b'{"seq":4,"time":1',
        b'{"seq":4,"time":1\n{"seq',
        b'["seq"]\n',
        b"\r\n\xe2\x80\xa8",
    ],
)
async def test_whatever_bytes_a_torn_tail_holds_it_is_set_aside(
    tmp_path: Path, tail: bytes
) -> None:
    path = await make(tmp_path, 3)
    with path.open("ab") as file:
        file.write(tail)
    (notice,) = await append_two(tmp_path, 3)
    assert f"{len(tail)} bytes behind event 3" in notice
    (torn,) = found(tmp_path, "torn/*")
    assert torn.read_bytes() == tail


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-01")
async def test_records_that_another_program_glued_together_are_all_read(
    tmp_path: Path,
) -> None:
    path = await make(tmp_path, 6)
    lines = path.read_bytes().splitlines(keepends=True)
    glued = [lines[0], lines[1][:-1], *lines[2:5], lines[5][:-1], lines[6], b'{"seq":7']
    path.write_bytes(b"".join(glued))
    assert len(await append_two(tmp_path, 6)) == 1


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-03")
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("line", [1, 2, 3, 4])
@pytest.mark.parametrize("hole", ["inserted", "line", "over", "garbage", "copy"])
async def test_damage_before_the_tail_is_an_error_that_names_its_place(
    tmp_path: Path, hole: str, line: int, group: int
) -> None:
    """Never a silent truncation, not for the reader and not for the next owner.

    A record that is gone from the group that was written last is the one thing that
    an unfinished write can explain.
    """
    path = await make(tmp_path, 4, group=group)
    lines = path.read_bytes().splitlines(keepends=True)
    offset = len(b"".join(lines[:line]))
    if hole == "inserted":
        lines[line : line + 1] = [b"\x00" * 500, lines[line]]
    elif hole == "line":
        lines[line : line + 1] = [b"\x00" * 499 + b"\n", lines[line]]
    elif hole == "over":
        lines[line] = b"\x00" * len(lines[line])
    elif hole == "garbage":
        lines[line] = b"\xff" + lines[line][1:]
    else:
        lines[line:line] = [lines[line - 1]] if line > 1 else [b"{}\n"]
    path.write_bytes(b"".join(lines))
    last_group = (4 - 1) // group * group + 1
    excusable = hole in {"over", "garbage"} and line >= last_group
    async with ak.JsonlStore(tmp_path) as store:
        if excusable and line == 1:
            with pytest.raises(ak.SessionNotFoundError):
                await store.claim("s", token=TWO, create=False)
            return
        if excusable:
            claim = await store.claim("s", token=TWO, create=False)
            assert claim.last_seq == line - 1
            assert claim.notices
            return
        with pytest.raises(ak.SessionFormatError, match=rf"byte {offset}\b") as caught:
            await store.claim("s", token=TWO, create=False)
        assert caught.value.seq == line
        with pytest.raises(ak.SessionFormatError, match=rf"byte {offset}\b"):
            await read_all(store, "s")


@pytest.mark.clause("D4")
async def test_damage_in_a_segment_that_was_sealed_is_an_error_on_reading(
    tmp_path: Path,
) -> None:
    """What a later claim has counted is durable: nothing excuses its loss."""
    path = await make(tmp_path, 3)
    await append_two(tmp_path, 3)
    content = path.read_bytes()
    last = content[:-1].rindex(b"\n") + 1
    for broken in (content[:-1] + b"x", content[: last // 2], content[:last]):
        path.write_bytes(broken)
        async with ak.JsonlStore(tmp_path) as store:
            with pytest.raises(ak.SessionFormatError):
                await read_all(store, "s")
    path.unlink()
    async with ak.JsonlStore(tmp_path) as store:
        with pytest.raises(ak.SessionFormatError, match="missing"):
            await read_all(store, "s")
        assert await store.read("s", after=3) == [event(4), event(5)]


class Steps(Files):
    """A disk that calls `before` ahead of each step, and may have it fail."""

    def __init__(self) -> None:
        self.taken = 0
        self.before: Callable[[int], None] = lambda _: None

    def note(self) -> None:
        self.taken += 1
        self.before(self.taken)

    def create(self, path: Path) -> File:
        self.note()
        return SteppedFile(self, path, super().create(path).descriptor)

    def exists(self, path: Path) -> bool:
        self.note()
        found = super().exists(path)
        self.note()
        return found

    def sync_dir(self, path: Path) -> None:
        self.note()
        super().sync_dir(path)

    def make_dir(self, path: Path) -> None:
        self.note()
        super().make_dir(path)

    def rename(self, old: Path, new: Path) -> None:
        self.note()
        super().rename(old, new)


class SteppedFile(File):
    """A file that writes in two halves, and loses what a failed sync should save."""

    def __init__(self, steps: Steps, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self._steps = steps
        self._synced = 0

    def append(self, data: bytes) -> None:
        half = len(data) // 2
        self._steps.note()
        super().append(data[:half])
        self._steps.note()
        super().append(data[half:])

    def sync(self) -> None:
        try:
            self._steps.note()
        except OSError:
            with self.path.open("r+b") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(self._synced)
                file.write(b"\x00" * (size - self._synced))
            raise
        super().sync()
        self._synced = self.path.stat().st_size if self.path.exists() else 0
        self._steps.note()

    def truncate(self, length: int) -> None:
        self._steps.note()
        super().truncate(length)


@pytest.mark.clause("D5b")
@pytest.mark.case("STORE-04")
async def test_a_takeover_between_any_two_steps_of_a_write_is_seen_by_the_owner(
    tmp_path: Path,
) -> None:
    """What the owner is told was written counts; what does not count, it is told."""
    outcomes: set[tuple[bool, int]] = set()
    step = 0
    for step in range(1, 100):
        folder, steps = tmp_path / str(step), Steps()
        taken: list[ak.Claim] = []
        async with (
            ak.JsonlStore(folder, files=steps) as owner,
            ak.JsonlStore(folder) as other,
        ):
            old = await owner.claim("s", token=ONE, create=True)
            await owner.write([ak.Append(old, events(1, 2))])

            async def take_over(store: ak.JsonlStore = other) -> ak.Claim:
                return await store.claim("s", token=TWO, create=False, takeover=True)

            def interrupt(
                number: int,
                step: int = step,
                taken: list[ak.Claim] = taken,
                take_over: Callable[[], Awaitable[ak.Claim]] = take_over,
            ) -> None:
                if number == step:
                    taken.append(trio.from_thread.run(take_over))

            steps.taken, steps.before = 0, interrupt
            displaced = bool(await owner.write([ak.Append(old, events(3, 4))]))
            if not taken:
                break
            new = taken[0]
            outcomes.add((displaced, new.last_seq))
            assert displaced == (new.last_seq < 4)
            mine = event(new.last_seq + 1, "new")
            assert not await other.write([ak.Append(new, [mine])])
            assert await owner.write([ak.Append(old, events(3, 5))]) == [old]
            assert await read_all(owner, "s") == [*events(1, new.last_seq), mine]
    assert {(True, 2), (False, 4)} <= outcomes
    assert step > 6


@pytest.mark.clause("D2b", "D3b", "D3c")
@pytest.mark.case("STORE-05", "STORE-06")
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_failure_at_any_step_of_a_write_loses_and_doubles_nothing(
    tmp_path: Path, code: int, times: int
) -> None:
    """The same batch comes again. After a failed sync its old bytes are gone."""
    failed, step = True, 0
    for step in range(1, 100):
        folder, steps = tmp_path / str(step), Steps()

        def fail(number: int, step: int = step) -> None:
            if number == step:
                raise OSError(code, os.strerror(code))

        async with ak.JsonlStore(folder, files=steps) as store:
            claim = await store.claim("s", token=ONE, create=True)
            await store.write([ak.Append(claim, events(1, 2))])
            steps.before = fail
            for _ in range(times):
                steps.taken, failed = 0, False
                try:
                    await store.write([ak.Append(claim, events(3, 10))])
                except ak.StorageError:
                    failed = True
                known = 2 if failed else 10
                assert await read_all(store, "s") == events(1, known)
            steps.before = lambda _: None
            assert not await store.write([ak.Append(claim, events(3, 11))])
            assert await read_all(store, "s") == events(1, 11)
        async with ak.JsonlStore(folder) as store:
            assert await read_all(store, "s") == events(1, 11)
            claim = await store.claim("s", token=TWO, create=False)
            assert claim.notices == ()
        if not failed:
            break
    assert step > 12


@pytest.mark.clause("D5b")
async def test_a_claim_that_fails_at_any_step_leaves_the_session_free(
    tmp_path: Path,
) -> None:
    path = await make(tmp_path, 3)
    with path.open("ab") as file:
        file.write(b"torn")
    before = len(os.listdir("/proc/self/fd"))
    step = 0
    for step in range(1, 100):
        steps = Steps()

        def fail(number: int, step: int = step) -> None:
            if number == step:
                raise OSError(errno.EIO, "planted")

        async with ak.JsonlStore(tmp_path, files=steps) as store:
            steps.taken, steps.before = 0, fail
            try:
                claim = await store.claim("s", token=TWO, create=False)
            except ak.StorageError:
                continue
            assert claim.epoch == 2
            assert claim.last_seq == 3
            assert claim.notices
            break
    assert step > 5
    assert len(os.listdir("/proc/self/fd")) <= before


class LateLock(Files):
    """A disk on which something happens between opening a folder and locking it."""

    def __init__(self, happening: Callable[[], None]) -> None:
        self.happening = happening

    def lock_dir(self, path: Path, *, patience: float) -> File | None:
        folder = File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        happening, self.happening = self.happening, lambda: None
        happening()
        assert folder.lock()
        return folder


@pytest.mark.clause("D5b")
async def test_a_claim_that_waited_for_a_folder_that_is_gone_makes_it_anew(
    tmp_path: Path,
) -> None:
    """The first owner removes its empty session while the second one waits for it."""
    async with ak.JsonlStore(tmp_path) as owner:
        first = await owner.claim("s", token=ONE, create=True)

        async def leave() -> None:
            await owner.release(first)

        files = LateLock(lambda: trio.from_thread.run(leave))
        async with ak.JsonlStore(tmp_path, files=files) as store:
            claim = await store.claim("s", token=TWO, create=True)
            assert claim.epoch == 1
            assert not await store.write([ak.Append(claim, [event(1)])])
            assert await read_all(owner, "s") == [event(1)]


@pytest.mark.clause("D5b")
async def test_a_claim_that_was_never_finished_does_not_displace_the_owner(
    tmp_path: Path,
) -> None:
    """Who wanted to take over was killed before its segment had its first line."""
    async with ak.JsonlStore(tmp_path) as store:
        claim = await store.claim("s", token=ONE, create=True)
        await store.write([ak.Append(claim, [event(1)])])
        (path,) = found(tmp_path, "*.jsonl")
        for left in (b"", b'{"segment":1,"sess', b"\x00" * 80 + b"\n"):
            path.with_name("000002.jsonl").write_bytes(left)
            assert await read_all(store, "s") == [event(1)]
            assert not await store.write([ak.Append(claim, [event(1)])])
            assert found(tmp_path, "*.jsonl") == [path]
    path.with_name("000002.jsonl").write_bytes(b"")
    assert await append_two(tmp_path, 1) == ()


@pytest.mark.clause("D6c")
async def test_what_the_store_makes_is_private_to_its_owner(tmp_path: Path) -> None:
    path = await make(tmp_path / "new" / "store", 10)
    with path.open("ab") as file:
        file.write(b"torn")
    await append_two(tmp_path / "new" / "store", 10)
    found = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(found) > 8
    for path in found:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600)


async def test_a_store_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    path = await make(tmp_path, 1)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"segment":1', b'"segment":2', 1))
    async with ak.JsonlStore(tmp_path) as store:
        with pytest.raises(ak.SessionFormatError, match=r"layout 2.*reads 1"):
            await store.read("s")
