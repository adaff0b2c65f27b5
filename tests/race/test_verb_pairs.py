"""Two verbs in any order, one at every point of a story and the other close behind it.

Stops behind stops are in `test_cancel_everywhere`. Here the verbs that add and change
input meet the stops, and each other, and every run is checked as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

import pytest

import agentkernel as ak
from agentkernel.testing import (
    Act,
    Point,
    Scenario,
    ScriptedModel,
    Stage,
    Sweep,
    cancel_and_keep,
    cancel_broadly,
    cancel_everywhere,
    dispose,
)
from tests.race import scenarios
from tests.race.scenarios import SCENARIOS


def followup(stage: Stage) -> None:
    stage.send("another turn")


def steer(stage: Stage) -> None:
    stage.send("another way", verb="steer")


def inject(stage: Stage) -> None:
    stage.send("by the way", verb="inject")


def notice(stage: Stage) -> None:
    stage.send("something has ended", verb="notice")


def wake(stage: Stage) -> None:
    if not stage.ended and list(_pending(stage)):
        stage.agent.wake()
        stage.woken = True


def withdraw(stage: Stage) -> None:
    """Take the youngest of what waits out of the queue."""
    if not stage.ended and (pending := list(_pending(stage))):
        stage.agent.inbox.remove(pending[-1])
        stage.kept = tuple(kept for kept in stage.kept if kept != pending[-1])


def reorder(stage: Stage) -> None:
    """Move the youngest of what waits to the front, as a steering message."""
    if not stage.ended and (pending := list(_pending(stage))):
        stage.agent.inbox.move(pending[-1], 0, queue="next_step")


def _pending(stage: Stage) -> Iterator[str]:
    inbox = stage.agent.inbox
    return (message.id for message in (*inbox.next_step, *inbox.next_turn))


ADDING: tuple[Act, ...] = (followup, steer, inject, notice)
VERBS: tuple[Act, ...] = (
    *ADDING,
    wake,
    withdraw,
    reorder,
    cancel_broadly,
    cancel_and_keep,
    dispose,
)
STOPS = (cancel_broadly, cancel_and_keep, dispose)
# Pairs of two stops are in the sweeps of stops.
PAIRS = [p for p in product(VERBS, VERBS) if not set(p) <= set(STOPS)]
QUICK: list[tuple[Scenario, Act, Act]] = [
    (scenarios.steering, cancel_and_keep, steer),
    (scenarios.steering, steer, cancel_broadly),
    (scenarios.two_followups, cancel_and_keep, wake),
    (scenarios.two_followups, cancel_broadly, inject),
    (scenarios.two_followups, reorder, cancel_and_keep),
    (scenarios.two_followups, withdraw, followup),
    (scenarios.tool_round_trip, notice, cancel_broadly),
    (scenarios.maintenance, followup, cancel_and_keep),
    (scenarios.plain_turn, followup, dispose),
    (scenarios.plain_turn, dispose, steer),
]


def names(value: object) -> str:
    return getattr(value, "__name__", str(value))


def shown(sweep: Sweep, what: str) -> Sweep:
    """Show how much was seen: a sweep that sees one order has tried nothing."""
    print(f"{what}: {sweep.runs} runs, {len(sweep.orders)} orders of events")  # noqa: T201 - for people
    assert len(sweep.orders) > 5
    return sweep


@pytest.mark.clause("C6b", "C7b", "I1c", "I2b")
@pytest.mark.parametrize(("story", "first", "second"), QUICK, ids=names)
def test_a_verb_behind_another_breaks_nothing(
    story: Scenario, first: Act, second: Act
) -> None:
    """At each append and notification of the story, and at the next point behind it."""
    sweep = cancel_everywhere(
        story, first, then=second, within=1, at=("append", "notification"), seeds=[11]
    )
    shown(sweep, f"{names(story)}, {names(first)} then {names(second)}")
    assert sweep.second_acts > sweep.runs / 2


@pytest.mark.long
@pytest.mark.parametrize("story", SCENARIOS, ids=names)
def test_no_pair_of_verbs_breaks_a_story(story: Scenario) -> None:
    """A third of the pairs for each story, so that each pair meets several stories.

    At every append; the second verb comes at the next point of each kind.
    """
    total: set[tuple[str, ...]] = set()
    runs = 0
    for first, second in PAIRS[SCENARIOS.index(story) % 3 :: 3]:
        if story is scenarios.failing_store and dispose in {first, second}:
            continue  # whoever ends an agent whose store fails is told of a loss
        sweep = cancel_everywhere(
            story, first, then=second, within=1, at=("append",), seeds=[12]
        )
        total |= sweep.orders
        runs += sweep.runs
    print(f"{names(story)}: {runs} runs, {len(total)} orders of events")  # noqa: T201 - for people
    assert len(total) > 100


async def with_a_planted_fault(stage: Stage) -> None:
    """A story that breaks if it is steered while the model answers."""
    await stage.start(ScriptedModel(["one ", "two"], default=["more"]))
    stage.send("go")
    await stage.settle()
    assert [f for f in stage.agent.session.messages if isinstance(f, ak.UserMessage)]
    if "another way" in [
        event.data.message.text
        for event in stage.agent.session.events
        if isinstance(event.data, ak.MessageEntered)
    ]:
        turns = [e for e in stage.agent.session.events if e.type == "turn/start"]
        assert len(turns) == 2, "the planted fault"


def test_a_failure_is_played_again_from_what_it_prints() -> None:
    """Its note names the seed, the point and the acts: enough for that one run."""
    with pytest.raises(AssertionError, match="planted") as caught:
        cancel_everywhere(with_a_planted_fault, steer, seeds=[5])
    [note] = [n for n in caught.value.__notes__ if "seed" in n]
    found = re.search(
        r"seed (\d+), steer at (task-step|append|notification) (\d+)", note
    )
    assert found is not None, note
    seed, kind, number = found.groups()
    assert kind in {"task-step", "append", "notification"}
    point = Point(kind, int(number))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # looked at above
    with pytest.raises(AssertionError, match="planted") as again:
        cancel_everywhere(with_a_planted_fault, steer, seeds=[int(seed)], at=point)
    assert note in again.value.__notes__
