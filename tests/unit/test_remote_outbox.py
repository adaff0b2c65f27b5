"""Lines on their way to a program that reads them when it likes."""

from __future__ import annotations

import trio
import trio.testing

from agentkernel.bridges.subagents.outbox import Outbox


async def test_what_is_offered_is_left_out_when_too_much_waits_and_what_is_put_is_not() -> (
    None
):
    """Refusals of a flood stay within a bound; the stop behind them gets through."""
    writing, reading = trio.testing.memory_stream_one_way_pair()
    outbox = Outbox(writing)
    for _ in range(1000):
        outbox.offer(b"no\n")
    line = outbox.put(b"stop\n")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        await line.done.wait()
        nursery.cancel_scope.cancel()
    assert await reading.receive_some() == b"no\n" * 256 + b"stop\n"


async def test_a_line_is_whole_or_not_there_and_none_is_waited_for_after_the_end() -> (
    None
):
    """A withdrawn line is skipped; one that is under way is not; the end frees all."""
    writing, reading = trio.testing.lockstep_stream_one_way_pair()
    outbox = Outbox(writing)
    first, second, third = (outbox.put(data) for data in (b"1\n", b"2\n", b"3\n"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        await trio.testing.wait_all_tasks_blocked()
        first.withdraw()
        second.withdraw()
        assert (first.begun, second.begun) == (True, False)
        assert await reading.receive_some() == b"1\n"
        await trio.testing.wait_all_tasks_blocked()
        assert third.begun
        fourth = outbox.put(b"4\n")
        nursery.cancel_scope.cancel()
    assert third.done.is_set()
    assert fourth.done.is_set()
    assert outbox.put(b"5\n").done.is_set()
