"""One turn: claimed input, one nursery and its cancel scope, one ending.

A turn opens (its start and its claims are one act), runs step after step inside its
own nursery and scope (steered while these close, it gets new ones), and is concluded
outside of them: what it left open is closed, and its ending is decided from the
holder and the agent's lifecycle, never from the exception that got it there.
Deciding, clearing the holder and appending `turn/end` are one act, after which
nothing can stop the turn any more; publication and the flush that follows are
shielded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import trio
from trio.lowlevel import enable_ki_protection

from .._messages import Usage
from .._session.events import Ending, TurnEnded
from .._session.repair import ABORTED, ABORTED_BEFORE_DISPATCH, closing_facts
from .cancellation import TurnCancellation
from .failure import (
    cancelled_here,
    cancelled_part,
    describe_error,
    ending_of,
    fatal_leaf,
    fault,
)
from .inbox import claim_step, open_turn, put_back
from .payload import InboxClaimed, TurnStopping
from .step import Step

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["Interrupted", "Turn", "end_open_turn", "run_turn"]


class Interrupted(Exception):  # control flow inside a turn, never seen outside
    """The turn was stopped: unwind to the turn's own frame."""


@final
class Turn:
    """What the steps of one turn share.

    Attributes:
      step: the number of the last step that has begun.
      usage: the open attempt's tokens, for the closing if it is cut.
      fatal: what must leave the kernel once the log is balanced.

    """

    def __init__(self, driver: Driver, holder: TurnCancellation, number: int) -> None:
        self.driver = driver
        self.log = driver.log
        self.holder = holder
        self.signal = holder.signal
        self._source = holder.source
        self.number = number
        self.nursery: trio.Nursery | None = None
        self.step = 0
        self.usage: Usage | None = None
        self.fatal: BaseException | None = None
        self.natural = Ending("completed")
        # Whether an answer was cut, and whether the steps ended for want of input.
        self._cut = self._drained = False
        self._faults: list[BaseException] = []

    @property
    def stopped(self) -> bool:
        """Whether the turn is over: asked after everything that is awaited.

        It was stopped, or something happened that must leave the kernel.
        """
        return self._source.reason is not None or self.fatal is not None

    def check(self) -> None:
        """Leave the turn if it is over. Not a checkpoint.

        Raises:
          Interrupted: if it is.

        """
        # As in `stopped`: to call the property would take longer than all the rest.
        if self._source.reason is not None or self.fatal is not None:
            raise Interrupted

    def leave(self, fatal: BaseException) -> None:
        """End the turn for what must leave the kernel: the log is balanced first."""
        if self.fatal is None:
            self.fatal = fatal
        if self.nursery is not None:
            self.nursery.cancel_scope.cancel(reason="something must leave the kernel")

    async def run(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Run the steps; only a cancellation leaves this frame.

        A checkpoint only if a step passes one.

        Cancellation:
          Passes through to the turn's scope; what is open is closed afterwards.

        """
        try:
            self.natural = await self._steps()
        except Interrupted:
            return  # noqa: ASYNC910  # waits only if it must
        except BaseException as error:  # noqa: ASYNC103, BLE001  # sorted and noted; the cancellation in it goes on
            self.note(error)
            cancelled = cancelled_part(error)
            if cancelled is not None and cancelled_here():
                raise cancelled  # noqa: ASYNC104, B904  # it is what was caught, or a part of it

    def note(self, error: BaseException) -> None:
        """Keep what ended the turn, sorted into the fatal, the fault and the stop."""
        fatal = fatal_leaf(error)
        found = fault(error, stopped=self.stopped or cancelled_here())
        if fatal is not None:
            self.leave(fatal)
        if found is not None:
            self._faults.append(found)
            self.natural = ending_of(found)

    async def _steps(self) -> Ending:
        limit = self.driver.options.max_steps
        inbox = self.log.fold.inbox
        owed = self._drained = False
        while True:
            self.step += 1
            last = self.step >= limit
            if self.step > 1:
                claim_step(self.log)
                self.log.deliver()
            end = await Step(self, self.step, owed=owed, last=last).run()
            self._cut = self._cut or end.cut
            owed = end.owes
            if end.ending is not None:
                return end.ending
            if owed or (inbox.owes_step and not last and not end.emptied):
                continue
            ending = Ending("max-tokens") if self._cut else Ending("completed")
            if end.emptied:
                return ending
            await self._stopping(self.step, ending)
            if last or not inbox.owes_step:
                self._drained = not last
                return ending

    @property
    def goes_on(self) -> bool:
        """Whether it was steered while its nursery closed: it owes that a step."""
        return (
            self._drained
            and self.log.fold.inbox.owes_step
            and not self.stopped
            and self.driver.lifecycle == "live"
        )

    async def _stopping(self, step: int, ending: Ending) -> None:  # noqa: ASYNC910  # waits only if it must
        """Let listeners see the turn's end coming, and perhaps steer on.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through.

        """
        dispatch = self.driver.dispatch
        if dispatch.listeners(TurnStopping):
            with self.driver.work.doing("listener", "agent/turn-stopping"):
                await dispatch.serial(
                    TurnStopping(
                        self.driver.agent, self.signal, self.number, step, ending
                    )
                )
            self.check()

    def conclude(self) -> Ending:
        """Close what is open, then end the turn as one act; return the ending."""
        driver, log = self.driver, self.log
        for fact in closing_facts(
            log.fold,
            started=ABORTED,
            unstarted=ABORTED_BEFORE_DISPATCH,
            usage=self.usage,
        ):
            log.append(fact)
        put_back(log)
        ending = self._end()
        if ending != self.natural:
            for found in self._faults:
                driver.dispatch.report(found, f"turn {self.number}, while it stopped")
        return ending

    @enable_ki_protection
    def _end(self) -> Ending:
        """Decide, clear the holder, append `turn/end`: one act, nothing in between."""
        ending = _decide(self.driver, self.holder, self.fatal) or self.natural
        self.driver.end_turn(ending)
        self.log.commit(TurnEnded(self.number, ending))
        return ending


def _decide(
    driver: Driver, holder: TurnCancellation | None, fatal: BaseException | None
) -> Ending | None:
    """Say how a turn ends that does not end as its steps say; None if it does."""
    if driver.lifecycle != "live":
        return Ending("disposed")
    if holder is not None and holder.reason is not None:
        return Ending("aborted")
    if fatal is not None:
        return Ending("error", code="fatal", message=describe_error(fatal))
    return None


@enable_ki_protection
def end_open_turn(driver: Driver, error: BaseException) -> None:
    """End a turn that an error has cut between two of its own lines.

    The facts are those of any ending, as one act; their delivery is the caller's.
    """
    log = driver.log
    number = log.fold.open_turn
    if number is None:
        return
    facts = closing_facts(log.fold, started=ABORTED, unstarted=ABORTED_BEFORE_DISPATCH)
    for fact in facts:
        log.commit(fact)
    put_back(log)
    ending = _decide(driver, driver.holder, error)
    assert ending is not None
    driver.end_turn(ending)
    log.commit(TurnEnded(number, ending))


async def run_turn(driver: Driver, holder: TurnCancellation) -> None:
    """Run one turn from its opening to its settled flush.

    Always a checkpoint.

    Cancellation:
      A stop arrives through the holder and ends here. A cancellation from outside
      the agent ends the turn `disposed`, is recorded, and passes through.

    """
    log = driver.log
    with log.holding:
        number = open_turn(log)
        driver.dispatch.notify(InboxClaimed, number, tuple(log.fold.inbox.claimed))
    turn = Turn(driver, holder, number)
    escaped: BaseException | None = None
    driver.busy_inside = True
    try:
        while turn.step == 0 or turn.goes_on:
            async with trio.open_nursery() as turn.nursery:
                holder.own(turn.nursery.cancel_scope)
                await turn.run()
    except BaseException as error:  # noqa: ASYNC103, BLE001  # recorded first, raised below
        turn.note(error)
        escaped = error
        if turn.fatal is None:
            driver.begin_disposal()
    finally:
        driver.busy_inside = False
    turn.conclude()
    log.deliver()
    await driver.flush()
    driver.settle_turn(number)
    if escaped is not None:
        raise escaped
    if turn.fatal is not None:
        raise turn.fatal
