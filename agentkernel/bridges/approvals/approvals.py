"""Approvals: questions about tool calls that any client may see and answer.

Sits above the kernel. A policy (`agentkernel.tools.approval`) says which calls run,
which are denied and which a person is asked about. A question is a fact of the
session of the agent that asks, `approval/asked`, and so is its end,
`approval/decided`; clients learn of both as they learn of everything else, by
`Appended` or a subscription, and list what is open with `Approvals.open`.

Invariants. A question is closed exactly once, log first: by an answer, or as
`cancelled` in the very call that stops its turn; one that a crash leaves open is
closed as `interrupted` when its session is resumed. An answer that is refused changes
nothing. An answer to a closed question is an error and runs nothing. A cancelled
question is no denial. What the policy denies does not run, whatever other listeners
make of a call.

A yes for the whole session is remembered in the log (`GRANT`), and holds for that
session alone: neither for a fork of it nor for a child of its agent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from threading import get_ident
from typing import Final, Literal, TypeAlias, final, get_args
from weakref import WeakKeyDictionary

import trio

import agentkernel as ak
from agentkernel.tools.approval import Decision, Policy

from .grants import GRANT, NO_GRANT, Grant, Grants, grant_for
from .question import ApprovalScope, OpenQuestion, Question, next_id
from .standing import Standing

__all__ = ["Approvals"]

_Permission: TypeAlias = ak.Allow | ak.Ask | ak.Deny

_NO_DENIAL: Final = ("allow", "ask")
_ANSWERS: Final[frozenset[object]] = frozenset(("allow", "deny"))
_SCOPES: Final[frozenset[object]] = frozenset((None, *get_args(ApprovalScope)))


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
        self._grants: WeakKeyDictionary[ak.Agent, Grants] = WeakKeyDictionary()
        kernel = scope.kernel if isinstance(scope, ak.Agent) else scope
        self._thread = get_ident()
        self._standing = Standing(kernel)
        self._unregister = [
            kernel.on(ak.PreExecute, self._pre_execute),
            kernel.on(ak.Approve, self._approve),
            kernel.on(ak.AgentDisposed, self._disposed),
            kernel.tools.guard(self._guard),
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
            for entry in self._standing
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
          scope: `session` for a yes to every later call that the question's `covers`
            names; None for what the question says.
          reason: the model is told why its call was denied.

        Raises:
          StaleApprovalError: if the question is closed, or not known, or its turn is
            over. Nothing runs.
          ValueError: if the decision or the scope is none of those, or the scope is
            `session` and the question does not permit that, or the answer is no.
          TypeError: if the reason is no text.
          WrongThreadError: if this is not the kernel's thread.

        """
        self._check_thread("answer")
        entry = self._standing.find(approval_id)
        _check(decision, scope, reason)
        if scope == "session" and decision == "deny":
            raise ValueError("only a yes can hold for the whole session")
        if scope == "session" and not entry.question.may_last:
            raise ValueError("a yes to this question holds once only")
        if decision == "deny":
            self._standing.close(entry, "denied", reason=reason)
        else:
            self._allow(entry, scope or entry.question.scope, reason)

    def dismiss(
        self, approval_id: str, *, keep_inbox: bool = False
    ) -> ak.CancelReceipt:
        """Stop the turn that asks instead of answering: the question is cancelled.

        No call of that turn is started any more. Not a checkpoint.

        Raises:
          StaleApprovalError: if the question is closed, or not known, or its turn is
            over.
          WrongThreadError: if this is not the kernel's thread.

        """
        self._check_thread("dismiss")
        question = self._standing.find(approval_id).question
        return question.agent.cancel(ak.USER, keep_inbox=keep_inbox, turn=question.turn)

    def _check_thread(self, verb: str) -> None:
        if get_ident() != self._thread:
            raise ak.WrongThreadError(verb, "approvals")

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
        # Somebody behind this one asks, and not only for want of a word on the call.
        insists = isinstance(inner, ak.Ask) and not inner.waivable
        if decision.action == "allow":
            return inner if insists else ak.Allow(arguments)
        if decision.action != "ask":
            return ak.Deny(decision.reason)
        if insists:
            return inner
        waivable = not self._has_rule(name, shown)
        return ak.Ask(decision.reason, arguments, waivable=waivable)

    def _guard(self, payload: ak.PreExecute) -> str | None:
        """Hold the policy's denials against what will run.

        A listener in front of this one may have changed the arguments, or have decided
        without asking on.
        """
        if not self._covers(payload.agent):
            return None
        decision = self.policy.decide(payload.call.name, payload.call.arguments)
        return None if decision.action in _NO_DENIAL else decision.reason

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
        if decision.action != "ask":
            return decision
        grant = grant_for(self.policy, decision, name, arguments).key
        if await self._is_granted(agent, grant):
            return Decision("allow", decision.reason, "session", grant)
        return decision

    async def _is_granted(self, agent: ak.Agent, grant: str) -> bool:
        """Whether a person has said yes to this for the session.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        await trio.lowlevel.checkpoint()
        if not grant:
            return False
        grants = self._grants.setdefault(agent, Grants())
        await grants.load(agent.session)
        return grant in grants.known

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
        agent, call = payload.agent, payload.call
        decision = self.policy.decide(call.name, call.arguments)
        ours = decision.action == "ask" and decision.reason == payload.reason
        grant = NO_GRANT
        if ours:
            grant = grant_for(self.policy, decision, call.name, call.arguments)
        # The yes may have come since the policy was asked about this call.
        if await self._is_granted(agent, grant.key):
            return ak.Allow()
        payload.signal.raise_if_cancelled()
        entry = _make_question(payload, decision.scope if ours else "once", grant)
        standing = self._standing
        with ExitStack() as leaving:
            leaving.callback(standing.close, entry, "cancelled")
            leaving.callback(
                payload.signal.on_cancel(lambda _: standing.close(entry, "cancelled"))
            )
            standing.put(entry)
            # A crash while it stands shall find it. A store that fails is reported
            # by the kernel, and starts no call.
            with suppress(ak.StorageError):
                await agent.session.flush()
            await entry.closed.wait()
        payload.signal.raise_if_cancelled()
        decided = entry.decided
        if decided is not None and decided.decision == "allowed":
            return ak.Allow()
        reason = None if decided is None else decided.reason
        return ak.Deny(reason or "the user said no")

    def _allow(
        self, entry: OpenQuestion, scope: ApprovalScope, reason: str | None
    ) -> None:
        """Record a yes; let it hold for the session, and for what is asked already."""
        question = entry.question
        agent = question.agent
        self._standing.close(entry, "allowed", scope, reason)
        if scope == "once":
            return
        body = {"session": agent.id, "approval_id": question.id, "grant": entry.grant}
        agent.session.append(ak.Extension(GRANT, body))
        self._grants.setdefault(agent, Grants()).known.add(entry.grant)
        reason = f"allowed for this session by {question.id}"
        for other in tuple(self._standing):
            if other.question.agent is agent and other.grant == entry.grant:
                self._standing.close(other, "allowed", reason=reason)


def _check(decision: object, scope: object, reason: object) -> None:
    """Refuse an answer that is none.

    Raises:
      ValueError: if the decision or the scope is not known.
      TypeError: if the reason is no text.

    """
    if decision not in _ANSWERS:
        raise ValueError(f"the answer is 'allow' or 'deny', not {decision!r}")
    if scope not in _SCOPES:
        raise ValueError(f"the scope is 'once' or 'session', not {scope!r}")
    if not isinstance(reason, str | None):
        raise TypeError(f"the reason is a text, not {reason!r}")


def _make_question(
    payload: ak.Approve, scope: ApprovalScope, grant: Grant
) -> OpenQuestion:
    agent, call = payload.agent, payload.call
    question = Question(
        next_id(agent),
        agent,
        call.turn,
        call.call_id,
        call.name,
        call.arguments,
        payload.reason,
        scope,
        bool(grant.key),
        grant.words,
    )
    return OpenQuestion(question, grant.key)


def _line(agent: ak.Agent) -> Iterator[ak.Agent]:
    """The agent, its parent, and so on."""
    one: ak.Agent | None = agent
    while one is not None:
        yield one
        one = one.parent
