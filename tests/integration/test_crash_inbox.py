"""Real processes, killed between taking a message and showing it to the model."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import agentkernel as ak
from agentkernel.testing import ScriptedModel
from tests.integration.crashing_agent import make_store
from tests.race.parts import invalidity, opened, places, stored, texts

ROOT = Path(__file__).parents[2]
SEED = 20


@pytest.mark.clause("I2b", "I3a", "I4b", "D5a", "D5b")
@pytest.mark.case("INB-08")
@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_message_survives_a_kill_between_its_claim_and_the_first_byte(
    tmp_path: Path, kind: str
) -> None:
    """Fifty points: afterwards it is pending, or in a turn marked interrupted.

    The dead owner's claim is taken over without asking, the rest of the queue is
    as it was, and what the user sent runs once.
    """
    points = sorted(random.Random(SEED).sample(range(1, 70), 50))  # noqa: S311  # a seed, no secret
    program = [sys.executable, "-m", "tests.integration.crashing_agent"]
    subprocess.run(  # noqa: ASYNC221 - the test has nothing else to do
        [*program, kind, str(tmp_path), *map(str, points)],
        cwd=ROOT,
        check=True,
        timeout=120,
    )
    seen: Counter[str] = Counter()
    for point in points:
        store = make_store(kind, tmp_path / str(point))
        async with store:
            before = places(await stored(store))
        model = ScriptedModel(default=["ok"])
        async with opened(
            model, store=make_store(kind, tmp_path / str(point))
        ) as agent:
            assert agent.status == "idle"
            now = places(await agent.session.read(limit=10_000))
            assert now["second"] == ["pending"]
            for name in ("rides", "first"):
                assert now[name] in (["pending"], ["entered"]), f"point {point}"
                if before[name] == ["entered"]:
                    assert now[name] == ["entered"]
            seen[f"{before['first'][0]} -> {now['first'][0]}"] += 1
            ends = [
                e.data.reason.kind
                for e in await agent.session.read(limit=10_000)
                if isinstance(e.data, ak.TurnEnded)
            ]
            started = before["first"] != ["pending"]
            assert ends == ["interrupted"] * started
            agent.wake()
            await agent.when_idle()
            shown = texts(model.requests[-1].messages)
            assert invalidity(model.requests[-1].messages) is None
            assert sorted(t for t in shown if t in {"rides", "first", "second"}) == [
                "first",
                "rides",
                "second",
            ]
    assert seen["claimed -> pending"], seen
    assert seen["pending -> pending"], seen
    assert seen["entered -> entered"], seen
