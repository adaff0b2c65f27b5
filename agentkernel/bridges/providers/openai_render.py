"""A model request -> the body of a chat-completions request: pure.

Rules of the protocol that the rendering keeps, whatever the history looks like: an
assistant message says or calls something; the `tool` messages of its calls stand
directly behind it, in call order; what a tool cannot be shown as text (an image)
follows them on the user's side. A call goes out under the kernel's id, since a
provider's own may come twice.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from agentkernel import (
    AssistantMessage,
    BinaryBlock,
    JsonObject,
    JsonValue,
    Message,
    ModelError,
    ModelRequest,
    Note,
    ReasoningBlock,
    TextBlock,
    ToolCall,
    ToolResults,
    ToolSpec,
    UserMessage,
)

from .rendering import (
    EMPTY_MESSAGE,
    RequestOptions,
    ToolName,
    attachment_text,
    base64_of,
    note_text,
    read_extra_body,
    read_options,
    result_text,
)
from .wire import join_arguments, wire_id, wire_name, wire_text, wire_value

__all__ = ["OpenAIDialect", "render_openai"]

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3"}


class OpenAIDialect(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the servers that speak chat completions.

    Attributes:
      max_tokens_field: the name of the limit; OpenAI's own newer models want
        `max_completion_tokens`, other servers know `max_tokens` alone.
      include_usage: whether to ask for token counts at the end of the stream.
      replay_reasoning: whether the model's reasoning is sent back to it, as
        `reasoning_content`; some servers want it beside tool calls.

    """

    max_tokens_field: str = "max_tokens"
    include_usage: bool = True
    replay_reasoning: bool = False


def render_openai(
    request: ModelRequest, model: str, dialect: OpenAIDialect
) -> JsonObject:
    """Render a request.

    Raises:
      ModelError: if there is nothing to send, or an option cannot be used.

    """
    options = read_options(request)
    messages: list[JsonValue] = []
    if request.system.strip():
        messages.append({"role": "system", "content": wire_text(request.system)})
    for message in request.messages:
        messages += _render(message, dialect)
    if not request.messages:
        raise ModelError("there is nothing to send", code="invalid-request")
    body: dict[str, JsonValue] = {"model": model, "messages": messages, "stream": True}
    if dialect.include_usage:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return {**body, **_options(options, dialect), **read_extra_body(request)}


def _options(options: RequestOptions, dialect: OpenAIDialect) -> JsonObject:
    choice: JsonValue
    if isinstance(options.tool_choice, ToolName):
        name = wire_name(options.tool_choice.name)
        choice = {"type": "function", "function": {"name": name}}
    else:
        choice = options.tool_choice
    known: dict[str, JsonValue] = {
        "temperature": options.temperature,
        dialect.max_tokens_field: options.max_tokens,
        "top_p": options.top_p,
        "stop": options.stop,
        "tool_choice": choice,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tool(tool: ToolSpec) -> JsonValue:
    return {
        "type": "function",
        "function": {
            "name": wire_name(tool.name),
            "description": wire_text(tool.description),
            "parameters": wire_value(tool.parameters),
        },
    }


def _render(message: Message, dialect: OpenAIDialect) -> list[JsonValue]:
    match message:
        case UserMessage():
            return [{"role": "user", "content": _user_content(message.content)}]
        case Note():
            return [{"role": "user", "content": note_text(message)}]
        case AssistantMessage():
            return _assistant(message, dialect)
        case ToolResults():
            return _results(message)
        case _:
            assert_never(message)


def _assistant(message: AssistantMessage, dialect: OpenAIDialect) -> list[JsonValue]:
    """Render an answer; one that says and calls nothing is left out."""
    text = wire_text(message.text)
    said: dict[str, JsonValue] = {"role": "assistant"}
    said["content"] = text if text.strip() else None
    if message.calls:
        said["tool_calls"] = [_call(call) for call in message.calls]
    elif not text.strip():
        return []
    if dialect.replay_reasoning:
        thoughts = [b.text for b in message.content if isinstance(b, ReasoningBlock)]
        if any(thoughts):
            said["reasoning_content"] = wire_text("".join(thoughts))
    return [said]


def _call(call: ToolCall) -> JsonValue:
    return {
        "id": wire_id(call.call_id),
        "type": "function",
        "function": {
            "name": wire_name(call.name),
            "arguments": join_arguments(call.arguments),
        },
    }


def _results(message: ToolResults) -> list[JsonValue]:
    """Render the results as one block, and behind it what is no text."""
    block: list[JsonValue] = []
    shown: list[BinaryBlock] = []
    for result in message.results:
        lines = [result_text(result)]
        for item in result.content:
            if isinstance(item, BinaryBlock):
                shows = _part(item) is not None
                lines.append(attachment_text(item, shown=shows))
                shown += [item] if shows else []
        block.append(
            {
                "role": "tool",
                "tool_call_id": wire_id(result.call_id),
                "content": "\n".join(lines),
            }
        )
    if shown:
        block.append({"role": "user", "content": _user_content(tuple(shown))})
    return block


def _user_content(content: tuple[TextBlock | BinaryBlock, ...]) -> JsonValue:
    """Render what a user says: a string if it is text alone."""
    if all(isinstance(item, TextBlock) for item in content):
        text = "".join(i.text for i in content if isinstance(i, TextBlock))
        return wire_text(text) if text.strip() else EMPTY_MESSAGE
    parts: list[JsonValue] = []
    for item in content:
        if isinstance(item, TextBlock):
            if item.text.strip():
                parts.append(_text(wire_text(item.text)))
        else:
            parts.append(_part(item) or _text(attachment_text(item, shown=False)))
    return parts


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": text}


def _part(block: BinaryBlock) -> JsonObject | None:
    """Render a file, None if the protocol has no form for its kind."""
    kind = block.media_type.lower()
    if kind.startswith("image/"):
        url = f"data:{kind};base64,{base64_of(block)}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind in _AUDIO:
        sound: JsonObject = {"data": base64_of(block), "format": _AUDIO[kind]}
        return {"type": "input_audio", "input_audio": sound}
    if kind == "application/pdf":
        content = f"data:{kind};base64,{base64_of(block)}"
        name = wire_text(block.name or "file.pdf")
        return {"type": "file", "file": {"filename": name, "file_data": content}}
    return None
