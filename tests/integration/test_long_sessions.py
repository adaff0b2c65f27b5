"""A session of a hundred thousand events: resumed, read along, forked, exported.

Nothing here looks at the clock. What is bounded is memory: the log is never held as a
whole, and what a resume keeps grows with the conversation, not with its chunks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.crashing_kernel import make_store

ROOT = Path(__file__).parents[2]
CHUNKS = 41
PER_TURN = CHUNKS + 9
BATCH = 2000
MEGABYTE = 1 << 20
# What stays in memory of a session that is open: its newest events.
TAIL = 2048


def turn(number: int) -> Iterator[ak.Fact]:
    """One turn of fifty events, nearly all of them chunks."""
    message = ak.UserMessage(f"m{number}", (ak.TextBlock(f"question {number}"),))
    words = [f"word-{number}-{n} " for n in range(CHUNKS)]
    yield ak.InboxSpliced("next_turn", inserted=(message,))
    yield ak.TurnStarted(number)
    yield ak.InboxSpliced("next_turn", removed=(message.id,), outcome="claimed")
    yield ak.StepStarted(number, 1)
    yield ak.MessageEntered(message)
    for word in words:
        yield ak.ChunkStreamed(number, 1, 1, ak.TextChunk(word))
    answer = ak.AssistantMessage((ak.TextBlock("".join(words)),))
    yield ak.AssistantReplied(number, 1, answer)
    yield ak.StepEnded(number, 1)
    yield ak.TurnEnded(number, ak.Ending("completed"))
    if number == 1:
        return
    # Fifty with the one that the header takes from the first turn.
    yield ak.InboxSpliced("next_turn")


def facts(turns: int) -> Iterator[ak.Fact]:
    yield ak.SessionHeader(1, {"model": "m"})
    for number in range(1, turns + 1):
        yield from turn(number)


async def fill(store: ak.SessionStore, events: int) -> None:
    """Put a session of that many events into a store."""
    claim = await store.claim("long", token="filler", create=True)  # noqa: S106  # no secret, a holder's name
    numbers = count(1)
    batch: list[ak.SessionEvent] = []
    for fact in facts(events // PER_TURN):
        number = next(numbers)
        batch.append(ak.SessionEvent(number, float(number), fact))
        if len(batch) == BATCH:
            await store.write([ak.Append(claim, batch)])
            batch = []
    if batch:
        await store.write([ak.Append(claim, batch)])
    await store.release(claim)


class Memory:
    """What Python has allocated since this was made; `MEGABYTE`s."""

    def __init__(self) -> None:
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()

    @property
    def held(self) -> float:
        return (tracemalloc.get_traced_memory()[0] - self._before) / MEGABYTE

    @property
    def peak(self) -> float:
        return (tracemalloc.get_traced_memory()[1] - self._before) / MEGABYTE


@contextmanager
def traced() -> Generator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def size_of_segments(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


async def check_long(kind: str, folder: Path, events: int) -> None:
    """Resume, read along, fork and read a session; nothing of it is held as a whole."""
    messages = 2 * (events // PER_TURN)
    # What the conversation costs, and a page or two of events.
    room = 2 + messages / 1000
    async with make_store(kind, folder) as store:
        await fill(store, events)
    # A claim of the JSONL store reads the segment that nobody has sealed.
    segment = size_of_segments(folder) / MEGABYTE
    async with ak.open_kernel(make_store(kind, folder), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["an answer"]))
        with traced():
            memory = Memory()
            agent = (await kernel.resume("long")).agent
            assert agent.session.last_seq == events
            assert len(agent.session.messages) == messages
            assert memory.held < room
            assert memory.peak < room + segment
            memory = Memory()
            seen = 0
            async with agent.session.subscribe(follow=False) as items:
                async for item in items:
                    assert isinstance(item, ak.SessionEvent)
                    seen += 1
                    assert item.seq == seen
            assert seen == events
            assert memory.peak < 2
            memory = Memory()
            fork = (await kernel.fork("long", "fork", at=events // 2)).agent
            assert fork.session.last_seq >= events // 2
            assert memory.peak < room + 2
        outcome = await agent.outcome(agent.followup("one more").id)
        assert outcome.kind == "completed"
        assert len(agent.session.events) <= TAIL
    await check_whole(kind, folder, events)


async def check_whole(kind: str, folder: Path, events: int) -> None:
    """Read both sessions by the rules of logs, page by page."""
    async with make_store(kind, folder) as store:
        for name, least in (("long", events), ("fork", events // 2)):
            found: list[ak.SessionEvent] = []
            while page := await store.read(name, after=len(found)):
                found += page
            assert len(found) > least - 1
            check_log(found)


def export(kind: str, folder: Path, target: Path) -> float:
    """Export the session by the command line; give the most memory it had, in MB."""
    store = folder / ("jsonl" if kind == "jsonl" else "agents.db")
    with target.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "agentkernel.cli", "sessions", "export"),
                *("long", "--store", f"jsonl:{store}" if kind == "jsonl" else store),
            ],
            stdout=output,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss / 1024


@pytest.mark.clause("L2", "D5a", "I3a")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_long_session_is_resumed_read_and_forked_page_by_page(
    tmp_path: Path, kind: str
) -> None:
    """Ten thousand events; the sweep below has ten times as many."""
    await check_long(kind, tmp_path, 10_000)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_hundred_thousand_events_are_resumed_read_and_forked(
    tmp_path: Path, kind: str
) -> None:
    """The bounds are those of the short one: only the conversation counts."""
    await check_long(kind, tmp_path, 100_000)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_an_export_of_a_hundred_thousand_events_holds_a_page_of_them(
    tmp_path: Path, kind: str
) -> None:
    """The command line needs no more memory for it than for a hundredth of it."""

    async def make(folder: Path, events: int) -> None:
        async with make_store(kind, folder) as store:
            await fill(store, events)

    used: list[float] = []
    for events in (1_000, 100_000):
        folder = tmp_path / str(events)
        folder.mkdir()
        trio.run(make, folder, events)
        target = folder / "exported"
        used.append(export(kind, folder, target))
        with target.open("rb") as lines:
            assert sum(1 for _ in lines) == events
    assert used[1] < used[0] + 24
