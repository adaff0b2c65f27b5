"""Seeded task orders: one seed is one order, many seeds are many."""

from __future__ import annotations

import pytest
import trio

from agentkernel.testing import check_schedules, mark, run_under_schedules


async def race() -> str:
    """Two tasks want to be first; who is, depends on the task order alone."""
    winners: list[str] = []

    async def run(name: str) -> None:
        await trio.lowlevel.checkpoint()
        mark(name)
        winners.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "left")
        nursery.start_soon(run, "right")
    return winners[0]


def test_trio_still_has_a_seeded_scheduler() -> None:
    """The private names that the kit relies on; a new Trio may have moved them."""
    check_schedules()


def test_a_race_goes_both_ways_under_enough_seeds() -> None:
    """The point of it all: a test can count the outcomes and demand each of them."""
    runs = run_under_schedules(race, seeds=range(20))
    assert set(runs.count()) == {"left", "right"}
    assert runs.distinct_orders == 2
    assert runs.orders[0] in {("left", "right"), ("right", "left")}


def test_a_seed_gives_the_same_order_again() -> None:
    """What failed under a seed can be looked at under that seed."""
    first, again = (run_under_schedules(race, seeds=range(9)) for _ in range(2))
    assert first.orders == again.orders
    assert first.outcomes == again.outcomes


def test_a_failure_names_its_seed() -> None:
    """Without the seed in the failure nobody could replay it."""

    async def left_must_win() -> None:
        assert await race() == "left"

    with pytest.raises(AssertionError) as caught:
        run_under_schedules(left_must_win, seeds=range(20))
    [note] = [n for n in caught.value.__notes__ if "seed" in n]
    seed = int(note.split("seeds=[")[1].split("]")[0])
    with pytest.raises(AssertionError):
        run_under_schedules(left_must_win, seeds=[seed])


def test_time_is_virtual() -> None:
    """A scenario that waits for an hour is over at once, and an hour has passed."""

    async def wait() -> float:
        before = trio.current_time()
        await trio.sleep(3600)
        return trio.current_time() - before

    assert run_under_schedules(wait, seeds=[0]).outcomes == {0: 3600}


def test_a_mark_outside_of_a_run_is_nothing() -> None:
    """Code with marks in it can be run without the kit."""
    mark("nobody listens")
