"""LangGraph, through the agent that LangChain builds on it: `agent.astream`.

A single turn runs without a checkpointer, a conversation with the one in memory. Runs
in an environment of its own, which `scripts/bench` makes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from .compare import compare

TEXT = ("one ", "two ", "three")


@tool
async def add(a: int, b: int) -> str:  # noqa: RUF029  # as the kernel's is
    """Add two numbers."""
    return str(a + b)


class Answers(BaseChatModel):
    """Three chunks of text; where there are tools, one call first."""

    calls: bool = False

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Sequence[object], **kwargs: object) -> Runnable:
        return Answers(calls=True)

    def _generate(self, *args: object, **kwargs: object) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,  # noqa: ANN401  # the framework's signature
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self.calls and not isinstance(messages[-1], ToolMessage):
            call = {
                "name": "add",
                "args": '{"a": 1, "b": 2}',
                "id": "call",
                "index": 0,
                "type": "tool_call_chunk",
            }
            message = AIMessageChunk(content="", tool_call_chunks=[call])
            yield ChatGenerationChunk(message=message)
            return
        for text in TEXT:
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=text))
            if run_manager is not None:
                await run_manager.on_llm_new_token(text, chunk=chunk)
            yield chunk


class LangGraph:
    def __init__(self) -> None:
        self._plain = create_agent(Answers(), [])
        self._with_tool = create_agent(Answers(), [add])
        self._kept = create_agent(Answers(), [], checkpointer=InMemorySaver())

    async def turn(self) -> str:
        return await _run(self._plain)

    async def tool_turn(self) -> str:
        return await _run(self._with_tool)

    async def talk(self) -> str:
        return await _run(self._kept, {"configurable": {"thread_id": "one"}})


async def _run(agent: Runnable, config: RunnableConfig | None = None) -> str:
    asked = {"messages": [{"role": "user", "content": "hi"}]}
    return "".join(
        [
            chunk.text
            async for chunk, _ in agent.astream(asked, config, stream_mode="messages")
            if isinstance(chunk, AIMessageChunk)
        ]
    )


if __name__ == "__main__":
    compare("langgraph", LangGraph())
