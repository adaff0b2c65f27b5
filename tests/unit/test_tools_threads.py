"""`FunctionTool` and threads: how a sync tool learns of a stop, and who waits for it.

Threads are real, so is the clock; they are held and released by events.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from agentkernel import (
    JsonObject,
    StopReason,
    TextBlock,
    ToolInvocation,
    ToolOutput,
    TurnCancelled,
    TurnSignal,
)
from agentkernel._signal import SignalSource
from agentkernel.tools import THREADS_PER_TOOL, FunctionTool, tool

if TYPE_CHECKING:
    from agentkernel._loop.agent import Agent


def invoke(
    made: FunctionTool, signal: TurnSignal | None = None, **arguments: object
) -> ToolInvocation:
    """A call as the kernel would make it, its arguments checked."""
    return ToolInvocation(
        agent=cast("Agent", None),
        signal=signal or TurnSignal(),
        turn=1,
        step=1,
        call_id="c1",
        name=made.spec.name,
        arguments=made.check(cast("JsonObject", arguments)),
    )


def text(output: ToolOutput) -> str:
    (block,) = output.content
    assert isinstance(block, TextBlock)
    return block.text


class Blocker:
    """A sync tool that blocks until it is released or learns of a stop."""

    def __init__(self) -> None:
        self.started = trio.Event()
        self.release = threading.Event()
        self.threads: list[threading.Thread] = []

    @contextmanager
    def open_at_the_end(self) -> Generator[None]:
        """Release the threads, also when the test fails: they are joined."""
        try:
            yield
        finally:
            self.release.set()

    def note_start(self) -> None:
        self.threads.append(threading.current_thread())
        trio.from_thread.run_sync(self.started.set)


@pytest.mark.case("CAN-08")
@pytest.mark.clause("C11b")
async def test_a_thread_learns_of_a_cancellation_by_asking_and_is_joined() -> None:
    """The call ends only after the thread has left the function."""
    block = Blocker()
    left: list[str] = []

    @tool
    def poll() -> None:
        block.note_start()
        try:
            while True:
                trio.from_thread.check_cancelled()
                block.release.wait(0.001)
        finally:
            left.append("left")

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll.run, invoke(poll))
            await block.started.wait()
            assert left == []
            nursery.cancel_scope.cancel()
    assert left == ["left"]


@pytest.mark.case("CAN-08", "TOOL-04")
async def test_a_thread_learns_of_its_own_limit_the_same_way() -> None:
    """`max_seconds` is a deadline like any other for the thread."""

    @tool(max_seconds=0.01)
    def poll() -> None:
        while True:
            trio.from_thread.check_cancelled()

    with trio.fail_after(30):
        output = await poll.run(invoke(poll))
    assert output.error is not None
    assert output.error.code == "TIMEOUT"


@pytest.mark.case("CAN-08")
@pytest.mark.clause("C11b")
async def test_a_thread_learns_of_a_stop_from_the_signal_it_was_given() -> None:
    """The kernel's stop sets the signal; a thread may look at it at any time."""
    block = Blocker()
    source = SignalSource()
    over = trio.Event()

    @tool
    def poll(call: ToolInvocation) -> None:
        block.note_start()
        while not block.release.is_set():
            call.signal.raise_if_cancelled()
            block.release.wait(0.001)

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                with pytest.raises(TurnCancelled):
                    await poll.run(invoke(poll, TurnSignal(source)))
                over.set()

            nursery.start_soon(run)
            with block.open_at_the_end():
                await block.started.wait()
                source.fire(StopReason("user"))
                await over.wait()


@pytest.mark.case("CAN-08")
@pytest.mark.clause("C11b", "T3c")
async def test_a_thread_that_ignores_a_stop_is_waited_for_and_its_value_kept() -> None:
    """It is never abandoned: the call goes on until the thread returns."""
    block = Blocker()
    outputs: list[ToolOutput] = []

    @tool
    def deaf() -> str:
        block.note_start()
        block.release.wait()
        return "late"

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:

            async def run() -> None:
                outputs.append(await deaf.run(invoke(deaf)))

            nursery.start_soon(run)
            with block.open_at_the_end():
                await block.started.wait()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await trio.testing.wait_all_tasks_blocked()
                assert outputs == []
    assert [text(output) for output in outputs] == ["late"]


@pytest.mark.case("CAN-08")
async def test_a_tool_whose_threads_all_block_does_not_hold_up_another_one() -> None:
    """Neither another tool nor anybody who uses the default threads."""
    block = Blocker()
    running = trio.Event()

    @tool
    def hog() -> None:
        trio.from_thread.run_sync(started.append, 1)
        if len(started) == THREADS_PER_TOOL:
            trio.from_thread.run_sync(running.set)
        block.release.wait()

    @tool
    def nimble() -> str:
        return "here"

    started: list[int] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(THREADS_PER_TOOL + 5):
                nursery.start_soon(hog.run, invoke(hog))
            with block.open_at_the_end():
                await running.wait()
                assert text(await nimble.run(invoke(nimble))) == "here"
                assert await trio.to_thread.run_sync(lambda: 1) == 1
                assert len(started) == THREADS_PER_TOOL
    assert len(started) == THREADS_PER_TOOL + 5


def test_one_tool_serves_several_trio_runs_even_at_the_same_time() -> None:
    """A tool of a module is shared by every kernel of the process."""

    @tool
    def here(n: int) -> int:
        return n

    async def many() -> None:
        async with trio.open_nursery() as nursery:
            for n in range(60):
                nursery.start_soon(here.run, invoke(here, n=n))

    threads = [threading.Thread(target=trio.run, args=(many,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trio.run(many)
