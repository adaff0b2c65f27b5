"""The signal of a turn and the vocabulary of who stops one, as values."""

from __future__ import annotations

import pytest
import trio
from trio.testing import assert_checkpoints, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel._signal import SignalSource


@pytest.mark.clause("C1a", "C1c")
def test_causes_are_two_frozen_values() -> None:
    """A closed vocabulary: equal by content, and nothing can be changed on it."""
    assert (ak.USER.kind, ak.PARENT.kind) == ("user", "parent")
    assert ak.CancelCause("user") == ak.USER
    assert ak.USER != ak.PARENT
    assert ak.CancelCause.__struct_fields__ == ("kind",)
    assert "parent" in str(ak.CancelCause.__annotations__["kind"])
    with pytest.raises(AttributeError):
        ak.USER.kind = "parent"  # type: ignore[misc]  # it is frozen  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.clause("C1b")
def test_no_validator_stands_behind_the_types() -> None:
    """The boundary is typed: an untyped caller gets what it made, and no fallback."""
    assert ak.CancelCause("weather").kind == "weather"  # type: ignore[arg-type, comparison-overlap]  # that is the point  # pyright: ignore[reportArgumentType]


@pytest.mark.clause("C2c")
def test_first_reason_stays() -> None:
    """Firing again changes nothing."""
    source = SignalSource()
    signal = ak.TurnSignal(source)
    assert (signal.cancelled, signal.reason) == (False, None)
    source.fire(ak.StopReason("parent"))
    source.fire(ak.StopReason("user"))
    assert signal.cancelled
    assert signal.reason == ak.StopReason("parent")


@pytest.mark.clause("C2b")
@pytest.mark.parametrize("before", [False, True])
async def test_wait_returns_the_reason_and_is_a_checkpoint(*, before: bool) -> None:
    """Whether the signal fired before the wait or during it."""
    source = SignalSource()
    signal = ak.TurnSignal(source)
    got: list[ak.StopReason] = []

    async def waits() -> None:
        with assert_checkpoints():
            got.append(await signal.wait())

    if before:
        source.fire(ak.StopReason("user"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        source.fire(ak.StopReason("user"))
    assert got == [ak.StopReason("user")] * 2


@pytest.mark.clause("C11a")
def test_code_without_checkpoints_can_ask_to_be_interrupted() -> None:
    """It raises once the turn was stopped, and not before."""
    source = SignalSource()
    signal = ak.TurnSignal(source)
    signal.raise_if_cancelled()
    source.fire(ak.StopReason("user"))
    with pytest.raises(ak.TurnCancelled):
        signal.raise_if_cancelled()


@pytest.mark.clause("C5b")
def test_observer_is_handed_over_once_in_order_unless_it_was_unregistered() -> None:
    """One that comes too late is called at once."""
    source = SignalSource()
    signal = ak.TurnSignal(source)
    called: list[str] = []
    signal.on_cancel(lambda reason: called.append(f"first {reason.kind}"))
    unregister = signal.on_cancel(lambda _: called.append("gone"))
    signal.on_cancel(lambda _: called.append("second"))
    unregister()
    unregister()
    reason = ak.StopReason("user")
    source.fire(reason)
    assert called == []
    for observer in source.take_observers():
        observer(reason)
    assert source.take_observers() == ()
    signal.on_cancel(lambda _: called.append("late"))()
    assert called == ["first user", "second", "late"]


@pytest.mark.clause("C2a")
async def test_signal_made_without_a_source_never_fires() -> None:
    """For a test of a tool or a model outside of any turn."""
    signal = ak.TurnSignal()
    with trio.move_on_after(0) as scope:
        await signal.wait()
    assert scope.cancelled_caught
    assert not signal.cancelled


@pytest.mark.clause("C2d")
def test_signal_offers_no_way_to_fire_it() -> None:
    """Who holds a signal can look, wait and observe."""
    public = {name for name in dir(ak.TurnSignal) if not name.startswith("_")}
    assert public == {"cancelled", "reason", "wait", "raise_if_cancelled", "on_cancel"}
    with pytest.raises(AttributeError):
        ak.TurnSignal().reason = ak.StopReason("user")  # type: ignore[misc]  # it is read-only  # pyright: ignore[reportAttributeAccessIssue]
