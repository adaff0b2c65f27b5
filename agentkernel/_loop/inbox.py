"""Pending input: claims and splices, and the view that an agent's users have.

The queues themselves are a fold of the log. What is here turns decisions about them
into facts; none of it waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, cast, final

import msgspec
from trio.lowlevel import enable_ki_protection

from .._errors import MessageNotPendingError
from .._json import clean_text, freeze_object
from .._messages import TextBlock, UserMessage
from .._session.events import InboxSpliced, Queue, SpliceOutcome, TurnStarted
from .._session.log import Log
from .._session.repair import return_claimed
from .content import clean_block

__all__ = [
    "Inbox",
    "MessageLike",
    "admitted",
    "as_message",
    "claim_step",
    "discard_all",
    "open_turn",
    "put_back",
    "reject_claim",
    "same_body",
    "settle_claim",
]

MessageLike = str | UserMessage


def as_message(message: MessageLike, make_id: object, *, passive: bool) -> UserMessage:
    """Make a message of text, or a detached and clean copy of one that is given.

    Raises:
      TypeError: if it is neither, or holds what its type does not allow.

    """
    if isinstance(message, str):
        assert callable(make_id)
        block = TextBlock(clean_text(message))
        return UserMessage(str(make_id()), (block,), passive=passive)
    _refuse_odd(message)
    return msgspec.structs.replace(
        message,
        id=clean_text(message.id),
        content=tuple(clean_block(block) for block in message.content),
        passive=passive,
        meta=freeze_object(dict(message.meta), "meta"),
    )


def _refuse_odd(message: object) -> None:
    if not isinstance(message, UserMessage):
        kind = type(message).__name__
        raise TypeError(f"a message is a text or a UserMessage, not {kind}")
    message_id = cast("object", message.id)
    if not isinstance(message_id, str):
        raise TypeError(f"the id of a message must be text, not {message_id!r:.100}")
    if message.kind not in {"user", "notice"}:
        raise TypeError(f"a message is of kind user or notice, not {message.kind!r}")


def same_body(left: UserMessage, right: UserMessage) -> bool:
    """Whether two messages of one id say the same."""
    return (left.content, left.kind, left.meta) == (
        right.content,
        right.kind,
        right.meta,
    )


def admitted(log: Log, messages: Iterable[UserMessage]) -> tuple[UserMessage, ...]:
    """Detach the batch that listeners made for a step, and check whose it is.

    Raises:
      ValueError: if a message is in it twice, or is the session's and not claimed.

    """
    batch: dict[str, UserMessage] = {}
    for message in messages:
        own = as_message(message, str, passive=message.passive)
        known = own.id in log.fold.messages and own.id not in log.fold.inbox.claimed
        if known or own.id in batch:
            raise ValueError(f"message {own.id!r} cannot enter here a second time")
        batch[own.id] = own
    return tuple(batch.values())


@enable_ki_protection
def open_turn(log: Log) -> int:
    """Open the next turn and claim its input, as one act.

    It claims all of `next_step` and one of `next_turn`. The caller holds delivery.
    """
    turn = log.fold.last_turn + 1
    log.commit(TurnStarted(turn))
    claim_step(log)
    if log.fold.inbox.next_turn:
        _claim(log, "next_turn", (log.fold.inbox.next_turn[0].id,))
    return turn


@enable_ki_protection
def claim_step(log: Log) -> None:
    """Claim the input of a step: all of `next_step`."""
    if log.fold.inbox.next_step:
        _claim(log, "next_step", tuple([m.id for m in log.fold.inbox.next_step]))


def _claim(log: Log, queue: Queue, ids: tuple[str, ...]) -> None:
    log.commit(InboxSpliced(queue, removed=ids, outcome="claimed"))


@enable_ki_protection
def put_back(log: Log) -> None:
    """Return claimed input that entered no step to the front of its queue."""
    for fact in return_claimed(log.fold):
        log.commit(fact)


@enable_ki_protection
def discard_all(log: Log) -> tuple[UserMessage, ...]:
    """Drop all pending and claimed input but notices, and list it.

    Notices that were claimed go back to their queue.
    """
    inbox = log.fold.inbox
    if not inbox.has_droppable:
        put_back(log)
        return ()
    claimed = [(q, m) for q, m in inbox.claimed.values() if m.kind != "notice"]
    queued: list[tuple[Queue, UserMessage]] = [
        *(("next_step", m) for m in inbox.next_step if m.kind != "notice"),
        *(("next_turn", m) for m in inbox.next_turn if m.kind != "notice"),
    ]
    dropped = [*claimed, *queued]
    for queue in ("next_step", "next_turn"):
        ids = [m.id for q, m in dropped if q == queue]
        if ids:
            settle(log, queue, ids, "discarded")
    put_back(log)
    return tuple(message for _, message in dropped)


def reject_claim(log: Log) -> None:
    """Record that claimed input is rejected; notices are left for `put_back`."""
    claimed = log.fold.inbox.claimed.values()
    wanted = [m.id for _, m in claimed if m.kind != "notice"]
    settle_claim(log, wanted, "rejected")


def settle_claim(log: Log, ids: Iterable[str], outcome: SpliceOutcome) -> None:
    """Record what became of claimed input that will not enter."""
    wanted = set(ids)
    claimed = log.fold.inbox.claimed
    for queue in ("next_step", "next_turn"):
        gone = [k for k, (q, _) in claimed.items() if q == queue and k in wanted]
        if gone:
            settle(log, queue, gone, outcome)


def settle(
    log: Log, queue: Queue, ids: Iterable[str], outcome: SpliceOutcome | None
) -> None:
    """Record that messages have left the inbox for good."""
    log.commit(InboxSpliced(queue, removed=tuple(ids), outcome=outcome))


class _Owner(Protocol):
    """What the view needs of its agent."""

    log: Log

    def refuse_if_closed(self, verb: str) -> None:
        """Check thread and lifecycle."""
        ...

    def kick(self) -> None:
        """Send what was appended on its way to the store."""
        ...

    def note_inserted(self, queue: Queue, message: UserMessage) -> None:
        """Notify `agent/inbox/inserted`."""
        ...

    def note_discarded(self, messages: tuple[UserMessage, ...]) -> None:
        """Notify `agent/inbox/discarded` and settle their outcomes."""
        ...


@final
class Inbox:
    """An agent's pending input, as `agent.inbox`; it shows only what no turn claimed.

    No method is a checkpoint. Changing a message does not wake the agent.
    """

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner

    @property
    def next_turn(self) -> tuple[UserMessage, ...]:
        """What waits for turns of its own, in order."""
        return tuple(self._owner.log.fold.inbox.next_turn)

    @property
    def next_step(self) -> tuple[UserMessage, ...]:
        """What waits for the next step, in order."""
        return tuple(self._owner.log.fold.inbox.next_step)

    def replace(self, message_id: str, message: MessageLike) -> None:
        """Give a pending message another body; its id and its place stay.

        Raises:
          MessageNotPendingError: if it is not pending.

        """
        queue, index, old = self._find("replace", message_id)
        new = as_message(message, lambda: message_id, passive=old.passive)
        new = msgspec.structs.replace(new, id=message_id, kind=old.kind)
        log = self._owner.log
        with log.holding:
            log.commit(InboxSpliced(queue, index, (message_id,), (new,)))
            self._owner.note_inserted(queue, new)
        self._owner.kick()

    def remove(self, message_id: str) -> UserMessage:
        """Withdraw a pending message; its outcome becomes `discarded`.

        Raises:
          MessageNotPendingError: if it is not pending.

        """
        queue, _, old = self._find("remove", message_id)
        log = self._owner.log
        with log.holding:
            settle(log, queue, (message_id,), "discarded")
            self._owner.note_discarded((old,))
        self._owner.kick()
        return old

    def move(self, message_id: str, index: int, *, queue: Queue | None = None) -> None:
        """Put a pending message at another place, counted without it.

        Args:
          message_id: which message.
          index: 0 is the front; beyond the end is the end.
          queue: the queue it shall be in, by default the one it is in.

        Raises:
          MessageNotPendingError: if it is not pending.
          ValueError: if there is no such queue.

        """
        source, _, message = self._find("move", message_id)
        target = queue or source
        if target not in {"next_turn", "next_step"}:
            raise ValueError(f"no queue {target!r}; there are next_turn and next_step")
        others = [
            m for m in self._owner.log.fold.inbox.queue(target) if m is not message
        ]
        start = max(0, min(index, len(others)))
        log = self._owner.log
        log.append(InboxSpliced(target, start, (message_id,), (message,)))
        self._owner.kick()

    def _find(self, verb: str, message_id: str) -> tuple[Queue, int, UserMessage]:
        self._owner.refuse_if_closed(f"inbox.{verb}")
        inbox = self._owner.log.fold.inbox
        place = inbox.find(message_id)
        if place is None:
            raise MessageNotPendingError(message_id)
        queue, index = place
        return queue, index, inbox.queue(queue)[index]
