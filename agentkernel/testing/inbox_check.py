"""Where every message of a log is: the half of `check_log` that watches the inbox.

A message is pending in one of two queues, claimed by the open turn, or has left for
good: it entered a step, or was discarded, rejected or consumed. It is in one of
these places from the moment it is accepted, and in one only.
"""

from __future__ import annotations

from typing import Literal, Protocol, TypeAlias, final

from agentkernel import InboxSpliced, UserMessage

__all__ = ["InboxBooks", "MessageFate", "Pairs", "Rule"]

_Queue: TypeAlias = Literal["next_turn", "next_step"]
_Left: TypeAlias = Literal["entered", "discarded", "rejected", "consumed"]
MessageFate: TypeAlias = Literal[
    "pending", "claimed", "entered", "discarded", "rejected", "consumed"
]


class Rule(Protocol):
    """Fails the check, naming the event and the rule, unless `kept`."""

    def __call__(self, kept: bool, rule: str, detail: str = "", /) -> None:  # noqa: FBT001 - it reads as an assertion
        """Check one rule."""
        ...


@final
class InboxBooks:
    """Keeps two queues, the claim, and the list of those that have left."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._queues: dict[_Queue, list[UserMessage]] = {
            "next_turn": [],
            "next_step": [],
        }
        self._claimed: dict[str, tuple[_Queue, UserMessage]] = {}
        self._left: dict[str, _Left] = {}
        # Whether the open turn has begun its first step, and taken from `next_turn`.
        self._stepped = False
        self._took_turn = False

    def fates(self) -> dict[str, MessageFate]:
        """Say what became of each message."""
        fates: dict[str, MessageFate] = dict.fromkeys(self._claimed, "claimed")
        fates |= {m.id: "pending" for queue in self._queues.values() for m in queue}
        fates |= self._left
        return fates

    def turn_started(self) -> None:
        """A turn was opened: it may claim."""
        self._stepped = self._took_turn = False

    def step_started(self) -> None:
        """A step was opened: from here on the turn claims for steps only."""
        self._stepped = True

    def no_claims(self, when: str) -> None:
        """Check that the turn holds nothing that it neither let in nor gave back."""
        self._rule(
            not self._claimed,
            f"no message is claimed any more {when}",
            ", ".join(self._claimed),
        )

    def entered(self, message: UserMessage) -> None:
        """Let a message enter: a claimed one, or one that a listener put in."""
        where = self._place(message.id)
        self._rule(
            where in {"claimed", "unknown"},
            "a message enters once, out of the claim",
            f"{message.id} was {where}",
        )
        self._claimed.pop(message.id, None)
        self._left[message.id] = "entered"

    def spliced(self, fact: InboxSpliced) -> None:
        """Check one change of the inbox."""
        if fact.outcome is None:
            self._edit(fact)
        elif fact.outcome == "claimed":
            self._claim(fact)
        elif fact.outcome == "returned":
            self._return(fact)
        else:
            self._leave(fact, fact.outcome)

    def _edit(self, fact: InboxSpliced) -> None:
        for message_id in fact.removed:
            self._expect(message_id, "pending", "what is edited is pending")
            self._take(message_id)
        inserted = [message.id for message in fact.inserted]
        self._rule(
            sorted(fact.removed) == sorted(inserted) or not fact.removed,
            "an edit loses no message",
            f"{fact.removed} became {inserted}",
        )
        for message_id in inserted:
            self._expect(message_id, "unknown", "an id is accepted once")
        self._insert(fact)

    def _claim(self, fact: InboxSpliced) -> None:
        queue = self._queues[fact.target]
        ids = [message.id for message in queue]
        self._rule(
            bool(fact.removed) and not fact.inserted, "a claim takes and puts nothing"
        )
        if fact.target == "next_step":
            self._rule(
                list(fact.removed) == ids,
                "a claim takes all of next_step, in order",
                f"{fact.removed} of {ids}",
            )
        else:
            self._rule(
                list(fact.removed) == ids[:1],
                "a turn claims the first message of next_turn",
                f"{fact.removed} of {ids}",
            )
            self._rule(
                not self._stepped and not self._took_turn,
                "a turn claims from next_turn once, before its first step",
            )
            self._took_turn = True
        for message in queue[: len(fact.removed)]:
            self._claimed[message.id] = (fact.target, message)
        del queue[: len(fact.removed)]

    def _return(self, fact: InboxSpliced) -> None:
        self._rule(not fact.removed, "what is returned is not removed")
        for message in fact.inserted:
            self._expect(message.id, "claimed", "what is returned was claimed")
            queue, _ = self._claimed.pop(message.id)
            self._rule(
                queue == fact.target,
                "what is returned goes to the queue that it came from",
                message.id,
            )
        self._rule(fact.start == 0, "what is returned goes to the front")
        self._insert(fact)

    def _leave(self, fact: InboxSpliced, outcome: _Left) -> None:
        self._rule(not fact.inserted, f"nothing is put in as {outcome}")
        places = {"pending", "claimed"} if outcome == "discarded" else {"claimed"}
        for message_id in fact.removed:
            where = self._place(message_id)
            if where == "claimed" and outcome == "rejected":
                _, message = self._claimed[message_id]
                self._rule(
                    message.kind != "notice", "a notice is not rejected", message_id
                )
            self._rule(
                where in places,
                f"what is {outcome} was {' or '.join(sorted(places))}",
                f"{message_id} was {where}",
            )
            self._take(message_id)
            self._left[message_id] = outcome

    def _insert(self, fact: InboxSpliced) -> None:
        queue = self._queues[fact.target]
        self._rule(
            0 <= fact.start <= len(queue),
            "messages are put inside the queue or at its end",
            f"at {fact.start} of {len(queue)}",
        )
        queue[fact.start : fact.start] = fact.inserted

    def _place(self, message_id: str) -> str:
        if message_id in self._left:
            return self._left[message_id]
        if message_id in self._claimed:
            return "claimed"
        if any(m.id == message_id for q in self._queues.values() for m in q):
            return "pending"
        return "unknown"

    def _expect(self, message_id: str, place: str, rule: str) -> None:
        where = self._place(message_id)
        self._rule(where == place, rule, f"{message_id} was {where}")

    def _take(self, message_id: str) -> None:
        self._claimed.pop(message_id, None)
        for name, queue in self._queues.items():
            self._queues[name] = [m for m in queue if m.id != message_id]


@final
class Pairs:
    """Things that are opened once and closed once, by id."""

    def __init__(self, name: str, rule: Rule) -> None:
        self._name = name
        self._rule = rule
        self._open: dict[str, bool] = {}

    def opened(self, key: str) -> None:
        """Note an opening."""
        self._rule(key not in self._open, f"each {self._name} has its own id", key)
        self._open[key] = True

    def closed(self, key: str) -> None:
        """Note the closing of something that is open."""
        self._rule(self._open.get(key, False), f"each {self._name} is closed once", key)
        self._open[key] = False

    def none_open(self) -> None:
        """Check that all are closed."""
        left = ", ".join(key for key, is_open in self._open.items() if is_open)
        self._rule(not left, f"each {self._name} is closed", left)
