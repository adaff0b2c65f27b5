"""The holder of one turn: a scope and a signal that are stopped as one."""

from __future__ import annotations

import pytest
import trio
import trio.testing

import agentkernel as ak
from agentkernel._loop.cancellation import TurnCancellation


@pytest.mark.clause("C2a", "C2b")
async def test_stop_sets_the_reason_and_cancels_the_scope_in_one_act() -> None:
    """It owns one scope and one signal, and stops both without a checkpoint."""
    holder, scope = TurnCancellation(), trio.CancelScope()
    holder.own(scope)
    assert (holder.reason, scope.cancel_called) == (None, False)
    with trio.testing.assert_no_checkpoints():
        assert holder.stop("user")
    assert holder.reason == ak.StopReason("user")
    assert holder.signal.reason is holder.reason
    assert scope.cancel_called


@pytest.mark.clause("C2a", "C3b")
async def test_scope_that_a_stopped_holder_takes_over_is_cancelled_at_once() -> None:
    """A stop between the claim and the opening of the nursery still ends the turn."""
    holder, scope = TurnCancellation(), trio.CancelScope()
    assert holder.stop("user")
    with trio.testing.assert_no_checkpoints():
        holder.own(scope)
    assert holder.scope is scope
    assert scope.cancel_called


@pytest.mark.clause("C2b")
async def test_reason_is_there_and_waiters_are_released_before_the_scope_is_cancelled() -> (
    None
):
    """Whoever is cancelled can already read why."""
    holder = TurnCancellation()
    released: list[str] = []

    async def waits(
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with trio.CancelScope() as scope:
            holder.own(scope)
            task_status.started()
            released.append((await holder.signal.wait()).kind)
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled:
                released.append("cancelled")
                raise

    async with trio.open_nursery() as nursery:
        await nursery.start(waits)
        await trio.testing.wait_all_tasks_blocked()
        holder.stop("parent")
    assert released == ["parent", "cancelled"]


@pytest.mark.clause("C2c")
async def test_first_stop_wins_and_says_so(mock_clock: trio.testing.MockClock) -> None:
    """Nothing of the first changes: neither the reason, nor its time."""
    holder = TurnCancellation()
    assert holder.stop("parent")
    at = holder.stopped_at
    mock_clock.jump(1)
    assert not holder.stop("disposed")
    assert holder.reason == ak.StopReason("parent")
    assert holder.stopped_at == at


@pytest.mark.clause("C4b", "C2a")
async def test_each_holder_has_a_signal_of_its_own() -> None:
    """Stopping one says nothing to the other."""
    first, second = TurnCancellation(), TurnCancellation()
    scope = trio.CancelScope()
    second.own(scope)
    first.stop("user")
    assert first.signal is not second.signal
    assert not second.signal.cancelled
    assert not scope.cancel_called


@pytest.mark.clause("C5b")
async def test_observers_are_left_to_the_caller_and_handed_over_once() -> None:
    """What they raise is reported elsewhere, so the holder does not call them."""
    holder = TurnCancellation()
    called: list[str] = []
    holder.signal.on_cancel(lambda reason: called.append(reason.kind))
    holder.stop("user")
    assert called == []
    assert len(holder.take_observers()) == 1
    assert holder.take_observers() == ()
