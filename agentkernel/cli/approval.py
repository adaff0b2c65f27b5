"""Who may run a tool that changes something: the options, else the person who is there.

Listens on one agent. A question that is cancelled, because the turn is stopped while
it stands, is recorded as cancelled and denies nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final, Literal, TypeAlias, final

import trio

from agentkernel import (
    Agent,
    Allow,
    ApprovalAsked,
    ApprovalDecided,
    Approve,
    Ask,
    Deny,
    PreExecute,
    Tool,
)

from .transcript import describe_call

__all__ = ["Answer", "Approvals", "Asker", "read_answer"]

Answer: TypeAlias = Literal["yes", "no", "always"]
Asker: TypeAlias = Callable[[str], Awaitable[Answer]]

# What a person is asked about is shown, and what is left out is counted.
_SHOWN: Final = 8000
_ANSWERS: Final[dict[str, Answer]] = {
    "y": "yes",
    "yes": "yes",
    "n": "no",
    "no": "no",
    "a": "always",
    "always": "always",
}


def read_answer(text: str) -> Answer | None:
    """Read what a person typed; None if it is no answer."""
    return _ANSWERS.get(text.strip().lower())


def needs_approval(tool: Tool) -> bool:
    """Whether a tool wants to be asked about; tools that do not say so do not."""
    return getattr(tool, "needs_approval", False) is True


@final
class Approvals:
    """Decides about the calls of one agent's tools."""

    def __init__(
        self, tools: Collection[Tool], allow: Collection[str], ask: Asker | None
    ) -> None:
        self._guarded = {tool.spec.name for tool in tools if needs_approval(tool)}
        self._allowed = set(allow)
        self._ask = ask
        # One question at a time.
        self._asking = trio.Lock()

    def attach(self, agent: Agent) -> None:
        """Listen to an agent. Not a checkpoint."""
        agent.on(PreExecute, self._pre_execute)
        agent.on(Approve, self._approve)

    async def _pre_execute(
        self,
        payload: PreExecute,
        proceed: Callable[[PreExecute], Awaitable[Allow | Ask | Deny]],
    ) -> Allow | Ask | Deny:
        """Ask about a guarded call. A checkpoint only if another listener is one.

        Cancellation:
          Passes through.

        """
        decision = await proceed(payload)
        name = payload.call.name
        if not isinstance(decision, Allow) or not self._is_guarded(name):
            return decision
        if self._ask is None:
            return Deny(f"{name} is off without a terminal; --allow {name} permits it")
        return Ask("it changes something outside the conversation")

    async def _approve(
        self, payload: Approve, proceed: Callable[[Approve], Awaitable[Allow | Deny]]
    ) -> Allow | Deny:
        """Ask the person, and record the question and the answer.

        Always a checkpoint.

        Cancellation:
          Passes through; the question is recorded as cancelled.

        """
        if self._ask is None:
            return await proceed(payload)
        async with self._asking:
            call = payload.call
            if not self._is_guarded(call.name):
                return Allow()  # the question before this one was answered `always`
            session = payload.agent.session
            session.append(
                ApprovalAsked(
                    call.call_id, call.call_id, call.name, call.arguments, "terminal"
                )
            )
            try:
                answer = await self._ask(
                    describe_call(call.name, call.arguments, _SHOWN)
                )
            except trio.Cancelled:
                session.append(ApprovalDecided(call.call_id, "cancelled"))
                raise
            session.append(
                ApprovalDecided(
                    call.call_id,
                    "denied" if answer == "no" else "allowed",
                    "session" if answer == "always" else "once",
                )
            )
        if answer == "no":
            return Deny("the user said no")
        if answer == "always":
            self._allowed.add(call.name)
        return Allow()

    def _is_guarded(self, name: str) -> bool:
        return name in self._guarded and name not in self._allowed
