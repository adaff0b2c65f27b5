"""The questions that stand: put once, closed once, and in both cases the log first.

The log may refuse a fact, and an observer of it may answer, stop the turn, or ask for
the exit of the program. So whether a question stands is read from the log, and what
is kept here follows it, whatever leaves `append`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, final

import agentkernel as ak

from .question import (
    ApprovalScope,
    OpenQuestion,
    Question,
    StaleApprovalError,
    agent_of,
)

__all__ = ["Standing"]

# Of how many questions that were closed it is known how.
_REMEMBERED: Final = 1024


@final
class Standing:
    """What waits for an answer, of all agents, in the order of asking."""

    def __init__(self, kernel: ak.Kernel) -> None:
        self._kernel = kernel
        self._entries: dict[str, OpenQuestion] = {}
        # How the last ones were closed, the oldest first.
        self._fates: dict[str, str] = {}

    def __iter__(self) -> Iterator[OpenQuestion]:
        # One whose end is being recorded is over: its observers may look in here.
        return iter(
            [
                one
                for one in self._entries.values()
                if one.decided is None and not _is_late(one.question)
            ]
        )

    def find(self, approval_id: str) -> OpenQuestion:
        """Find what an answer is for.

        Raises:
          StaleApprovalError: if it is closed, or not known, or its turn is over.

        """
        entry = self._entries.get(approval_id)
        if entry is None:
            raise StaleApprovalError(approval_id, self._fate(approval_id))
        if entry.decided is not None:
            raise StaleApprovalError(approval_id, entry.decided.decision)
        if _is_late(entry.question):
            # Who waits closes it as that; until then nobody else's answer counts.
            raise StaleApprovalError(approval_id, "cancelled")
        return entry

    def put(self, entry: OpenQuestion) -> None:
        """List and record a question. Not a checkpoint.

        It is listed first, so that an observer of the fact may answer it. Whatever
        is raised, it is for the caller to close it.
        """
        question = entry.question
        self._entries[question.id] = entry
        question.agent.session.append(
            ak.ApprovalAsked(
                question.id,
                question.call_id,
                question.name,
                question.arguments,
                question.agent.id,
                question.reason or None,
            )
        )

    def close(
        self,
        entry: OpenQuestion,
        decision: Literal["allowed", "denied", "cancelled"],
        scope: ApprovalScope = "once",
        reason: str | None = None,
    ) -> None:
        """Close a question, once: the fact, then the list, then who waits.

        Not a checkpoint. One that never came into the log leaves none there.

        Raises:
          Exception: if the log refuses the fact; the question stands as before.
          BaseException: what an observer of the fact asks for; it is closed then.

        """
        if entry.decided is not None:
            return
        question = entry.question
        try:
            # From here on it takes no other answer, nor from an observer of the fact.
            entry.decided = ak.ApprovalDecided(question.id, decision, scope, reason)
            if _stands(question):
                question.agent.session.append(entry.decided)
        finally:
            if _stands(question):
                entry.decided = None
            else:
                self._entries.pop(question.id, None)
                self._fates[question.id] = decision
                if len(self._fates) > _REMEMBERED:
                    del self._fates[next(iter(self._fates))]
                entry.closed.set()

    def _fate(self, approval_id: str) -> str | None:
        """Say how a question was closed: by memory, or by the agent's live tail."""
        fate = self._fates.get(approval_id)
        if fate is not None:
            return fate
        # Nobody else's: a fork has the question too, as interrupted.
        for agent in self._kernel.agents:
            if agent.id != agent_of(approval_id):
                continue
            for event in reversed(agent.session.events):
                fact = event.data
                if not isinstance(fact, ak.ApprovalDecided):
                    continue
                if fact.approval_id == approval_id:
                    return fact.decision
        return None


def _stands(question: Question) -> bool:
    """Whether the log has the question, and can still take its end."""
    session = question.agent.session
    return not session.closed and any(
        fact.approval_id == question.id for fact in session.open_approvals
    )


def _is_late(question: Question) -> bool:
    """Whether the turn that asks has ended, and the question is about to be closed."""
    for event in reversed(question.agent.session.events):
        fact = event.data
        if isinstance(fact, ak.TurnEnded) and fact.turn == question.turn:
            return True
        if isinstance(fact, ak.ApprovalAsked) and fact.approval_id == question.id:
            break
    return False
