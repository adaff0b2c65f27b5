"""Races that task order alone decides: each must go both ways, and be right each way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import pytest
import trio

import agentkernel as ak
from agentkernel.testing import (
    ScriptedModel,
    check_log,
    mark,
    run_under_schedules,
)

SEEDS = range(60)
T = TypeVar("T")


def both_ways(race: Callable[[int], Awaitable[T]]) -> Counter[T]:
    """Let a race begin a few passes earlier or later, until task order decides it."""
    seen: Counter[T] = Counter()
    decided = False
    for passes in range(1, 14):
        runs = run_under_schedules(partial(race, passes), seeds=range(15))
        decided = decided or len(runs.count()) > 1
        seen += runs.count()
    assert decided, f"task order never made a difference: {seen}"
    return seen


async def pause(passes: int) -> None:
    for _ in range(passes):
        await trio.lowlevel.checkpoint()


@pytest.mark.clause("I1c", "I2a")
@pytest.mark.case("INB-06")
def test_a_steer_that_races_the_end_of_a_turn_is_in_exactly_one() -> None:
    """Late by a hair it is a turn of its own, never lost and never taken twice."""

    async def race(start: int) -> str:
        model = ScriptedModel(["one"], default=["more"])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("m", model)
            async with kernel.open("s", model="m") as agent:
                agent.on(ak.Appended, lambda p: mark(p.event.type))

                async def steer(passes: int) -> None:
                    await pause(passes)
                    mark("steer")
                    agent.steer(f"left after {passes}")

                agent.followup("go")
                async with trio.open_nursery() as nursery:
                    for passes in range(start, start + 3):
                        nursery.start_soon(steer, passes)
                await agent.when_idle()
                report = check_log(agent.session.events)
        assert set(report.messages.values()) == {"entered"}
        assert sum(len(ids) for ids in report.entered.values()) == 4
        return " ".join(str(len(ids)) for ids in report.entered.values())

    assert len(both_ways(race)) > 1


@pytest.mark.clause("C3c", "C12a", "C12b")
@pytest.mark.case("CAN-13")
def test_a_stop_that_races_the_end_hits_that_turn_or_nothing() -> None:
    """The receipt says which, the ending agrees, and the next turn is untouched."""

    async def race(start: int) -> bool:
        model = ScriptedModel(["one"], default=["more"])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("m", model)
            async with kernel.open("s", model="m") as agent:
                receipts: list[ak.CancelReceipt] = []

                async def stop(passes: int) -> None:
                    await pause(passes)
                    mark("stop")
                    receipts.append(agent.cancel(turn=1))

                agent.on(ak.Appended, lambda p: mark(p.event.type))
                first = agent.followup("go")
                async with trio.open_nursery() as nursery:
                    for passes in (start, start, start + 1):
                        nursery.start_soon(stop, passes)
                outcome = await agent.outcome(first.id)
                after = await agent.outcome(agent.followup("again").id)
        assert after.kind == "completed"
        hit = [r for r in receipts if r.effective]
        assert len(hit) == (outcome.kind == "aborted")
        assert all(r.turn == 1 for r in hit)
        return bool(hit)

    assert set(both_ways(race)) == {True, False}


@pytest.mark.clause("C6e", "I4c")
@pytest.mark.case("LIFE-03")
def test_a_send_that_races_disposal_runs_waits_or_is_refused() -> None:
    """Accepted means kept: what did not run is found by a resume, nothing is lost."""

    async def race() -> str:
        store = ak.MemoryStore()
        said: list[str] = []
        async with ak.open_kernel(store, strict=True) as kernel:
            kernel.models.register("m", ScriptedModel(default=["ok"]))
            handle = await kernel.create("s", model="m")

            async def send(passes: int) -> None:
                await pause(passes)
                mark("send")
                try:
                    said.append(handle.agent.followup(f"after {passes}").id)
                except ak.AgentDisposedError:
                    said.append("refused")

            async def dispose() -> None:
                await pause(6)
                mark("dispose")
                await handle.dispose()

            async with trio.open_nursery() as nursery:
                for passes in (1, 5, 6, 7, 20):
                    nursery.start_soon(send, passes)
                nursery.start_soon(dispose)
            events = await store.read("s")
            report = check_log(events)
            accepted = [i for i in said if i != "refused"]
            assert sorted(report.messages) == sorted(accepted)
            resumed = (await kernel.resume("s")).agent
            parked = [m.id for m in resumed.inbox.next_turn]
            entered = [i for i in accepted if report.messages[i] == "entered"]
            assert sorted(parked + entered) == sorted(accepted)
        return f"{len(entered)} entered, {len(parked)} parked, {said.count('refused')}"

    runs = run_under_schedules(race, seeds=SEEDS)
    assert len(runs.count()) > 2, runs.count()


@pytest.mark.clause("D5b")
def test_of_two_kernels_that_want_a_session_one_gets_it() -> None:
    """Whoever is first; the other is refused, and the log has one header."""

    async def race() -> str:
        store = ak.MemoryStore()
        won: list[str] = []

        async def open_one(name: str) -> None:
            async with ak.open_kernel(store, strict=True) as kernel:
                kernel.models.register("m", ScriptedModel(default=["ok"]))
                try:
                    handle = await kernel.create("s", model="m")
                except ak.SessionExistsError:
                    return
                won.append(name)
                async with handle as agent, agent.ask("mine?"):
                    pass

        async with store, trio.open_nursery() as nursery:
            nursery.start_soon(open_one, "left")
            nursery.start_soon(open_one, "right")
        check_log(await store.read("s"))
        [winner] = won
        return winner

    assert set(run_under_schedules(race, seeds=SEEDS).count()) == {"left", "right"}
