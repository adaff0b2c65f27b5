"""Turns on SQLite, each on the disk before the agent is idle."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import agentkernel as ak

from .measure import Figures, Row, Section, Sizes, against, alternate, timed
from .models import Answers
from .shell import bare_turn
from .turns import turns

__all__ = ["durable_turn"]


async def durable_turn(sizes: Sizes) -> Sequence[Row]:
    """Against the bare turn that writes the same rows in one transaction itself."""
    count = sizes.durable_turns
    waited: dict[str, list[float]] = {"kernel": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        store = ak.SqliteStore(Path(folder, "agents.db"))
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("fake", Answers())
            async with kernel.open("durable", model="fake") as agent:
                await turns(agent, 2)
                rows = await _rows_of_a_turn(agent)
                database = _database(Path(folder, "bare.db"))
                taken, bare = await alternate(
                    sizes.rounds,
                    _on_the_clock(
                        waited["kernel"],
                        count,
                        lambda: timed(count, lambda: turns(agent, count)),
                    ),
                    _on_the_clock(
                        waited["bare"],
                        count,
                        lambda: timed(count, lambda: _bare(database, rows, count)),
                    ),
                )
                database.close()
    ratio = against(taken, bare)
    work = "turn of three text chunks, durable on SQLite"
    cpu = Row(work, "us", taken, "bare turn and transaction", bare, ratio, "2x")
    wall, bare_wall = Figures(waited["kernel"][1:]), Figures(waited["bare"][1:])
    ratio = against(wall, bare_wall)
    clock = Row("the same, on the clock", "us", wall, "bare", bare_wall, ratio)
    return [cpu, clock]


def _on_the_clock(into: list[float], count: int, section: Section) -> Section:
    """Note what a section takes on the clock as well: most of it is the disk."""

    async def run() -> float:
        start = time.perf_counter()
        value = await section()
        into.append((time.perf_counter() - start) / count * 1e6)
        return value

    return run


async def _rows_of_a_turn(agent: ak.Agent) -> Sequence[bytes]:
    """What one turn left behind: from the end of the turn before to its own."""
    ends = [e.seq for e in agent.session.events if isinstance(e.data, ak.TurnEnded)]
    events = await agent.session.read(after=ends[-2])
    return [ak.encode_event(event)[0] for event in events]


def _database(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE event (session INTEGER NOT NULL, seq INTEGER NOT NULL, "
        "line BLOB NOT NULL, PRIMARY KEY (session, seq)) WITHOUT ROWID"
    )
    return database


async def _bare(
    database: sqlite3.Connection, rows: Sequence[bytes], count: int
) -> None:
    (seq,) = database.execute("SELECT coalesce(max(seq), 0) FROM event").fetchone()
    for _ in range(count):
        await bare_turn()
        database.execute("BEGIN IMMEDIATE")
        database.executemany(
            "INSERT INTO event VALUES (1, ?, ?)", list(enumerate(rows, seq + 1))
        )
        database.execute("COMMIT")
        seq += len(rows)
