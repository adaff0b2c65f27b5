"""Questions as values, and what is wrong with a late answer."""

from __future__ import annotations

from typing import Literal, TypeAlias, final

import msgspec
import trio

import agentkernel as ak

__all__ = [
    "ApprovalScope",
    "OpenQuestion",
    "Question",
    "StaleApprovalError",
    "agent_of",
    "next_id",
]

ApprovalScope: TypeAlias = Literal["once", "session"]


class StaleApprovalError(ak.AgentKernelError):
    """If an answer is given to a question that is not open.

    Attributes:
      approval_id: which question.
      decision: how it was closed (`allowed`, `denied`, `cancelled`, `interrupted`), or
        is about to be, if its turn has just ended; None if that is not known here. It is of the last 1,024 questions that this
        `Approvals` has put, and of those in the live tail of their agent's session.

    """

    def __init__(self, approval_id: str, decision: str | None) -> None:
        self.approval_id = approval_id
        self.decision = decision
        fate = "not known here" if decision is None else f"closed already: {decision}"
        super().__init__(f"approval {approval_id!r} is {fate}")


class Question(msgspec.Struct, frozen=True, eq=False):
    """An open question, as a client shows it.

    Attributes:
      id: what `Approvals.answer` wants.
      agent: who asks.
      turn: of that agent; stopping it cancels the question.
      call_id, name, arguments: the call that waits; one call may ask more than once.
      reason: why it is asked about.
      scope: how long a yes holds if the answer does not say: `session` if the rule
        that asks says so.
      may_last: whether a yes may be given for the whole session.
      covers: what such a yes would permit, in words for who is asked; empty if it
        cannot be given.

    """

    id: str
    agent: ak.Agent
    turn: int
    call_id: str
    name: str
    arguments: ak.JsonObject
    reason: str
    scope: ApprovalScope
    may_last: bool
    covers: str


@final
class OpenQuestion:
    """A question and the call that waits for its end."""

    def __init__(self, question: Question, grant: str) -> None:
        self.question = question
        self.grant = grant
        # How it was closed, and the reason given; set once.
        self.decided: ak.ApprovalDecided | None = None
        self.closed: trio.Event = trio.Event()


def next_id(agent: ak.Agent) -> str:
    """Name the question that would be recorded next.

    It is shown before it is durable: with the epoch, no later life gives it again.
    """
    return f"{agent.id}:{agent.session.epoch}:{agent.session.last_seq + 1}"


def agent_of(approval_id: str) -> str:
    """Read from a question's id whose it is."""
    return approval_id.rsplit(":", 2)[0]
