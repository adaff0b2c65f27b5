"""What race tests share: plain tools, and ways to read a log. Nothing here acts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import agentkernel as ak

F = TypeVar("F")
D = TypeVar("D")

Next = Callable[[F], Awaitable[D]]
Body = Callable[[ak.ToolInvocation], Awaitable[ak.ToolOutput]]


class BodyTool:
    """A tool whose body is a function of the test's."""

    def __init__(
        self,
        name: str,
        body: Body,
        *,
        parallel_safe: bool = False,
        max_seconds: float | None = None,
    ) -> None:
        self.spec = ak.ToolSpec(name, f"the tool {name}", {"type": "object"})
        self.parallel_safe = parallel_safe
        self.max_seconds = max_seconds
        self._body = body

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation) -> ak.ToolOutput:
        return await self._body(call)


async def returns_done(call: ak.ToolInvocation) -> ak.ToolOutput:
    return ak.ToolOutput.of("done")


def facts(agent: ak.Agent, kind: type[F]) -> list[F]:
    """The facts of one kind in an agent's log, in order."""
    return [e.data for e in agent.session.events if isinstance(e.data, kind)]


def endings(agent: ak.Agent) -> list[tuple[int, str]]:
    """The turns that have ended, with how."""
    return [(fact.turn, fact.reason.kind) for fact in facts(agent, ak.TurnEnded)]


def codes(agent: ak.Agent) -> list[str | None]:
    """The error codes of the tool results, in the order in which they were appended."""
    return [
        None if fact.error is None else fact.error.code
        for fact in facts(agent, ak.ToolReturned)
    ]


def entered(agent: ak.Agent) -> list[str]:
    """The texts of the messages that entered, in order."""
    return [fact.message.text for fact in facts(agent, ak.MessageEntered)]


def said(messages: Sequence[ak.Message]) -> list[str]:
    """A history in short: who said what."""
    lines: list[str] = []
    for message in messages:
        if isinstance(message, ak.UserMessage):
            lines.append(f"user: {message.text}")
        elif isinstance(message, ak.AssistantMessage):
            calls = "".join(f"<{call.name}>" for call in message.calls)
            lines.append(f"assistant: {message.text}{calls}")
        elif isinstance(message, ak.ToolResults):
            lines.extend(f"result: {r.name}" for r in message.results)
        else:
            lines.append("note")
    return lines
