"""Pending input, as the fold of a session keeps it. Pure."""

from __future__ import annotations

from .._messages import UserMessage
from .events import Queue

__all__ = ["InboxFold"]


class InboxFold:
    """Pending input: two queues, and what the open turn has claimed of them."""

    __slots__ = ("claimed", "next_step", "next_turn")

    def __init__(self) -> None:
        self.next_turn: list[UserMessage] = []
        self.next_step: list[UserMessage] = []
        # Claimed and not yet entered, in claim order, with the queue it came from.
        self.claimed: dict[str, tuple[Queue, UserMessage]] = {}

    def queue(self, name: Queue) -> list[UserMessage]:
        """Name one of the two queues."""
        return self.next_turn if name == "next_turn" else self.next_step

    def find(self, message_id: str) -> tuple[Queue, int] | None:
        """Say where a pending message stands."""
        for name in ("next_turn", "next_step"):
            for index, message in enumerate(self.queue(name)):
                if message.id == message_id:
                    return name, index
        return None

    @property
    def owes_step(self) -> bool:
        """Whether something in `next_step` asks for a step of its own."""
        return bool(self.next_step) and any(not m.passive for m in self.next_step)

    @property
    def has_work(self) -> bool:
        """Whether a drain would find something to run a turn for."""
        return bool(self.next_turn) or self.owes_step

    @property
    def has_droppable(self) -> bool:
        """Whether there is input that a broad cancel drops: all but notices."""
        claimed = (message for _, message in self.claimed.values())
        messages = (*claimed, *self.next_step, *self.next_turn)
        return any(message.kind != "notice" for message in messages)

    @property
    def pending_ids(self) -> tuple[str, ...]:
        """The ids of both queues, in the order in which they would be claimed."""
        return tuple(m.id for m in (*self.next_step, *self.next_turn))

    def take(self, message_id: str) -> None:
        """Remove a message from wherever it is."""
        if self.claimed.pop(message_id, None) is not None:
            return
        for queue in (self.next_turn, self.next_step):
            for index, message in enumerate(queue):
                if message.id == message_id:
                    del queue[index]
                    return

    def claim(self, queue: Queue, ids: tuple[str, ...]) -> None:
        """Move messages from a queue into the claim."""
        pending = self.queue(queue)
        if len(ids) == 1 and pending[0].id == ids[0]:
            self.claimed[ids[0]] = (queue, pending.pop(0))
            return
        for message_id in ids:
            index = next(i for i, m in enumerate(pending) if m.id == message_id)
            self.claimed[message_id] = (queue, pending.pop(index))
