"""pydantic-ai: `Agent.run_stream_events` over its own `FunctionModel`.

Runs in an environment of its own, which `scripts/bench` makes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from pydantic_ai import Agent, AgentRunResultEvent, PartDeltaEvent, PartStartEvent
from pydantic_ai.messages import ModelMessage, TextPart, TextPartDelta, ToolReturnPart
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

from .compare import compare

TEXT = ("one ", "two ", "three")


async def answer(  # noqa: RUF029  # it answers at once
    messages: list[ModelMessage], info: AgentInfo
) -> AsyncIterator[str | DeltaToolCalls]:
    """Three chunks of text; where there are tools, one call first."""
    if info.function_tools and not isinstance(messages[-1].parts[-1], ToolReturnPart):
        yield {0: DeltaToolCall(name="add", json_args='{"a": 1, "b": 2}')}
        return
    for text in TEXT:
        yield text


async def add(a: int, b: int) -> str:  # noqa: RUF029  # as the kernel's is
    """Add two numbers."""
    return str(a + b)


class PydanticAI:
    def __init__(self) -> None:
        model = FunctionModel(stream_function=answer)
        self._plain: Agent[None, str] = Agent(model)
        self._with_tool: Agent[None, str] = Agent(model)
        self._with_tool.tool_plain(add)
        self._said: Sequence[ModelMessage] = ()

    async def turn(self) -> str:
        text, _ = await _run(self._plain)
        return text

    async def tool_turn(self) -> str:
        text, _ = await _run(self._with_tool)
        return text

    async def talk(self) -> str:
        text, self._said = await _run(self._plain, self._said)
        return text


async def _run(
    agent: Agent[None, str], said: Sequence[ModelMessage] = ()
) -> tuple[str, Sequence[ModelMessage]]:
    texts: list[str] = []
    async with agent.run_stream_events("hi", message_history=said) as events:
        async for event in events:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                texts.append(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(
                event.delta, TextPartDelta
            ):
                texts.append(event.delta.content_delta)
            elif isinstance(event, AgentRunResultEvent):
                said = event.result.all_messages()
    return "".join(texts), said


if __name__ == "__main__":
    compare("pydantic-ai-slim", PydanticAI())
