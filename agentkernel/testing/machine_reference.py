"""A small model of one agent: its inbox, its turns, and what a stop does to them.

`Reference` follows the contract, not the code. It is told the verbs as they are
called, and learns from the log only *when* a turn starts or ends, which depends on how
many scheduling passes went by; *what* has to be in it, it knows by itself.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import agentkernel as ak

__all__ = ["QueueName", "Reference"]

QueueName: TypeAlias = Literal["next_turn", "next_step"]


@final
class Reference:
    """What the contract says of one agent. No method is a checkpoint.

    Attributes:
      queues: the ids that are pending, in order.
      claimed: the ids that a turn holds and no step has seen, with their queues.
      passive, notices: ids that wake nobody, and ids that a broad stop keeps.
      known: every id that was ever accepted.
      gone: the ids that left without entering, and how.
      entered_in: the turn that each id entered, in the order of entering.
      endings: how each turn ended.
      status, turn: of the agent; None between turns.
      failed: whether the open turn is to end `error`, unless it is stopped.
      disposing: whether the agent's end has begun.

    """

    def __init__(self) -> None:
        self.queues: dict[QueueName, list[str]] = {"next_turn": [], "next_step": []}
        self.claimed: dict[str, QueueName] = {}
        self.passive: set[str] = set()
        self.notices: set[str] = set()
        self.known: set[str] = set()
        self.gone: dict[str, str] = {}
        self.entered_in: dict[str, int] = {}
        self.endings: dict[int, str] = {}
        self.status: Literal["idle", "running"] = "idle"
        self.turn: int | None = None
        self.failed: bool = False
        self.disposing: bool = False
        self._step_seen = False
        # Whether the holder of the next or the current turn can still be stopped.
        self._holder = False
        self._wanted = False
        # A turn, or maintenance, was stopped, and the agent is not idle yet.
        self._converging = False
        self._latch: set[str] = set()
        self._latched_wake = False
        self._stopped = False
        self._rejected = False
        self._maintaining = False

    @property
    def pending(self) -> list[str]:
        """What is pending, in the order in which it would be claimed."""
        return [*self.queues["next_step"], *self.queues["next_turn"]]

    @property
    def owes_step(self) -> bool:
        """Whether something in `next_step` wants a step."""
        return any(i not in self.passive for i in self.queues["next_step"])

    @property
    def has_work(self) -> bool:
        """Whether a wake would find anything to do."""
        return bool(self.queues["next_turn"]) or self.owes_step

    def place_of(self, message_id: str) -> QueueName | None:
        """Find the queue in which a message is pending."""
        for name, ids in self.queues.items():
            if message_id in ids:
                return name
        return None

    def accept(
        self,
        message_id: str,
        queue_name: QueueName,
        *,
        passive: bool = False,
        notice: bool = False,
    ) -> None:
        """A message with a new id is sent: by a verb, or by somebody else."""
        self.known.add(message_id)
        if passive:
            self.passive.add(message_id)
        if notice:
            self.notices.add(message_id)
        if not passive and not self.disposing:
            if not self._converging:
                self._want()
            else:
                self._latch.add(message_id)
                queue_name = queue_name if notice else "next_turn"
        self.queues[queue_name].append(message_id)

    def send_again(self, message_id: str) -> None:
        """A message is sent once more that does not want to ride along only."""
        if self.place_of(message_id):
            self.wake()

    def remove(self, message_id: str, queue_name: QueueName) -> None:
        """A pending message is withdrawn."""
        self.queues[queue_name].remove(message_id)
        self.gone[message_id] = "discarded"

    def move(self, message_id: str, index: int, to: QueueName | None) -> None:
        """A pending message is put elsewhere."""
        place = self.place_of(message_id)
        assert place is not None
        self.queues[place].remove(message_id)
        self.queues[to or place].insert(index, message_id)

    def wake(self) -> bool:
        """Say what a wake returns, and note it."""
        if not self.has_work:
            return False
        if self._converging:
            first, self._latched_wake = not self._latched_wake, True
            return first
        already = self._wanted
        self._want()
        return not already

    def _want(self) -> None:
        self._wanted = True
        if self.status == "idle":
            self.status = "running"
            self._holder = True

    def maintain(self) -> None:
        """Maintenance begins on an idle agent."""
        self.status = "running"
        self._holder = self._maintaining = True

    def cancel(self, *, keep_inbox: bool, turn: int | None = None) -> ak.CancelReceipt:
        """Say what a cancel returns, and note it.

        The order of `dropped` is left open.
        """
        # A stop of one turn has nothing to do once that turn was stopped or has ended.
        stoppable = self.turn if self._holder else None
        if turn is not None and turn != stoppable:
            return ak.CancelReceipt(effective=False)
        prospective = (self._wanted or self._latched) and self.has_work
        droppable = [i for i in (*self.claimed, *self.pending) if i not in self.notices]
        if not (self._holder or prospective or (droppable and not keep_inbox)):
            return ak.CancelReceipt(effective=False)
        dropped = [] if keep_inbox else droppable
        for message_id in dropped:
            self.gone[message_id] = "discarded"
            self.claimed.pop(message_id, None)
            for ids in self.queues.values():
                if message_id in ids:
                    ids.remove(message_id)
        self._put_back()
        self._wanted = False
        self._latch.clear()
        self._latched_wake = False
        stopped = None
        if self._holder:
            self._holder = False
            stopped = self.turn
            self._stopped = stopped is not None
            self._converging = stopped is not None or self._maintaining
        return ak.CancelReceipt(
            effective=True,
            turn=stopped,
            dropped=tuple(dropped),
            kept=tuple(self.pending),
        )

    def dispose(self) -> None:
        """The agent's end begins."""
        self.disposing = True

    def resume(self) -> None:
        """The agent is opened again: what is pending is parked."""
        self.disposing = False
        self.status = "idle"

    @property
    def _latched(self) -> bool:
        return self._latched_wake or bool(self._latch & set(self.pending))

    def _put_back(self) -> None:
        for name in self.queues:
            back = [i for i, origin in self.claimed.items() if origin == name]
            self.queues[name] = back + self.queues[name]
        self.claimed.clear()

    def follow(self, fact: ak.Fact) -> None:
        """Learn from the log what has happened.

        Raises:
          AssertionError: if it must not happen.

        """
        match fact:
            case ak.TurnStarted(turn):
                self._turn_started(turn)
            case ak.InboxSpliced():
                self._spliced(fact)
            case ak.StepStarted():
                self._step_seen = True
            case ak.MessageEntered(message):
                self._entered(message.id)
            case ak.TurnEnded(turn, reason):
                self._turn_ended(turn, reason.kind)
            case _:
                pass

    def _turn_started(self, turn: int) -> None:
        assert self.status == "running", "a turn starts only on a running agent"
        assert self.turn is None, "turns do not overlap"
        assert self._wanted, "nothing parked is drained without a wake"
        assert self.has_work, "no turn without input"
        assert turn == len(self.endings) + 1, f"{turn} follows {len(self.endings)}"
        assert not self.disposing, "no turn starts on an agent that is ending"
        self.turn = turn
        self._holder = True
        self._stopped = self.failed = self._rejected = False
        self._step_seen = False
        self._claim("next_step", None)
        self._claim("next_turn", 1)

    def _spliced(self, fact: ak.InboxSpliced) -> None:
        if fact.outcome == "claimed":
            if self._step_seen:
                expected = self._claim("next_step", None)
            else:
                expected = [
                    i for i, name in self.claimed.items() if name == fact.target
                ]
            assert list(fact.removed) == expected, f"{fact} instead of {expected}"
        elif fact.outcome in {"rejected", "consumed"}:
            self._rejected |= fact.outcome == "rejected"
            for message_id in fact.removed:
                kept = fact.outcome == "rejected" and message_id in self.notices
                assert not kept, f"the notice {message_id} is no input to reject"
                del self.claimed[message_id]
                self.gone[message_id] = fact.outcome
        elif fact.outcome is None:
            for message in fact.inserted:
                if message.id not in self.known:
                    self.accept(
                        message.id,
                        fact.target,
                        passive=message.passive,
                        notice=message.kind == "notice",
                    )

    def _claim(self, name: QueueName, count: int | None) -> list[str]:
        taken = self.queues[name][:count]
        del self.queues[name][:count]
        self.claimed.update(dict.fromkeys(taken, name))
        return taken

    def _entered(self, message_id: str) -> None:
        # One that a listener has put in was never claimed.
        assert message_id in self.claimed or message_id not in self.known, message_id
        self.claimed.pop(message_id, None)
        self.known.add(message_id)
        assert self.turn is not None, "input enters an open turn"
        self.entered_in[message_id] = self.turn

    def _turn_ended(self, turn: int, kind: str) -> None:
        assert turn == self.turn, f"{turn} ends, {self.turn} is open"
        if self.disposing:
            assert kind == "disposed", kind
        elif self._stopped:
            assert kind == "aborted", kind
        elif self.failed:
            assert kind == "error", kind
        elif kind == "blocked":
            assert self._rejected or self.claimed, "a turn is blocked by a rejection"
            assert set(self.claimed) <= self.notices, "a rejection leaves notices only"
        else:
            assert kind == "completed", kind
            owed = set(self.queues["next_step"]) - self.passive
            assert not owed, f"a turn ends when it owes no step: {owed}"
        if kind != "completed":
            self._put_back()
        if kind in {"error", "blocked"}:
            self._wanted = False
        assert not self.claimed, f"{self.claimed} are claimed by a turn that has ended"
        self.endings[turn] = kind
        self.turn = None
        self._holder = False

    def became(self, status: Literal["idle", "running"]) -> None:
        """Learn of a change of the agent's status.

        Raises:
          AssertionError: if it must not change.

        """
        if status == "running":
            assert self.status == "running", "running is a consequence of a wake"
            return
        assert self.turn is None, "an agent with a turn is not idle"
        waking = [i for i in self.pending if i not in self.passive]
        assert self.disposing or not (self._wanted and waking), "a wake was lost"
        self.status = "idle"
        self._holder = self._wanted = self._converging = self._maintaining = False
        again = self._latched and self.has_work and not self.disposing
        self._latch.clear()
        self._latched_wake = False
        if again:
            self._want()
