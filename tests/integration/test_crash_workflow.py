"""A workflow in a real process that is killed anywhere, on both durable stores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import agentkernel as ak
from agentkernel.bridges.workflow.record import Record
from agentkernel.testing import check_log
from tests.integration.crashing_kernel import make_store
from tests.integration.crashing_workflow import EXPECTED, run_study
from tests.race.parts import stored

ROOT = Path(__file__).parents[2]
EVERYWHERE = ("step", "call", "done", "inside")
POINTS = {"jsonl": (*EVERYWHERE, "half"), "sqlite": EVERYWHERE}


def run_points(kind: str, folder: Path, points: list[str]) -> None:
    program = [sys.executable, "-m", "tests.integration.crashing_workflow"]
    subprocess.run(
        [*program, kind, str(folder), *points],
        cwd=ROOT,
        check=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def choose(kind: str, folder: Path, wanted: int) -> list[str]:
    """Spread points evenly over everything that was counted in one whole run."""
    run_points(kind, folder, ["count"])
    lines = (folder / "count" / "counts").read_text("utf-8").splitlines()
    counts = dict(line.split() for line in lines)
    chosen: list[str] = []
    share = wanted // len(POINTS[kind]) + 1
    for name in POINTS[kind]:
        last = int(counts[name]) * 9 // 10
        step = max(last / share, 1.0)
        chosen += [f"{name}:{1 + int(n * step)}" for n in range(min(share, last))]
    return chosen


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.exists() else []


async def look(store: ak.SessionStore) -> tuple[set[str], bool]:
    """List what was asked of agents whose end is on disk, with an answer that counts.

    Returns:
      The prompts, and whether one of them has no result in the record.

    """
    ended: set[str] = set()
    record = Record()
    agents: dict[str, str] = {}
    async with store:
        for info in await store.sessions():
            session_id = info.session_id
            events = await stored(store, session_id)
            record.take(events if session_id == "w" else ())
            facts = [event.data for event in events]
            entered = [f for f in facts if isinstance(f, ak.MessageEntered)]
            if not entered:
                continue
            agents[session_id] = entered[0].message.text.splitlines()[0]
            endings = [f.reason.kind for f in facts if isinstance(f, ak.TurnEnded)]
            if endings == ["completed"]:
                ended.add(session_id)
    recorded = {report.child for report in record.known.values()}
    assert set(agents) <= recorded.union(record.open.values()), (
        "an agent works that no record knows"
    )
    return {agents[name] for name in ended}, bool(ended - recorded)


async def kill_and_resume(kind: str, folder: Path, points: list[str]) -> Counter[str]:
    """Kill the workflow at each point, look at what is left, and go on with it."""
    run_points(kind, folder, points)
    seen: Counter[str] = Counter()
    for point in points:
        left = folder / point.replace(":", "-")
        seen["survived"] += (left / "counts").exists()
        asked: list[str] = []
        got: list[str] = []
        try:
            ended, unrecorded = await look(make_store(kind, left))
            seen["unrecorded"] += unrecorded
            assert set(lines(left / "got")) <= ended
            value = await run_study(make_store(kind, left), asked.append, got.append)
            assert value == EXPECTED
            assert not ended.intersection(asked), "what had ended was done again"
            async with make_store(kind, left) as store:
                check_log(await stored(store, "w"))
        except BaseException as error:
            error.add_note(f"killed at {point}")
            raise
        seen[f"{len(ended)} had ended"] += 1
    print(f"{kind}: {len(points)} points; {dict(seen)}")  # noqa: T201 - for people
    assert len(points) - seen["survived"] >= len(points) * 0.8
    return seen


@pytest.mark.clause("D5a")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_an_agent_whose_end_is_on_disk_is_not_run_again(
    tmp_path: Path, kind: str
) -> None:
    """Killed at a sample of points, those between an agent's end and its note included.

    Once the end of an agent's turn was durable, its work was done; that the record did
    not hold its result yet used to have the agent run again.
    """
    seen = await kill_and_resume(kind, tmp_path, choose(kind, tmp_path, 30))
    assert seen["0 had ended"], seen
    assert seen["2 had ended"], seen
    assert seen["unrecorded"], seen


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_two_hundred_kills_run_nothing_twice(tmp_path: Path, kind: str) -> None:
    """Two hundred for each store."""
    seen = await kill_and_resume(kind, tmp_path, choose(kind, tmp_path, 200))
    assert seen["unrecorded"] >= 5, seen
