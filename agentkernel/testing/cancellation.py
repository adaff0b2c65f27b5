"""The same scenario again and again, acted upon at every point of its way.

`cancel_everywhere` first plays a scenario undisturbed and counts its points: the
task steps of the whole Trio run, the events appended, the other notifications. It
then plays the scenario once for each point and acts there: it cancels, disposes,
cancels the scope around the kernel, or does what the test says. After each run it
checks the log, quiescence, receipts, outcomes, the requests that the model was sent,
and that the stored session is what memory held and can be gone on with.

Task order is seeded, so that all runs of one seed are the same up to the act. Trio
drops an instrument that raises and goes on; so nothing here may raise in one, and
each run asserts that its act has happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, Literal, TypeAlias, final

import msgspec
import trio
from trio.abc import Instrument

import agentkernel as ak

from .hang import hang_guard
from .log_check import LogReport
from .schedules import run_seeded
from .settled import check_idle, check_session, check_stopped
from .stage import Scenario, Stage

__all__ = [
    "Act",
    "Point",
    "PointKind",
    "Sweep",
    "cancel_and_keep",
    "cancel_broadly",
    "cancel_everywhere",
    "cancel_scope",
    "cancel_then_send",
    "dispose",
    "play",
]

Act: TypeAlias = Callable[[Stage], None]
PointKind: TypeAlias = Literal["task-step", "append", "notification"]
KINDS: Final[tuple[PointKind, ...]] = ("task-step", "append", "notification")
# Virtual seconds after which a scenario has hung.
_ALARM: Final = 1_000_000.0


def cancel_broadly(stage: Stage) -> None:
    """Act: `agent.cancel()`."""
    stage.cancel()


def cancel_and_keep(stage: Stage) -> None:
    """Act: `agent.cancel(keep_inbox=True)`."""
    stage.cancel(keep_inbox=True)


def cancel_then_send(stage: Stage) -> None:
    """Act: `agent.cancel()`, and a followup in the same instant."""
    stage.cancel()
    stage.send("sent after the stop")


def dispose(stage: Stage) -> None:
    """Act: `handle.dispose()`, in a task of its own."""
    stage.dispose()


def cancel_scope(stage: Stage) -> None:
    """Act: cancel the scope around the kernel's block."""
    stage.cancel_scope()


class Point(msgspec.Struct, frozen=True):
    """Where to act: at the n-th of its kind, counted from the agent's creation."""

    kind: PointKind
    n: int

    def __str__(self) -> str:
        return f"{self.kind} {self.n}"


@final
class Sweep:
    """What a sweep has seen.

    Attributes:
      runs: how often the scenario was played and acted upon.
      points: how many points of each kind there were, all seeds together.
      endings: how often each ending of a turn was found.
      fates: how often each fate of a message was found.
      orders: the different orders of events and notifications that were seen.
      second_acts: how many runs got as far as their second act.

    """

    def __init__(self) -> None:
        self.runs = 0
        self.points: Counter[PointKind] = Counter()
        self.endings: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()
        self.orders: set[tuple[str, ...]] = set()
        self.second_acts = 0

    def __repr__(self) -> str:
        endings = ", ".join(f"{kind} {n}" for kind, n in sorted(self.endings.items()))
        return (
            f"<Sweep: {self.runs} runs, {len(self.orders)} orders of events; {endings}>"
        )


def cancel_everywhere(
    scenario: Scenario,
    act: Act = cancel_broadly,
    *,
    then: Act | None = None,
    within: int = 3,
    seeds: Iterable[int] = (0,),
    at: Sequence[PointKind] | Point = KINDS,
) -> Sweep:
    """Play a scenario once for each of its points, and act upon it there.

    Call it from a plain function: it starts Trio itself, under a virtual clock.

    Args:
      scenario: what is played.
      act: what is done at the point; it must not wait.
      then: a second act, at each of the next `within` points behind the first one:
        pairs, which find what one act alone does not.
      within: how far behind the first the second act may come.
      seeds: task orders; every point is tried under each.
      at: the kinds of points, or one point alone, to do a failure again.

    Returns:
      What the sweep has seen; look at `endings` to know that it hit something.

    Raises:
      AssertionError: if a run breaks a rule, hangs, or is not acted upon; a note
        names the scenario, the act, the seed and the point.

    """
    sweep = Sweep()
    for seed in seeds:
        if isinstance(at, Point):
            points: Iterable[Point] = (at,)
        else:
            counts = _played(scenario, seed, _Injection(), sweep, "undisturbed").counts
            sweep.points.update({kind: counts[kind] for kind in at})
            points = (Point(k, n + 1) for k in at for n in range(counts[k]))
        for point in points:
            for injection in _injections(point, act, then, within):
                what = f"{_name(act)} at {point}"
                if injection.then is not None:
                    what += f", then {_name(injection.then)} {injection.delay}"
                _played(scenario, seed, injection, sweep, what)
                sweep.runs += 1
                sweep.second_acts += injection.acted_again
    if then is not None and not sweep.second_acts:
        raise AssertionError("no run got as far as its second act")
    return sweep


def play(scenario: Scenario, *, seeds: Iterable[int] = (0,)) -> Sweep:
    """Play a scenario undisturbed, under each seed, with the same checks."""
    sweep = Sweep()
    for seed in seeds:
        _played(scenario, seed, _Injection(), sweep, "undisturbed")
        sweep.runs += 1
    return sweep


def _injections(
    point: Point, act: Act, then: Act | None, within: int
) -> Iterator[_Injection]:
    if then is None:
        yield _Injection(point, act)
        return
    for kind in KINDS:
        for n in range(1, within + 1):
            yield _Injection(point, act, then, Point(kind, n))


@final
class _Injection(Instrument):
    """Counts the points of one run, and acts at the chosen one or two.

    It acts between two task steps, or inside an observer: from there every verb may
    be called. What an act raises is kept, never raised in the instrument.
    """

    def __init__(
        self,
        point: Point | None = None,
        act: Act | None = None,
        then: Act | None = None,
        delay: Point | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.point = point
        self.then = then
        self.delay = delay
        self.acted = False
        self.acted_again = False
        self.failure: Exception | None = None
        self._act = act
        self._stage: Stage | None = None
        self._second: tuple[str, int] | None = None

    def watch(self, stage: Stage) -> None:
        """Count on this stage from its start on."""
        self._stage = stage
        stage.on_point = self._reached

    def rest(self) -> None:
        """Count no more: the kernel's block has been left."""
        self._stage = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count a task step; called by Trio between two of them."""
        del task
        if self._stage is not None and self._stage.started:
            self._reached("task-step")

    def _reached(self, kind: str) -> None:
        self.counts[kind] += 1
        here = (kind, self.counts[kind])
        point = self.point
        if point is not None and not self.acted and here == (point.kind, point.n):
            self.acted = True
            if self.delay is not None:
                start = self.counts[self.delay.kind]
                self._second = (self.delay.kind, start + self.delay.n)
            self._do(self._act)
        elif here == self._second:
            self._second = None
            self.acted_again = True
            self._do(self.then)

    def _do(self, act: Act | None) -> None:
        if act is None or self._stage is None:
            return
        try:
            act(self._stage)
        except Exception as error:  # noqa: BLE001 - Trio drops an instrument that raises; the run reports it
            self.failure = self.failure or error


def _played(
    scenario: Scenario, seed: int, injection: _Injection, sweep: Sweep, what: str
) -> _Injection:
    """Play one run and check it; add what it has seen to the sweep."""
    try:
        with hang_guard():
            report, order = run_seeded(
                partial(_run, scenario, injection), seed, instruments=[injection]
            )
    except BaseException as error:
        error.add_note(f"scenario {_name(scenario)}, seed {seed}, {what}")
        raise
    sweep.endings.update(e.kind for e in report.turns.values() if e is not None)
    sweep.fates.update(report.messages.values())
    sweep.orders.add(order)
    return injection


async def _run(scenario: Scenario, injection: _Injection) -> LogReport:
    """Play one run to its end, then look at everything that is left of it."""
    living = trio.lowlevel.current_statistics().tasks_living
    hung = False
    failure: Exception | None = None
    over = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        stack = AsyncExitStack()
        stage = Stage(nursery, stack)

        async def alarm() -> None:
            nonlocal hung
            with over:
                await trio.sleep(_ALARM)
                hung = True
                stage.open_all()
                stage.cancel_scope()

        nursery.start_soon(alarm)
        injection.watch(stage)
        try:
            with stage.scope:
                async with stack:
                    await _perform(scenario, stage)
        except Exception as error:  # noqa: BLE001 - raised below, outside of the nursery that would wrap it
            failure = error
        finally:
            injection.rest()
            over.cancel()
    failure = injection.failure or failure
    if failure is not None:
        raise failure
    _require(not hung, f"the scenario hung for {_ALARM:g} virtual seconds")
    _require(
        injection.point is None or injection.acted,
        f"there was no {injection.point}: nothing was done",
    )
    left = trio.lowlevel.current_statistics().tasks_living - living
    _require(not left, f"{left} tasks are left of the kernel")
    report = await check_session(stage)
    check_stopped(stage, report)
    return report


async def _perform(scenario: Scenario, stage: Stage) -> None:
    """Play the scenario, open what it held, and check that all has settled."""
    try:
        await scenario(stage)
    except (ak.AgentDisposedError, ak.KernelClosedError):
        if not stage.ended:
            raise
    finally:
        stage.open_all()
    await check_idle(stage)
    # The kernel's block ends next; what is done from here on meets its end.
    stage.ended = True


def _require(kept: bool, what: str) -> None:  # noqa: FBT001 - it reads as an assertion
    if not kept:
        raise AssertionError(what)


def _name(fn: object) -> str:
    return getattr(fn, "__name__", repr(fn))
