"""Every story, acted upon at each of its task steps, appends and notifications.

Each run is checked as a whole: the log, quiescence, receipts, outcomes, the requests
that went out, and the session as it is stored and gone on with.
"""

from __future__ import annotations

from itertools import product

import pytest

from agentkernel.testing import (
    Act,
    Scenario,
    Sweep,
    cancel_and_keep,
    cancel_broadly,
    cancel_everywhere,
    cancel_scope,
    cancel_then_send,
    dispose,
)
from tests.race import scenarios
from tests.race.scenarios import SCENARIOS

ACTS: tuple[Act, ...] = (
    cancel_broadly,
    cancel_and_keep,
    cancel_then_send,
    dispose,
    cancel_scope,
)
# Whoever ends an agent whose store fails is told that its last events are lost.
LOSSY = {
    (scenarios.failing_store, dispose),
    (scenarios.failing_store, cancel_scope),
}
CASES = [case for case in product(SCENARIOS, ACTS) if case not in LOSSY]
IDS = [f"{story.__name__}-{act.__name__}" for story, act in CASES]


def seen(story: Scenario, act: Act, sweep: Sweep) -> None:
    """Show what was seen, and fail if the act hit nothing: then nothing was tried."""
    print(f"{story} {act}: {sweep}")  # noqa: T201 - the number of orders, for people
    stopped = "disposed" if act in {dispose, cancel_scope} else "aborted"
    assert sweep.endings[stopped]
    assert sweep.endings["completed"]
    assert len(sweep.orders) > 5


@pytest.mark.clause("C3b", "C3c", "C10a", "C12a", "I2b", "T3c")
@pytest.mark.case("PAIR-01", "PART-06", "CAN-01", "CAN-10", "INB-03", "LIFE-03")
@pytest.mark.parametrize(("story", "act"), CASES, ids=IDS)
def test_nothing_breaks_wherever_it_is_stopped(story: Scenario, act: Act) -> None:
    """One stop, at every point: no call unanswered, no message lost, no end twice."""
    seen(story, act, cancel_everywhere(story, act, seeds=[ACTS.index(act)]))


@pytest.mark.clause("C7a")
@pytest.mark.parametrize("story", [scenarios.two_followups, scenarios.steering])
def test_a_stop_that_keeps_the_inbox_drops_nothing_anywhere(story: Scenario) -> None:
    """The same points with a broad stop do drop, so there was something to lose."""
    assert not cancel_everywhere(story, cancel_and_keep, seeds=[3]).fates["discarded"]
    assert cancel_everywhere(story, cancel_broadly, seeds=[3]).fates["discarded"]


@pytest.mark.clause("C2c", "C10a", "C12c")
@pytest.mark.parametrize(
    ("act", "then"),
    [
        (cancel_broadly, dispose),
        (cancel_and_keep, cancel_then_send),
        (cancel_then_send, cancel_broadly),
        (dispose, cancel_then_send),
    ],
)
@pytest.mark.parametrize(
    "story", [scenarios.plain_turn, scenarios.two_followups, scenarios.maintenance]
)
def test_two_stops_close_to_each_other_break_nothing(
    story: Scenario, act: Act, then: Act
) -> None:
    """What a first stop sets in motion is the state that few tests ever reach."""
    sweep = cancel_everywhere(story, act, then=then, within=1)
    assert sweep.second_acts > sweep.runs / 2


@pytest.mark.long
@pytest.mark.parametrize(("story", "act"), CASES, ids=IDS)
def test_nothing_breaks_under_many_task_orders(story: Scenario, act: Act) -> None:
    """The same sweep under six further seeds."""
    seen(story, act, cancel_everywhere(story, act, seeds=range(100, 106)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "then"),
    [
        (cancel_broadly, cancel_broadly),
        (cancel_broadly, cancel_scope),
        (cancel_and_keep, cancel_broadly),
        (cancel_and_keep, dispose),
        (cancel_then_send, cancel_and_keep),
        (cancel_then_send, cancel_then_send),
        (dispose, cancel_broadly),
        (cancel_scope, cancel_then_send),
    ],
)
@pytest.mark.parametrize("story", SCENARIOS)
def test_no_pair_of_stops_breaks_anything(story: Scenario, act: Act, then: Act) -> None:
    """One behind another, at the next point of each kind."""
    if not {(story, act), (story, then)} & LOSSY:
        cancel_everywhere(story, act, then=then, within=1, seeds=[7])
