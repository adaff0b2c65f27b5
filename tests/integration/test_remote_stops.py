"""Stops of remote agents in their worst moments, and what ends a run like a stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from agentkernel.bridges.subagents import RemoteUpdate, Report, run_remote
from tests.integration.scripted_remote import (
    GUARD,
    methods,
    outcomes,
    run,
    scripted,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    """The file that the program writes what it is told to."""
    return tmp_path / "wire"


@pytest.mark.case("PROC-01")
def test_an_interrupt_ends_a_remote_that_says_nothing(
    tmp_path: Path, wire: Path
) -> None:
    """Ctrl-C in the main task is a stop by the protocol, and leaves as itself."""
    script = """
    import os, signal
    def prompted():
        os.kill(os.getppid(), signal.SIGINT)
    def cancelled():
        end("cancelled")
    """
    program = f"""
import sys, trio
sys.path.insert(0, {str(ROOT)!r})
from agentkernel.bridges.subagents import run_remote
from tests.integration.scripted_remote import Path, scripted
try:
    trio.run(run_remote, scripted(Path({str(wire)!r}), {script!r}), "go")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert done.stdout == "interrupted\n", done.stderr
    assert methods(wire)[-1] == "session/cancel"


class StopAt(trio.abc.Instrument):
    """Cancels a scope after so many task steps."""

    def __init__(self, steps: int, scope: trio.CancelScope) -> None:
        self.left = steps
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


async def test_a_stop_at_any_step_waits_for_an_answer_only_if_one_is_owed(
    wire: Path,
) -> None:
    """An agent answers a prompt that it was given, and knows of no other."""
    script = """
    def prompted():
        say("working")
        end()
    def cancelled():
        if prompt is not None:
            end("cancelled")
    """
    unprompted = prompted = 0
    steps, left = 0, 0
    while left <= 0:
        steps += 1
        await trio.Path(wire).unlink(missing_ok=True)
        scope = trio.CancelScope()
        stop = StopAt(steps, scope)
        trio.lowlevel.add_instrument(stop)
        with scope:
            await run(scripted(wire, script))
        trio.lowlevel.remove_instrument(stop)
        left = stop.left
        if "session/prompt" in methods(wire):
            prompted += 1
        else:
            unprompted += 1
            assert "session/cancel" not in methods(wire)
    assert unprompted
    assert prompted


async def test_a_stop_while_a_large_prompt_is_on_its_way_does_not_spoil_the_line(
    wire: Path, tmp_path: Path
) -> None:
    """The agent reads nothing for a while, and then two whole messages."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"""
    def opened():
        say("there")
        open({str(gate)!r}).read()
    def cancelled():
        end("cancelled")
    """
    there = trio.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def stop() -> None:
                await there.wait()
                # The pipe is full by then: nothing more happens.
                await trio.testing.wait_all_tasks_blocked(0.05)
                scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked(0.05)
                    await trio.to_thread.run_sync(gate.write_text, "on")

            def follow(_update: RemoteUpdate) -> None:
                there.set()

            nursery.start_soon(stop)
            await run(scripted(wire, script), "p" * 3_000_000, on_update=follow)
    assert scope.cancelled_caught
    assert methods(wire)[2:] == ["session/prompt", "session/cancel"]


async def test_a_remote_that_ends_by_itself_after_the_stop_has_done_its_work(
    wire: Path,
) -> None:
    """What was done was done: its last answer is not lost."""
    script = """
    def prompted():
        say("nearly ")
    def cancelled():
        say("done")
        end()
    """
    reports: list[Report] = []
    with trio.CancelScope() as scope:

        def follow(_update: RemoteUpdate) -> None:
            scope.cancel()

        reports.append(await run(scripted(wire, script), on_update=follow))
    assert [(r.ending, r.text) for r in reports] == [("completed", "nearly done")]


@pytest.mark.parametrize("where", ["on_update", "decide"])
async def test_what_a_function_raises_that_was_handed_in_leaves_as_itself(
    wire: Path, where: str
) -> None:
    """After a stop by the protocol, whose answer is waited for and no longer."""
    script = """
    def prompted():
        say("working")
        ask(7, ("allow_once",))
    def cancelled():
        end("cancelled")
    """

    async def decide(_what: str) -> bool:
        await trio.lowlevel.checkpoint()
        raise OSError("mine")

    def follow(_update: RemoteUpdate) -> None:
        if where == "on_update":
            raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        await run(scripted(wire, script, "ask"), decide=decide, on_update=follow)
    assert "session/cancel" in methods(wire)


@pytest.mark.clause("C11a")
async def test_a_yes_that_comes_in_the_moment_of_the_stop_is_not_used(
    wire: Path,
) -> None:
    """The stop came first; the remote does not do it."""
    script = """
    def prompted():
        ask(7, ("allow_once", "reject_once"))
    def cancelled():
        end("cancelled")
    """
    with trio.CancelScope() as scope:

        async def decide(_what: str) -> bool:
            await trio.lowlevel.checkpoint()
            scope.cancel()
            return True

        await run(scripted(wire, script, "ask"), decide=decide)
    assert scope.cancelled_caught
    assert outcomes(wire) == ["cancelled"]


async def test_a_stop_while_a_question_is_open_leaves_as_a_plain_cancellation(
    wire: Path,
) -> None:
    """Whoever writes `except trio.Cancelled` is told, and not handed a group."""
    script = """
    def prompted():
        ask(7, ("allow_once",))
    def cancelled():
        end("cancelled")
    """
    caught: list[BaseException] = []
    with trio.CancelScope() as scope:

        async def decide(_what: str) -> bool:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                scope.cancel()
            raise AssertionError

        try:
            await run_remote(scripted(wire, script, "ask"), "go", decide=decide)
        except BaseException as error:
            caught.append(error)
            raise
    assert [type(error) for error in caught] == [trio.Cancelled]
    assert outcomes(wire) == ["cancelled"]
