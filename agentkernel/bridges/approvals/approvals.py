"""Approvals: questions about tool calls that any client may see and answer.

Sits above the kernel. A policy (`agentkernel.tools.approval`) says which calls run,
which are denied and which a person is asked about. A question is a fact of the
session of the agent that asks, `approval/asked`, and so is its end,
`approval/decided`; clients learn of both as they learn of everything else, by
`Appended` or a subscription, and list what is open with `Approvals.open`.

Invariants. A question is closed exactly once, log first: by an answer, or as
`cancelled` in the very call that stops its turn; one that a crash leaves open is
closed as `interrupted` when its session is resumed. An answer to a closed question is
an error and runs nothing. A cancelled question is no denial.

A yes for the whole session is remembered in the log (`GRANT`), and holds for that
session alone: neither for a fork of it nor for a child of its agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Literal, TypeAlias, final
from weakref import WeakKeyDictionary

import trio

import agentkernel as ak
from agentkernel.tools.approval import Decision, Policy

from .grants import GRANT, Grants
from .question import ApprovalScope, OpenQuestion, Question, StaleApprovalError

__all__ = ["Approvals"]

_Permission: TypeAlias = ak.Allow | ak.Ask | ak.Deny


@final
class Approvals:
    """Decides about the calls of agents by a policy, and asks where it says so.

    For a kernel it decides for every agent; for an agent, for that agent and for
    those that are created as its children, and theirs. All methods belong to the
    kernel's Trio thread. One call gets one question, so use one for an agent.
    """

    def __init__(self, scope: ak.Kernel | ak.Agent, policy: Policy) -> None:
        self._scope = scope
        self.policy = policy
        self._open: dict[str, OpenQuestion] = {}
        self._grants: WeakKeyDictionary[ak.Agent, Grants] = WeakKeyDictionary()
        kernel = scope.kernel if isinstance(scope, ak.Agent) else scope
        self._kernel = kernel
        self._unregister = [
            kernel.on(ak.PreExecute, self._pre_execute),
            kernel.on(ak.Approve, self._approve),
            kernel.on(ak.AgentDisposed, self._disposed),
        ]

    def close(self) -> None:
        """Decide about no further call; open questions stay. Not a checkpoint.

        Done by itself when the agent that it was made for is disposed of.
        """
        for unregister in self._unregister:
            unregister()

    def open(self, agent: ak.Agent | None = None) -> tuple[Question, ...]:
        """List what waits for an answer, in the order of asking. Not a checkpoint.

        Args:
          agent: whose questions; None for those of all agents.

        """
        return tuple(
            entry.question
            for entry in self._open.values()
            if agent is None or entry.question.agent is agent
        )

    def answer(
        self,
        approval_id: str,
        decision: Literal["allow", "deny"],
        *,
        scope: ApprovalScope | None = None,
        reason: str | None = None,
    ) -> None:
        """Answer an open question; the fact is in the log when this returns.

        Not a checkpoint. A client that fails to ask anybody answers `deny`: that
        denies one call. One that was told to stop asking calls `dismiss`.

        Args:
          approval_id: of the question.
          decision: whether the call may run.
          scope: `session` for a yes to every later call that the same rule fits, or
            to every later call of the tool if no rule asked; None for what the
            question says.
          reason: the model is told why its call was denied.

        Raises:
          StaleApprovalError: if the question is closed, or not known. Nothing runs.
          ValueError: if the scope is `session` and the question does not permit
            that, or the answer is no.

        """
        entry = self._find(approval_id)
        if scope == "session" and decision == "deny":
            raise ValueError("only a yes can hold for the whole session")
        if scope == "session" and not entry.question.may_last:
            raise ValueError("a yes to this question holds once only")
        if decision == "deny":
            self._close(entry, "denied", reason=reason)
            return
        self._close(entry, "allowed", scope or entry.question.scope, reason)

    def dismiss(
        self, approval_id: str, *, keep_inbox: bool = False
    ) -> ak.CancelReceipt:
        """Stop the turn that asks instead of answering: the question is cancelled.

        No call of that turn is started any more. Not a checkpoint.

        Raises:
          StaleApprovalError: if the question is closed, or not known.

        """
        question = self._find(approval_id).question
        return question.agent.cancel(ak.USER, keep_inbox=keep_inbox, turn=question.turn)

    def _find(self, approval_id: str) -> OpenQuestion:
        entry = self._open.get(approval_id)
        if entry is not None:
            return entry
        raise StaleApprovalError(approval_id, self._fate(approval_id))

    def _fate(self, approval_id: str) -> str | None:
        """Look in the live tails for how a question was closed."""
        for agent in self._kernel.agents:
            for event in reversed(agent.session.events):
                fact = event.data
                if not isinstance(fact, ak.ApprovalDecided):
                    continue
                if fact.approval_id == approval_id:
                    return fact.decision
        return None

    def _covers(self, agent: ak.Agent) -> bool:
        if isinstance(self._scope, ak.Kernel):
            return True
        return any(one is self._scope for one in _line(agent))

    def _disposed(self, payload: ak.AgentDisposed) -> None:
        if payload.agent is self._scope:
            self.close()

    async def _pre_execute(
        self,
        payload: ak.PreExecute,
        following: Callable[[ak.PreExecute], Awaitable[_Permission]],
    ) -> _Permission:
        """Apply the policy to what the listeners behind this one leave of the call.

        Always a checkpoint where it decides.

        Cancellation:
          Passes through.

        """
        inner = await following(payload)
        if not self._covers(payload.agent) or isinstance(inner, ak.Deny):
            return inner
        arguments = inner.arguments
        name = payload.call.name
        shown = payload.call.arguments if arguments is None else arguments
        decision = await self._decide(payload.agent, name, shown)
        if decision.action == "deny":
            return ak.Deny(decision.reason)
        if decision.action == "ask" and isinstance(inner, ak.Allow):
            waivable = not self._has_rule(name, shown)
            return ak.Ask(decision.reason, arguments, waivable=waivable)
        return inner

    async def _decide(
        self, agent: ak.Agent, name: str, arguments: ak.JsonObject
    ) -> Decision:
        """Ask the policy, which knows what was granted.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        await trio.lowlevel.checkpoint()
        decision = self.policy.decide(name, arguments)
        grant = self._grant_for(decision, name, arguments)
        if decision.action != "ask" or not grant:
            return decision
        grants = self._grants.setdefault(agent, Grants())
        await grants.load(agent.session)
        if grant in grants.known:
            return Decision("allow", decision.reason, "session", grant)
        return decision

    def _grant_for(
        self, decision: Decision, name: str, arguments: ak.JsonObject
    ) -> str:
        """Name what a yes for the session would permit; empty if it cannot be given."""
        if decision.grant or self._has_rule(name, arguments):
            return decision.grant
        return f"any call of {name}"

    def _has_rule(self, name: str, arguments: ak.JsonObject) -> bool:
        return any(rule.fits(name, arguments) for rule in self.policy.rules)

    async def _approve(
        self,
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        """Put one question and wait for its end.

        Always a checkpoint.

        Cancellation:
          Passes through; the question is then closed as cancelled.

        """
        if not self._covers(payload.agent):
            return await following(payload)
        entry = self._ask(payload)
        session = payload.agent.session
        unregister = payload.signal.on_cancel(
            lambda _reason: self._close(entry, "cancelled")
        )
        try:
            # A crash while it stands shall find it. A store that fails is reported
            # by the kernel, and starts no call.
            with suppress(ak.StorageError):
                await session.flush()
            await entry.closed.wait()
        except BaseException:
            self._close(entry, "cancelled")
            raise
        finally:
            unregister()
        payload.signal.raise_if_cancelled()
        decided = entry.decided
        assert decided is not None
        if decided.decision == "denied":
            return ak.Deny(decided.reason or "the user said no")
        return ak.Allow()

    def _ask(self, payload: ak.Approve) -> OpenQuestion:
        """Append a question and list it. Not a checkpoint."""
        agent, call = payload.agent, payload.call
        session = agent.session
        decision = self.policy.decide(call.name, call.arguments)
        asks = decision.action == "ask" and decision.reason == payload.reason
        grant = self._grant_for(decision, call.name, call.arguments) if asks else ""
        question = Question(
            f"{agent.id}:{session.last_seq + 1}",
            agent,
            call.turn,
            call.call_id,
            call.name,
            call.arguments,
            payload.reason,
            decision.scope if asks else "once",
            bool(grant),
        )
        entry = self._open[question.id] = OpenQuestion(question, grant)
        session.append(
            ak.ApprovalAsked(
                question.id,
                call.call_id,
                call.name,
                call.arguments,
                agent.id,
                payload.reason or None,
            )
        )
        return entry

    def _close(
        self,
        entry: OpenQuestion,
        decision: Literal["allowed", "denied", "cancelled"],
        scope: ApprovalScope = "once",
        reason: str | None = None,
    ) -> None:
        """Close a question, once: the fact, then the list, then who waits."""
        if entry.decided is not None:
            return
        question = entry.question
        agent, session = question.agent, question.agent.session
        entry.decided = ak.ApprovalDecided(question.id, decision, scope, reason)
        self._open.pop(question.id, None)
        if not session.closed:
            session.append(entry.decided)
        entry.closed.set()
        if decision == "allowed" and scope == "session":
            self._remember(agent, question.id, entry.grant)

    def _remember(self, agent: ak.Agent, approval_id: str, grant: str) -> None:
        """Let a yes hold for the session, and for what is asked already."""
        self._grants.setdefault(agent, Grants()).known.add(grant)
        body = {"session": agent.id, "approval_id": approval_id, "grant": grant}
        agent.session.append(ak.Extension(GRANT, body))
        for other in tuple(self._open.values()):
            if other.question.agent is agent and other.grant == grant:
                reason = f"allowed for this session by {approval_id}"
                self._close(other, "allowed", reason=reason)


def _line(agent: ak.Agent) -> Iterator[ak.Agent]:
    """The agent, its parent, and so on."""
    one: ak.Agent | None = agent
    while one is not None:
        yield one
        one = one.parent
