"""The OpenAI Agents SDK: `Runner.run_streamed`, tracing off.

Runs in an environment of its own, which `scripts/bench` makes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from agents import (
    Agent,
    Model,
    Runner,
    TResponseInputItem,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputItem,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseStreamEvent,
    ResponseTextDeltaEvent,
)

from .compare import compare

TEXT = ("one ", "two ", "three")


@function_tool
async def add(a: int, b: int) -> str:  # noqa: RUF029  # as the kernel's is
    """Add two numbers."""
    return str(a + b)


class Answers(Model):
    """Three chunks of text; where there are tools, one call first."""

    async def get_response(self, *args: object, **kwargs: object) -> object:
        raise NotImplementedError

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],  # the framework's name
        model_settings: object,
        tools: list[object],
        *args: object,
        **kwargs: object,
    ) -> AsyncIterator[ResponseStreamEvent]:
        last = input[-1]
        answered = isinstance(last, dict) and last.get("type") == "function_call_output"
        if tools and not answered:
            call = ResponseFunctionToolCall(
                arguments='{"a": 1, "b": 2}',
                call_id="call",
                name="add",
                type="function_call",
            )
            yield _completed(call, 0)
            return
        for number, text in enumerate(TEXT):
            yield ResponseTextDeltaEvent(
                content_index=0,
                delta=text,
                item_id="message",
                logprobs=[],
                output_index=0,
                sequence_number=number,
                type="response.output_text.delta",
            )
        part = ResponseOutputText(
            annotations=[], text="".join(TEXT), type="output_text", logprobs=[]
        )
        message = ResponseOutputMessage(
            id="message",
            content=[part],
            role="assistant",
            status="completed",
            type="message",
        )
        yield _completed(message, len(TEXT))


def _completed(item: ResponseOutputItem, number: int) -> ResponseCompletedEvent:
    response = Response(
        id="response",
        created_at=0,
        model="fake",
        object="response",
        output=[item],
        parallel_tool_calls=False,
        tool_choice="auto",
        tools=[],
    )
    return ResponseCompletedEvent(
        response=response, sequence_number=number, type="response.completed"
    )


class OpenAIAgents:
    def __init__(self) -> None:
        model = Answers()
        self._plain = Agent(name="plain", model=model)
        self._with_tool = Agent(name="tool", model=model, tools=[add])
        self._said: list[TResponseInputItem] = []

    async def turn(self) -> str:
        text, _ = await _run(self._plain, "hi")
        return text

    async def tool_turn(self) -> str:
        text, _ = await _run(self._with_tool, "hi")
        return text

    async def talk(self) -> str:
        asked: TResponseInputItem = {"role": "user", "content": "hi"}
        text, self._said = await _run(self._plain, [*self._said, asked])
        return text


async def _run(
    agent: Agent, said: str | list[TResponseInputItem]
) -> tuple[str, list[TResponseInputItem]]:
    result = Runner.run_streamed(agent, said)
    texts = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event"
        and isinstance(event.data, ResponseTextDeltaEvent)
    ]
    return "".join(texts), result.to_input_list()


if __name__ == "__main__":
    set_tracing_disabled(disabled=True)
    compare("openai-agents", OpenAIAgents())
