"""The verbs that touch the inbox: accept, wake, cancel; decisions that never wait.

Log first: a verb commits its fact, then changes the driver's state, then notifies;
durable events are delivered last, so that an observer finds all of it done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from trio.lowlevel import enable_ki_protection

from .._errors import MessageConflictError
from .._messages import UserMessage
from .._session.events import InboxSpliced, Queue
from .._signal import CancelCause, StopKind
from .cancellation import TurnCancellation
from .dispatch import initiator
from .inbox import MessageLike, as_message, discard_all, put_back, same_body
from .payload import CancelRequested

if TYPE_CHECKING:
    from .driver import Driver

__all__ = [
    "CancelCall",
    "CancelReceipt",
    "Sent",
    "accept",
    "cancel",
    "stop_holder",
    "wake",
]


class Sent(msgspec.Struct, frozen=True):
    """A message was accepted.

    Attributes:
      id: the message's id.
      seq: once `session.flush(seq)` returns, the acceptance survives a crash.
      duplicate: whether the session had accepted the same message before.

    """

    id: str
    seq: int
    duplicate: bool = False


class CancelReceipt(msgspec.Struct, frozen=True):
    """What a cancel did.

    Attributes:
      effective: whether it stopped, dropped or parked anything.
      turn: the turn that it stopped, None if no turn had started.
      dropped: ids that were discarded, claimed input first.
      kept: ids that are pending now, in the order in which they would be claimed.

    """

    effective: bool
    turn: int | None = None
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class CancelCall:
    """The cancel whose notification is going on; nested ones may widen it."""

    __slots__ = ("keep_inbox",)

    def __init__(self, *, keep_inbox: bool) -> None:
        self.keep_inbox: bool = keep_inbox


@enable_ki_protection
def accept(
    driver: Driver,
    message: MessageLike,
    queue: Queue,
    *,
    verb: str,
    passive: bool = False,
    parked: bool = False,
) -> Sent:
    """Accept a message into a queue, and wake unless it is passive or to be parked."""
    driver.refuse_if_closed(verb)
    body = as_message(message, driver.commons.make_id, passive=passive)
    record = driver.log.fold.messages.get(body.id)
    if record is not None:
        if not same_body(record.body, body):
            raise MessageConflictError(body.id)
        if record.state == "pending" and not (passive or parked):
            # Who sends again wants it run: it may be parked, by a stop or a restart.
            wake(driver)
        return Sent(body.id, driver.log.last_seq, duplicate=True)
    wakes = not (passive or parked) and driver.lifecycle == "live"
    latched = wakes and driver.converging
    if latched and body.kind == "user":
        queue = "next_turn"
    log = driver.log
    with log.holding:
        end = len(log.fold.inbox.queue(queue))
        seq = log.commit(InboxSpliced(queue, end, inserted=(body,)))
        started = False
        if latched:
            driver.latch.add(body.id)
        elif wakes:
            started = driver.want()
        driver.note_inserted(queue, body)
        if started:
            driver.start()
    driver.kick()
    return Sent(body.id, seq)


def wake(driver: Driver) -> bool:
    """Drain what is parked; true if that started or latched a drain."""
    driver.refuse_if_closed("wake")
    if driver.lifecycle != "live" or not driver.log.fold.inbox.has_work:
        return False
    if driver.converging:
        latched, driver.latch_wake = not driver.latch_wake, True
        return latched
    already = driver.wanted
    if driver.want():
        driver.start()
        return True
    return not already


@enable_ki_protection
def cancel(
    driver: Driver, cause: CancelCause, *, keep_inbox: bool, turn: int | None
) -> CancelReceipt:
    """Stop what runs and drop or park what waits; see `Agent.cancel`."""
    driver.commons.check_thread("cancel")
    if driver.log.closed or (turn is not None and turn != driver.stoppable_turn):
        return CancelReceipt(effective=False)
    if driver.cancelling is not None:
        if not keep_inbox:
            driver.cancelling.keep_inbox = False
        return CancelReceipt(effective=False)
    if not _can_cancel(driver, keep_inbox=keep_inbox):
        return CancelReceipt(effective=False)
    call = driver.cancelling = CancelCall(keep_inbox=keep_inbox)
    stopped: int | None = None
    dropped: tuple[UserMessage, ...] = ()
    with driver.log.holding:
        leaving = _ask(driver, cause, keep_inbox=keep_inbox)
        if call.keep_inbox:
            put_back(driver.log)
        else:
            dropped = discard_all(driver.log)
        kept = driver.log.fold.inbox.pending_ids
        driver.park()
        holder = driver.holder
        if holder is not None and holder.reason is None:
            stopped = driver.live_turn
            driver.converging = stopped is not None or driver.maintenance is not None
            try:
                stop_holder(driver, holder, cause.kind)
            except BaseException as error:  # noqa: ASYNC103, BLE001  # likewise, from the signal's observers
                leaving = error
    driver.kick()
    if dropped:
        driver.note_discarded(dropped)
    if leaving is not None:
        raise leaving
    return CancelReceipt(
        effective=True,
        turn=stopped,
        dropped=tuple(message.id for message in dropped),
        kept=kept,
    )


def _ask(
    driver: Driver, cause: CancelCause, *, keep_inbox: bool
) -> BaseException | None:
    """Notify `agent/cancel-requested`; return the exit that an observer asks for.

    Such an exit is no veto: it is raised when the stop has been made.
    """
    try:
        driver.dispatch.notify(CancelRequested, cause, keep_inbox, driver.live_turn)
    except BaseException as error:  # noqa: ASYNC103, BLE001  # raised by the caller, later
        return error  # noqa: ASYNC104  # the caller raises what it is given
    finally:
        driver.cancelling = None
    return None


def _can_cancel(driver: Driver, *, keep_inbox: bool) -> bool:
    inbox = driver.log.fold.inbox
    if driver.holder is not None and driver.holder.reason is None:
        return True
    if not keep_inbox and inbox.has_droppable:
        return True
    return (driver.wanted or driver.latched()) and inbox.has_work


def stop_holder(driver: Driver, holder: TurnCancellation, kind: StopKind) -> None:
    """Stop a holder, tell its signal's observers, and have the stop watched."""
    if not holder.stop(kind):
        return
    assert holder.reason is not None
    driver.commons.watchdog.watch(driver)
    leaving: BaseException | None = None
    token = initiator.set(driver.agent)
    try:
        for observer in holder.take_observers():
            try:
                observer(holder.reason)
            except Exception as error:  # noqa: BLE001  # observers may be anybody's; none may veto a stop
                driver.commons.contain(error)
                driver.dispatch.report(error, "an observer of the turn's signal")
            except BaseException as error:  # noqa: ASYNC103, BLE001  # an exit that one asks for is no veto
                leaving = error
    finally:
        initiator.reset(token)
    if leaving is not None:
        raise leaving
