"""What became of a message: the value, and the wait until it is final."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
import trio

from .._errors import AgentDisposedError, UnknownNameError
from .._messages import AssistantMessage
from .._session.events import EndingKind
from .._session.fold import MessageRecord

if TYPE_CHECKING:
    from .driver import Driver

__all__ = ["Outcome", "wait_outcome"]


class Outcome(msgspec.Struct, frozen=True):
    """What became of one message.

    Attributes:
      kind: how the turn ended that it entered, or `discarded`.
      turn: that turn, None if it was discarded before any.
      message: the last answer of that turn, None if there was none.
      code, detail: of an `error` or a `blocked` ending.

    """

    kind: EndingKind | Literal["discarded"]
    turn: int | None = None
    message: AssistantMessage | None = None
    code: str | None = None
    detail: str | None = None

    @property
    def text(self) -> str:
        """The text of the last answer, empty if there was none."""
        return "" if self.message is None else self.message.text


async def wait_outcome(driver: Driver, message_id: str) -> Outcome:
    """Wait until it is final what became of a message; see `Agent.outcome`.

    Always a checkpoint.

    Cancellation:
      The wait ends; nothing else changes.

    """
    task = trio.lowlevel.current_task()
    driver.work.waiting.add(task)
    try:
        await trio.lowlevel.checkpoint()
        while True:
            record = driver.log.fold.messages.get(message_id)
            if record is None:
                raise UnknownNameError("message", message_id)
            found = _outcome_of(driver, record)
            if found is not None:
                return found
            if driver.gone.is_set():
                raise AgentDisposedError(driver.log.id)
            driver.agent.refuse_own_turn("outcome")
            await driver.outcome_waiters.park()
    finally:
        driver.work.waiting.discard(task)


def _outcome_of(driver: Driver, record: MessageRecord) -> Outcome | None:
    if record.state == "discarded":
        return Outcome("discarded")
    pending = record.state == "pending"
    number = record.returned_by if pending else record.turn
    if number is None or number > driver.settled_turn or record.state == "claimed":
        return None
    turn = driver.log.fold.turns[number]
    if turn.ending is None or (
        pending and turn.ending.kind not in {"error", "blocked"}
    ):
        return None
    return Outcome(
        turn.ending.kind,
        number,
        None if pending else turn.final,
        turn.ending.code,
        turn.ending.message,
    )
