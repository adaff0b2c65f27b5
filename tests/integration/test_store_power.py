"""What a power loss leaves of the JSONL store: a model of a disk that forgets.

The store's steps are recorded while it works. Each beginning of that record is then
replayed on a model in which only what was synced is certain: of the rest of a file,
any part may be there, and any sector of it may be zeros; a name may be there or not,
unless its folder was synced. From each such state a new store must open, with every
event that had been acknowledged.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

import agentkernel as ak
from agentkernel.stores.files import File, Files
from tests.integration.store_worker import event, read_all

ONE, TWO = "one", "two"
SECTOR = 512


class Node:
    """A file, or a folder if it has entries."""

    def __init__(self, *, folder: bool) -> None:
        self.folder = folder
        # What a file holds: certainly, and as its users see it.
        self.certain = b""
        self.seen = b""
        # What a folder holds, likewise; a change may be one half of a rename.
        self.certain_names: dict[str, Node] = {}
        self.names: dict[str, Node] = {}
        self.changes: list[Change] = []


class Change:
    """A name that came or went, and whether that survives."""

    def __init__(self) -> None:
        self.survives = False
        self.parts: list[tuple[Node, str, Node | None]] = []


class Model:
    """The disk after some steps."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = Node(folder=True)
        # Open files keep their content when their name goes.
        self.opened: dict[int, Node] = {}

    def find(self, path: Path) -> Node:
        node = self.top
        for name in path.relative_to(self.root).parts:
            node = node.names[name]
        return node

    def change(self, *parts: tuple[Path, Node | None]) -> None:
        made = Change()
        for path, node in parts:
            folder = self.find(path.parent)
            if node is None:
                folder.names.pop(path.name, None)
            else:
                folder.names[path.name] = node
            made.parts.append((folder, path.name, node))
            folder.changes.append(made)

    def sync_dir(self, path: Path) -> None:
        folder = self.find(path)
        folder.certain_names = dict(folder.names)
        for change in folder.changes:
            # A rename is one act: it survives in both folders.
            for other, name, node in change.parts:
                if other is not folder and change in other.changes:
                    _set(other.certain_names, name, node)
                    other.changes.remove(change)
        folder.changes.clear()

    def leave(self, target: Path, chance: random.Random | None, *, all_: bool) -> None:
        """Put what is left into a folder: the certain part, all, or by chance."""
        self._leave(self.top, target, chance, all_, set())

    def _leave(
        self,
        node: Node,
        target: Path,
        chance: random.Random | None,
        all_: bool,  # noqa: FBT001  # the inner half of `leave`
        drawn: set[int],
    ) -> None:
        target.mkdir()
        names = dict(node.certain_names)
        for change in node.changes:
            if id(change) not in drawn:
                drawn.add(id(change))
                change.survives = all_ or (chance is not None and chance.random() < 0.5)
            if change.survives:
                for folder, name, found in change.parts:
                    if folder is node:
                        _set(names, name, found)
        for name, child in names.items():
            if child.folder:
                self._leave(child, target / name, chance, all_, drawn)
            elif all_:
                (target / name).write_bytes(child.seen)
            else:
                (target / name).write_bytes(torn(child, chance))


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def torn(node: Node, chance: random.Random | None) -> bytes:
    """Give what is left of a file: what was synced, and chance parts of the rest."""
    if chance is None or node.certain == node.seen:
        return node.certain
    longest = max(len(node.certain), len(node.seen))
    old = node.certain.ljust(longest, b"\x00")
    new = node.seen.ljust(longest, b"\x00")
    parts = [
        (new if chance.random() < 0.5 else old)[at : at + SECTOR]
        for at in range(0, longest, SECTOR)
    ]
    shortest = min(len(node.certain), len(node.seen))
    return b"".join(parts)[: chance.randint(shortest, longest)]


Step: TypeAlias = Callable[[Model], None]


class Recorded(msgspec.Struct):
    """The steps so far, and what was promised before each: events, and the epoch."""

    steps: list[tuple[Step, tuple[int, int]]] = []
    promised: tuple[int, int] = (0, 0)

    def add(self, step: Step) -> None:
        self.steps.append((step, self.promised))


class RecordingFiles(Files):
    """A real disk whose steps are recorded; `forget` names one that is left out."""

    def __init__(self, record: Recorded, forget: str = "") -> None:
        self.record = record
        self.forget = forget
        self.failing = False

    def create(self, path: Path) -> File:
        file = RecordingFile(self, path, super().create(path).descriptor)

        def step(model: Model, number: int = file.number) -> None:
            model.opened[number] = node = Node(folder=False)
            model.change((path, node))

        self.record.add(step)
        return file

    def open(self, path: Path) -> File:
        file = RecordingFile(self, path, super().open(path).descriptor)

        def step(model: Model, number: int = file.number) -> None:
            model.opened[number] = model.find(path)

        self.record.add(step)
        return file

    def make_dir(self, path: Path) -> None:
        super().make_dir(path)
        self.record.add(lambda model: model.change((path, Node(folder=True))))

    def sync_dir(self, path: Path) -> None:
        super().sync_dir(path)
        if self.forget != "sync_dir":
            self.record.add(lambda model: model.sync_dir(path))

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        self.record.add(lambda model: model.change((old, None), (new, model.find(old))))

    def remove(self, path: Path) -> None:
        if self.exists(path):
            self.record.add(lambda model: model.change((path, None)))
        super().remove(path)

    def remove_dir(self, path: Path) -> bool:
        removed = super().remove_dir(path)
        if removed:
            self.record.add(lambda model: model.change((path, None)))
        return removed


class RecordingFile(File):
    def __init__(self, files: RecordingFiles, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self.number = len(files.record.steps)
        self._files = files

    def append(self, data: bytes) -> None:
        super().append(data)

        def step(model: Model) -> None:
            model.opened[self.number].seen += data

        self._files.record.add(step)

    def truncate(self, length: int) -> None:
        super().truncate(length)

        def step(model: Model) -> None:
            node = model.opened[self.number]
            node.seen = node.seen[:length]

        self._files.record.add(step)

    def sync(self) -> None:
        if self._files.failing:
            raise OSError(errno.EIO, "the disk fails")
        super().sync()

        def step(model: Model) -> None:
            node = model.opened[self.number]
            node.certain = node.seen

        if self._files.forget != "sync":
            self._files.record.add(step)


async def work(folder: Path, record: Recorded, forget: str = "") -> None:
    """Let a store make a session, write groups and blobs, and claim it again.

    The last write of each claim fails after its bytes have left.
    """
    last = 0
    for token in (ONE, TWO):
        files = RecordingFiles(record, forget)
        async with ak.JsonlStore(folder, files=files) as store:
            claim = await store.claim("s", token=token, create=last == 0)
            last = claim.last_seq
            record.promised = (last, claim.epoch)
            for size in (3, 1, 7):
                written = [event(last + n) for n in range(1, size + 1)]
                await store.write([ak.Append(claim, written)])
                last += size
                record.promised = (last, claim.epoch)
            files.failing = True
            with pytest.raises(ak.StorageError):
                await store.write([ak.Append(claim, [event(last + 1)])])


async def check_left(folder: Path, acknowledged: int, epoch: int) -> None:
    """Open what was left: all that was promised is there, and it can go on."""
    async with ak.JsonlStore(folder) as store:
        listed = [info.last_seq for info in await store.sessions()]
        try:
            claim = await store.claim("s", token=TWO, create=not any(listed))
        except ak.StorageError as error:
            raise AssertionError(f"it does not open: {error}") from error
        assert claim.last_seq >= acknowledged, "an acknowledged event is lost"
        assert claim.epoch > epoch or not acknowledged, "an epoch is lost"
        following = [event(claim.last_seq + 1), event(claim.last_seq + 2)]
        await store.write([ak.Append(claim, following)])
    async with ak.JsonlStore(folder) as store:
        try:
            found = await read_all(store, "s")
        except ak.StorageError as error:
            raise AssertionError(f"it cannot be read: {error}") from error
        assert found == [event(n) for n in range(1, claim.last_seq + 3)]


async def cut_everywhere(tmp_path: Path, forget: str, seeds: int) -> int:
    """Cut the power after each step; give the number of states that were checked."""
    record = Recorded()
    await work(tmp_path / "work", record, forget)
    checked = 0
    for cut in range(len(record.steps) + 1):
        promised = record.steps[cut][1] if cut < len(record.steps) else record.promised
        for seed in range(-2, seeds):
            model = Model(tmp_path)
            for step, _ in record.steps[:cut]:
                step(model)
            chance = random.Random(f"{cut} {seed}") if seed >= 0 else None  # noqa: S311  # a seed, not a secret
            target = tmp_path / f"left-{cut}-{seed}"
            model.leave(target, chance, all_=seed == -1)
            try:
                await check_left(target / "work", *promised)
            except AssertionError as error:
                error.add_note(f"power cut after step {cut}, seed {seed}")
                raise
            checked += 1
    return checked


@pytest.mark.clause("D2b", "D4")
async def test_a_power_loss_after_any_step_loses_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """Each step, with nothing unsynced left, with all of it, and with chance parts."""
    assert await cut_everywhere(tmp_path, "", seeds=2) > 150


@pytest.mark.clause("D2b")
@pytest.mark.parametrize("forget", ["sync", "sync_dir"])
async def test_a_store_that_does_not_sync_is_found_out(
    tmp_path: Path, forget: str
) -> None:
    """A killed process loses nothing without a sync: only this shows a missing one."""
    with pytest.raises(AssertionError, match=r"lost|not open|cannot be read"):
        await cut_everywhere(tmp_path, forget, seeds=1)
