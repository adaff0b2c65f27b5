"""A model request -> the body of a messages request: pure.

Rules of the protocol that the rendering keeps, whatever the history looks like: user
and assistant take turns, the user first; a message is never empty and holds no blank
text block; the results of an assistant message's calls are the first blocks of the
one user message behind it; reasoning is sent back only under its seal, byte for byte
and never as the last thing said. A call goes out under the kernel's id, since a
provider's own may come twice.
"""

from __future__ import annotations

from typing import Literal, assert_never

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
    ToolResult,
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
from .wire import wire_id, wire_name, wire_text, wire_value

__all__ = ["render_anthropic"]

_IMAGES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
# A history that begins with an answer (of a fork, say) is given a user to answer.
_BEGINNING = "(the conversation began earlier)"


def render_anthropic(
    request: ModelRequest, model: str, *, max_tokens: int
) -> JsonObject:
    """Render a request; `max_tokens` is the limit if its options name none.

    Raises:
      ModelError: if there is nothing to send, or an option cannot be used.

    """
    options = read_options(request)
    messages = _messages(request)
    if not messages:
        raise ModelError("there is nothing to send", code="invalid-request")
    limit = max_tokens if options.max_tokens is None else options.max_tokens
    body: dict[str, JsonValue] = {
        "model": model,
        "max_tokens": limit,
        "messages": messages,
        "stream": True,
    }
    if request.system.strip():
        body["system"] = wire_text(request.system)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    return {**body, **_options(options), **read_extra_body(request)}


def _options(options: RequestOptions) -> JsonObject:
    body: dict[str, JsonValue] = {}
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.top_p is not None:
        body["top_p"] = options.top_p
    if options.stop is not None:
        stop = options.stop
        body["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    match options.tool_choice:
        case ToolName(name):
            body["tool_choice"] = {"type": "tool", "name": wire_name(name)}
        case "required":
            body["tool_choice"] = {"type": "any"}
        case str() as kind:
            body["tool_choice"] = {"type": kind}
        case None:
            pass
    return body


def _tool(tool: ToolSpec) -> JsonValue:
    return {
        "name": wire_name(tool.name),
        "description": wire_text(tool.description),
        "input_schema": wire_value(tool.parameters),
    }


def _messages(request: ModelRequest) -> list[JsonValue]:
    """Render the history, neighbours of one role as one message."""
    joined: list[tuple[str, list[JsonValue]]] = []
    for message in request.messages:
        role, blocks = _render(message)
        if joined and joined[-1][0] == role:
            joined[-1][1].extend(blocks)
        elif blocks:
            joined.append((role, blocks))
    if joined and joined[0][0] == "assistant":
        joined.insert(0, ("user", [_text(_BEGINNING)]))
    return [{"role": role, "content": blocks} for role, blocks in joined]


def _render(message: Message) -> tuple[Literal["user", "assistant"], list[JsonValue]]:
    match message:
        case UserMessage():
            return "user", _content(message.content) or [_text(EMPTY_MESSAGE)]
        case Note():
            return "user", [_text(note_text(message))]
        case ToolResults():
            return "user", [_result(result) for result in message.results]
        case AssistantMessage():
            return "assistant", _assistant(message)
        case _:
            assert_never(message)


def _assistant(message: AssistantMessage) -> list[JsonValue]:
    """Render an answer; what cannot be sent back is left out, perhaps all of it."""
    content = list(message.content)
    while content and not _says_something(content[-1]):
        content.pop()
    blocks: list[JsonValue] = []
    for item in content:
        match item:
            case TextBlock(text):
                if text.strip():
                    blocks.append(_text(wire_text(text)))
            case ReasoningBlock():
                blocks += _reasoning(item)
            case ToolCall():
                blocks.append(_call(item))
            case _:
                assert_never(item)
    return blocks


def _says_something(item: TextBlock | ReasoningBlock | ToolCall) -> bool:
    if isinstance(item, TextBlock):
        return bool(item.text.strip())
    return isinstance(item, ToolCall)


def _reasoning(block: ReasoningBlock) -> list[JsonValue]:
    """Render reasoning as it came: without its seal there is no form for it."""
    if block.data is not None:
        return [{"type": "redacted_thinking", "data": block.data}]
    if block.signature is not None:
        sealed: JsonObject = {
            "type": "thinking",
            "thinking": block.text,
            "signature": block.signature,
        }
        return [sealed]
    return []


def _call(call: ToolCall) -> JsonValue:
    return {
        "type": "tool_use",
        "id": wire_id(call.call_id),
        "name": wire_name(call.name),
        "input": wire_value(call.arguments),
    }


def _result(result: ToolResult) -> JsonValue:
    files = _content(tuple(b for b in result.content if isinstance(b, BinaryBlock)))
    block: dict[str, JsonValue] = {
        "type": "tool_result",
        "tool_use_id": wire_id(result.call_id),
        "content": [_text(result_text(result)), *files],
    }
    if result.error is not None:
        block["is_error"] = True
    return block


def _content(content: tuple[TextBlock | BinaryBlock, ...]) -> list[JsonValue]:
    """Render text and files; blank text is left out."""
    blocks: list[JsonValue] = []
    for item in content:
        if isinstance(item, BinaryBlock):
            blocks.append(_file(item))
        elif item.text.strip():
            blocks.append(_text(wire_text(item.text)))
    return blocks


def _text(text: str) -> JsonValue:
    return {"type": "text", "text": text}


def _file(block: BinaryBlock) -> JsonValue:
    kind = block.media_type.lower()
    if kind in _IMAGES:
        name = "image"
    elif kind == "application/pdf":
        name = "document"
    else:
        return _text(attachment_text(block, shown=False))
    source: JsonObject = {
        "type": "base64",
        "media_type": kind,
        "data": base64_of(block),
    }
    return {"type": name, "source": source}
