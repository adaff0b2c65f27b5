"""What a power loss leaves of a whole session, and how the kernel goes on from it.

The JSONL store's steps on the disk are recorded while an agent plays the story of the
crash tests; each cut of that record leaves a disk on which only what was synced is
certain (`tests.integration.test_store_power`). From there the session is resumed: it
has every event that somebody had been told is durable, it is whole, and the next
request is one that providers accept.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import agentkernel as ak
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.crashing_kernel import story
from tests.integration.test_store_power import Model, Recorded, RecordingFiles
from tests.race.parts import invalidity


async def recorded(folder: Path, forget: str = "") -> tuple[Recorded, list[ak.Fact]]:
    """Play the story once; give the steps of the disk, and all that happened."""
    record = Recorded(steps=[])

    def ack(line: str) -> None:
        if line.startswith("event "):
            record.promised = (int(line.split()[1]), 1)

    files = RecordingFiles(record, forget)
    await story(ak.JsonlStore(folder, files=files), ack, lambda _call: None)
    async with ak.JsonlStore(folder) as store:
        events = await store.read("s", limit=10_000)
    return record, [event.data for event in events]


async def check_left(
    store: ak.SessionStore, promised: int, whole: list[ak.Fact]
) -> int:
    """Resume what is left, and go on; give the number of events that were found."""
    model = ScriptedModel(default=["ok"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", model)
        try:
            agent = (await kernel.resume("s")).agent
        except ak.SessionNotFoundError:
            assert not promised, "an acknowledged event is lost"
            return 0
        except ak.StorageError as error:
            raise AssertionError(f"it does not open: {error}") from error
        await agent.session.flush()
        found = [e.data for e in await agent.session.read(limit=10_000)]
        assert found[:promised] == whole[:promised], "an acknowledged event is lost"
        check_log(found)
        outcome = await agent.outcome(agent.followup("afterwards").id)
        assert outcome.kind == "completed"
        assert invalidity(model.requests[-1].messages) is None
        check_log(await agent.session.read(limit=10_000))
    return len(found)


async def cut_everywhere(tmp_path: Path, seeds: int, forget: str = "") -> Counter[int]:
    """Cut the power after each step; count the states by how much was found."""
    record, whole = await recorded(tmp_path / "work", forget)
    found: Counter[int] = Counter()
    for cut in range(1, len(record.steps) + 1):
        after = record.steps[cut : cut + 1]
        promised = after[0][1] if after else record.promised
        for seed in range(-2, seeds):
            model = Model(tmp_path)
            for step, _ in record.steps[:cut]:
                step(model)
            chance = random.Random(f"{cut} {seed}") if seed >= 0 else None  # noqa: S311  # a seed, not a secret
            target = tmp_path / f"left-{cut}-{seed}"
            model.leave(target, chance, all_=seed == -1)
            try:
                store = ak.JsonlStore(target / "work")
                found[await check_left(store, promised[0], whole)] += 1
            except BaseException as error:
                error.add_note(f"power cut after step {cut}, seed {seed}")
                raise
    return found


@pytest.mark.clause("D2b", "D4", "D5a")
async def test_a_session_survives_a_power_loss_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    """After each step; with nothing unsynced left, all of it, and chance parts."""
    found = await cut_everywhere(tmp_path, seeds=1)
    assert found.total() > 100
    assert found[0]
    assert len(found) > 10


@pytest.mark.long
async def test_a_session_survives_many_ways_to_lose_power(tmp_path: Path) -> None:
    """Each step of the same story, with twelve ways to tear what was not synced."""
    assert (await cut_everywhere(tmp_path, seeds=12)).total() > 500


@pytest.mark.clause("D2b")
@pytest.mark.parametrize("forget", ["sync", "sync_dir"])
async def test_a_kernel_on_a_store_that_does_not_sync_is_found_out(
    tmp_path: Path, forget: str
) -> None:
    """The proof above sees a missing sync, of a file or of a folder's names."""
    with pytest.raises(AssertionError, match=r"lost|not open|cannot be read"):
        await cut_everywhere(tmp_path, seeds=1, forget=forget)
