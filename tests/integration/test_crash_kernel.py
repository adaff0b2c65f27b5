"""The whole kernel in a real process that is killed anywhere, on both durable stores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import final

import pytest

import agentkernel as ak
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.crashing_kernel import Effect, digest, make_store
from tests.race.parts import invalidity, texts

ROOT = Path(__file__).parents[2]
EVERYWHERE = ("step", "call", "done", "inside")
POINTS = {"jsonl": (*EVERYWHERE, "half"), "sqlite": EVERYWHERE}
ORDER = ["one", "steered", "rides", "two", "three", "five", "four", "later"]


def run_points(kind: str, folder: Path, points: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    program = [sys.executable, "-m", "tests.integration.crashing_kernel"]
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
    counts = dict(
        line.split() for line in (folder / "count" / "counts").read_text().splitlines()
    )
    chosen: list[str] = []
    share = wanted // len(POINTS[kind]) + 1
    for name in POINTS[kind]:
        # The last points of a run may not be there in another one.
        last = int(counts[name]) * 9 // 10
        step = max(last / share, 1.0)
        chosen += [f"{name}:{1 + int(n * step)}" for n in range(min(share, last))]
    return chosen


@final
class Told:
    """What the dead process was told to be durable, and what its tools did."""

    def __init__(self, folder: Path) -> None:
        self.events: dict[int, str] = {}
        self.sent: list[str] = []
        self.outcomes: dict[str, str] = {}
        self.effects = (folder / "effects").read_text("utf-8").split()
        for line in (folder / "acks").read_text("utf-8").splitlines():
            match line.split():
                case ["event", seq, found]:
                    self.events[int(seq)] = found
                case ["sent", name]:
                    self.sent.append(name)
                case ["outcome", name, kind]:
                    self.outcomes[name] = kind
                case _:
                    raise AssertionError(line)


async def check_survived(kind: str, folder: Path) -> Counter[str]:
    """Resume what a killed process left, go on with it, and resume it again."""
    told = Told(folder)
    effects = list(told.effects)
    model = ScriptedModel(default=["ok"])
    tools = [Effect(name, effects.append) for name in ("mark", "order")]
    seen: Counter[str] = Counter()
    async with ak.open_kernel(make_store(kind, folder), strict=True) as kernel:
        kernel.models.register("m", model)
        try:
            handle = await kernel.resume("s", tools=tools)
        except ak.SessionNotFoundError:
            assert not told.events
            assert not told.sent
            return Counter(["nothing was there"])
        agent = handle.agent
        await agent.session.flush()
        found = await agent.session.read(limit=10_000)
        check_told(found, told, seen)
        for name, ending in told.outcomes.items():
            assert (await agent.outcome(name)).kind == ending
        agent.wake()
        await agent.when_idle()
        outcome = await agent.outcome(agent.followup("afterwards").id)
        assert outcome.kind == "completed"
        assert effects == told.effects, "a call ran again"
        shown = model.requests[-1].messages
        assert invalidity(shown) is None
        names = [text.split()[0] for text in texts(shown) if text]
        again = [name for name in names if name in ORDER]
        assert len(set(again)) == len(again)
        assert set(told.sent) <= set(again)
        await handle.dispose()
        before = await kernel.resume("s", tools=tools)
        assert len(await before.agent.session.read(limit=10_000)) == (
            before.agent.session.last_seq
        )
        check_log(await before.agent.session.read(limit=10_000))
    return seen


def check_told(
    found: Sequence[ak.SessionEvent], told: Told, seen: Counter[str]
) -> None:
    """Compare a repaired log with what was acknowledged before the crash."""
    report = check_log(found)
    for seq, expected in told.events.items():
        assert digest(found[seq - 1]) == expected, f"event {seq}"
    for name in told.sent:
        assert name in report.messages, f"{name} was acknowledged and is lost"
    results = {
        e.data.call_id: e.data.error
        for e in found
        if isinstance(e.data, ak.ToolReturned)
    }
    announced = [e.data.call_id for e in found if isinstance(e.data, ak.ToolCalled)]
    assert len(set(told.effects)) == len(told.effects)
    for call_id in told.effects:
        assert call_id in announced, f"{call_id} ran and was not announced"
    for call_id, error in results.items():
        code = "real" if error is None else error.code
        assert code in {"real", "TOOL_OUTCOME_UNKNOWN", "TOOL_NOT_STARTED"}
        assert (call_id in announced) == (code != "TOOL_NOT_STARTED")
        if code == "real":
            assert call_id in told.effects
        seen[code] += 1
    seen.update(e.kind for e in report.turns.values() if e is not None)
    seen.update(report.messages.values())


async def kill_and_resume(kind: str, folder: Path, points: list[str]) -> Counter[str]:
    run_points(kind, folder, points)
    seen: Counter[str] = Counter()
    for point in points:
        left = folder / point.replace(":", "-")
        seen["survived"] += (left / "counts").exists()
        try:
            seen += await check_survived(kind, left)
        except BaseException as error:
            error.add_note(f"killed at {point}")
            raise
    print(f"{kind}: {len(points)} points; {dict(seen)}")  # noqa: T201 - for people
    assert len(points) - seen["survived"] >= len(points) * 0.8
    return seen


@pytest.mark.clause("D2b", "D5a", "D5b", "I2b", "I4b", "T3b", "T3c")
@pytest.mark.case("STORE-01", "STORE-10", "PAIR-11")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_process_killed_at_any_point_loses_nothing_that_was_acknowledged(
    tmp_path: Path, kind: str
) -> None:
    """A sample of the points; every kind of point is in it.

    Acknowledged means: a `durable=True` reader saw the event, a flush of the message
    returned, or its outcome was there. Nothing of it is lost or changed, no call runs
    twice, a result is never made up, and the next request is one that providers take.
    """
    seen = await kill_and_resume(kind, tmp_path, choose(kind, tmp_path, 20))
    for expected in ("interrupted", "completed", "pending", "entered", "real"):
        assert seen[expected], seen


@pytest.mark.clause("D5a")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_resume_that_is_killed_is_resumed(tmp_path: Path, kind: str) -> None:
    """Killed inside a tool, and then at points of the repair, and behind it."""
    calls = "call:30" if kind == "jsonl" else "call:60"
    second = [f"step:{n}" for n in range(4, 60, 8)]
    second += [f"done:{n}" for n in range(3, 24, 4)]
    points = [f"{calls}+{other}" for other in second]
    seen = await kill_and_resume(kind, tmp_path, points)
    assert seen["interrupted"] >= len(points)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_two_hundred_kills_lose_nothing(tmp_path: Path, kind: str) -> None:
    """Two hundred for each store, with every fate of a call among them."""
    points = choose(kind, tmp_path, 260)
    seen = await kill_and_resume(kind, tmp_path, points)
    assert len(points) - seen["survived"] >= (200 if kind == "sqlite" else 170)
    assert seen["TOOL_OUTCOME_UNKNOWN"], seen
    assert seen["TOOL_NOT_STARTED"], seen
    assert seen["nothing was there"], seen
