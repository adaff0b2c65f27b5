"""Who may run a tool that changes something: the options, else the person who is there.

The rules are a policy of the approvals bridge, and the person is one of its clients:
questions, answers and what was allowed for the session are facts of the log. A
question that is closed elsewhere, because the turn is stopped, is taken back.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from glob import escape
from typing import Final, Literal, Protocol, TypeAlias, final

import trio

from agentkernel import Agent, Appended, ApprovalAsked, ApprovalDecided, Tool
from agentkernel.bridges.approvals import (
    Approvals,
    ApprovalScope,
    Question,
    StaleApprovalError,
)
from agentkernel.tools.approval import Policy, Rule

from .plain import one_line
from .transcript import describe_call

__all__ = [
    "Answer",
    "Asker",
    "Person",
    "describe_answers",
    "make_policy",
    "read_answer",
]

Answer: TypeAlias = Literal["yes", "no", "always"]


class Asker(Protocol):
    """Asks the person."""

    async def __call__(self, question: str, /, *, may_last: bool) -> Answer:
        """Wait for an answer; `always` only if it `may_last`.

        Cancellation:
          The question is taken back.

        Raises:
          OSError: if the person cannot be reached.

        """
        ...


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
_CHANGES: Final = "it changes something outside the conversation"
_SCOPES: Final[dict[Answer, ApprovalScope]] = {
    "yes": "once",
    "no": "once",
    "always": "session",
}


def describe_answers(*, may_last: bool) -> str:
    """Say what can be typed."""
    always = ", a = always, any call of this tool in this session" if may_last else ""
    return f"y = yes, n = no{always}"


def read_answer(text: str, *, may_last: bool) -> Answer | None:
    """Read what a person typed; None if it is no answer."""
    answer = _ANSWERS.get(text.strip().lower())
    return None if answer == "always" and not may_last else answer


def needs_approval(tool: Tool) -> bool:
    """Whether a tool wants to be asked about; tools that do not say so do not."""
    return bool(getattr(tool, "needs_approval", False))


def make_policy(
    tools: Collection[Tool], allow: Collection[str], *, asks: bool
) -> Policy:
    """Ask about the tools that want it, or refuse them if there is nobody to ask.

    Args:
      tools: all that are offered.
      allow: the names of those that run all the same.
      asks: whether there is a person.

    """
    names = [tool.spec.name for tool in tools if needs_approval(tool)]
    return Policy(
        tuple(_rule(name, asks=asks) for name in names if name not in allow), "allow"
    )


def _rule(name: str, *, asks: bool) -> Rule:
    if asks:
        return Rule("ask", escape(name), scope="session", reason=_CHANGES)
    reason = f"{name} is off without a terminal; --allow {name} permits it"
    return Rule("deny", escape(name), reason=reason)


@final
class Person:
    """Puts open questions to who sits there, one at a time; refuses if nobody does.

    Questions of children are among them, and those that a hook or a remote agent
    asks, which the options know nothing of.
    """

    def __init__(self, agent: Agent, approvals: Approvals, ask: Asker | None) -> None:
        self._agent = agent
        self._approvals = approvals
        self._ask = ask
        self._changed = trio.Event()
        # The question that is being put.
        self._asked = ""
        self._asking = trio.CancelScope()
        self._unregister = agent.kernel.on(Appended, self._appended)

    async def run(self) -> None:
        """Answer questions for ever. Always a checkpoint.

        Cancellation:
          The question that is being put is taken back, and stays open.

        """
        try:
            while True:
                changed = self._changed = trio.Event()
                questions = self._approvals.open()
                if not questions:
                    await changed.wait()
                    continue
                question = questions[0]
                self._asked = question.id
                with trio.CancelScope() as self._asking:
                    await self._put(question)
                self._asked = ""
        finally:
            self._unregister()

    def _appended(self, payload: Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ApprovalAsked):
            self._changed.set()
        elif isinstance(fact, ApprovalDecided) and fact.approval_id == self._asked:
            self._asking.cancel()

    async def _put(self, question: Question) -> None:
        """Put one question, and hand its answer on.

        Always a checkpoint.

        Cancellation:
          It is taken back.

        """
        await trio.lowlevel.checkpoint()
        answer: Answer = "no"
        reason: str | None = None
        if self._ask is None:
            reason = f"there is no terminal to ask on: {question.reason}"
        else:
            try:
                answer = await self._ask(
                    self._describe(question), may_last=question.may_last
                )
            except OSError as error:
                reason = f"nobody could be asked: {error}"
        # It may have been closed while the answer was on its way.
        with suppress(StaleApprovalError):
            self._approvals.answer(
                question.id,
                "deny" if answer == "no" else "allow",
                scope=_SCOPES[answer],
                reason=reason,
            )

    def _describe(self, question: Question) -> str:
        """Say what would run, for whom, and why that is asked if no option says so."""
        text = describe_call(question.name, question.arguments, _SHOWN)
        if question.agent is not self._agent:
            text = f"{one_line(question.agent.id)}: {text}"
        if question.reason and question.reason != _CHANGES:
            text = f"{text}, for: {one_line(question.reason, _SHOWN)}"
        return text
