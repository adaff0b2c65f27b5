"""A session of 100,000 events: resume, replay to a subscriber, fork, export."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import agentkernel as ak

from .measure import Figures, Row, Sizes
from .models import Answers
from .turns import turns

__all__ = ["length"]

_PAGE = 1000
_ROUNDS = 3
Work: TypeAlias = Callable[[], Awaitable[object]]


class Costs(NamedTuple):
    """What one piece of work took: CPU time an event, and megabytes in all."""

    cpu: Figures
    kept: float
    peak: float


async def length(sizes: Sizes) -> Sequence[Row]:
    events = await _history(sizes.events)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        stores = {
            "memory": ak.MemoryStore(),
            "JSONL": ak.JsonlStore(Path(folder, "jsonl")),
            "SQLite": ak.SqliteStore(Path(folder, "agents.db")),
        }
        for name, store in stores.items():
            async with store:
                await _write(store, events)
                rows += await _rows(name, store, len(events))
    return rows


async def _history(count: int) -> Sequence[ak.SessionEvent]:
    """Let an agent live until its log is that long, its last turn whole."""
    store = ak.MemoryStore()
    async with store, ak.open_kernel(store) as kernel:
        kernel.models.register("fake", Answers())
        async with kernel.open("long", model="fake") as agent:
            while agent.session.last_seq < count:
                await turns(agent, 1)
        events: list[ak.SessionEvent] = []
        while page := await store.read("long", after=len(events), limit=_PAGE):
            events += page
    return events


async def _write(store: ak.SessionStore, events: Sequence[ak.SessionEvent]) -> None:
    claim = await store.claim("long", token="history", create=True)  # noqa: S106  # a name, not a secret
    for start in range(0, len(events), _PAGE):
        await store.write([ak.Append(claim, events[start : start + _PAGE])])
    await store.release(claim)


async def _rows(name: str, store: ak.SessionStore, count: int) -> Sequence[Row]:
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("fake", Answers())

        async def resume() -> ak.AgentHandle:
            return await kernel.resume("long", model="fake")

        label = f"{count:,} events, {name}"
        rows = [_row("resume", label, await _costs(resume, count), reach="5 us")]
        async with kernel.open("long", model="fake") as agent:
            rows += [
                _row("subscribe", label, await _costs(lambda: _replay(agent), count)),
                _row("fork", label, await _costs(lambda: kernel.fork(agent), count)),
                _row("export", label, await _costs(lambda: _export(store), count)),
            ]
    return rows


def _row(verb: str, name: str, costs: Costs, *, reach: str = "") -> Row:
    memory = f"{costs.kept:.1f} MB kept, {costs.peak:.1f} MB at the most"
    work = f"{verb}, {name}, for each"
    return Row(work, "us", costs.cpu, reach=reach, note=memory)


async def _costs(work: Work, count: int) -> Costs:
    """Measure the CPU time of one event, and once the memory of them all."""
    cpu: list[float] = []
    for _ in range(_ROUNDS):
        start = time.process_time()
        made = await work()
        cpu.append((time.process_time() - start) / count * 1e6)
        await _dispose(made)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    made = await work()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    await _dispose(made)
    return Costs(Figures(cpu), (kept - before) / 1e6, (peak - before) / 1e6)


async def _dispose(made: object) -> None:
    if isinstance(made, ak.AgentHandle):
        await made.dispose()


async def _replay(agent: ak.Agent) -> None:
    """Read the whole session along."""
    async with agent.session.subscribe(follow=False) as events:
        async for _ in events:
            pass


async def _export(store: ak.SessionStore) -> None:
    """Write it as lines, as `agentkernel sessions export` does."""
    after = 0
    while page := await store.read("long", after=after, limit=_PAGE):
        for event in page:
            ak.encode_event(event)
        after = page[-1].seq
