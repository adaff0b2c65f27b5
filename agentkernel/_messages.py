"""Messages and what they are made of: frozen values, equal by content.

A conversation is a sequence of `Message`: what a user (or another system) said,
what the model answered, the results of the calls in that answer as one block, and
notes that nobody said. The chunk classes are what a model's stream yields; they
become an `AssistantMessage` in `agentkernel._loop.stream`.

Identity is a matter of the log: only user messages carry an id, since they can be
sent twice, replaced and withdrawn before they enter a turn.
"""

import hashlib
from typing import Literal, TypeAlias

import msgspec

from ._json import EMPTY, JsonObject, clean_text, freeze_object

__all__ = [
    "AssistantMessage",
    "BinaryBlock",
    "Blob",
    "Chunk",
    "FinishChunk",
    "FinishReason",
    "Message",
    "Note",
    "ReasoningBlock",
    "ReasoningChunk",
    "ReasoningEndChunk",
    "TextBlock",
    "TextChunk",
    "ToolCall",
    "ToolCallChunk",
    "ToolFailure",
    "ToolResult",
    "ToolResults",
    "ToolSpec",
    "Usage",
    "UsageChunk",
    "UserMessage",
]


class Blob:
    """Binary content, equal by content; a store keeps it outside the event.

    On the wire it is `{"$blob": "<sha256>", "size": n}`.
    """

    __slots__ = ("_sha256", "data")

    def __init__(self, data: bytes) -> None:
        self.data: bytes = bytes(data)
        self._sha256: str | None = None

    @property
    def sha256(self) -> str:
        """The content's SHA-256, in hexadecimal; computed once, when asked for."""
        if self._sha256 is None:
            self._sha256 = hashlib.sha256(self.data).hexdigest()
        return self._sha256

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blob) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"Blob(<{len(self.data)} bytes>)"


class TextBlock(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Text."""

    text: str


class ReasoningBlock(
    msgspec.Struct, frozen=True, gc=False, tag="reasoning", omit_defaults=True
):
    """What a model thought aloud.

    Attributes:
      signature: the provider's seal on `text`. Only a complete block has one, and
        only a block with a seal is sent back as reasoning by providers that ask
        for it.
      data: the provider's opaque form of a block whose text it keeps to itself.

    """

    text: str
    signature: str | None = None
    data: str | None = None


class BinaryBlock(
    msgspec.Struct, frozen=True, gc=False, tag="binary", omit_defaults=True
):
    """An image, a sound or a file."""

    media_type: str
    data: Blob
    name: str | None = None


class ToolCall(
    msgspec.Struct, frozen=True, gc=False, tag="tool-call", omit_defaults=True
):
    """A call that the model asks for.

    Attributes:
      call_id: given by the kernel, unique in the session.
      arguments: always an object, `{}` where the model's text was not one.
      provider_id: the id that the provider used, if any; not unique.
      problem: what is wrong with the arguments as the model wrote them; a call
        with a problem never reaches a body.

    """

    call_id: str
    name: str
    arguments: JsonObject
    provider_id: str | None = None
    problem: str | None = None


class ToolFailure(msgspec.Struct, frozen=True, gc=False):
    """Why a tool result is an error: a stable code and a text for the model."""

    code: str
    message: str


class ToolResult(
    msgspec.Struct, frozen=True, gc=False, tag="tool-result", omit_defaults=True
):
    """The one result of one call, as the model is shown it."""

    call_id: str
    name: str
    content: tuple[TextBlock | BinaryBlock, ...]
    error: ToolFailure | None = None


class UserMessage(
    msgspec.Struct, frozen=True, gc=False, tag="user", omit_defaults=True
):
    """What is said to the model from outside.

    Attributes:
      id: accepted once per session.
      kind: `notice` for the news that a job or child has ended.
      passive: it rides with the next step and never causes one; set by `inject`.
      meta: JSON that travels with the message; the model is not shown it.

    """

    id: str
    content: tuple[TextBlock | BinaryBlock, ...]
    kind: Literal["user", "notice"] = "user"
    passive: bool = False
    meta: JsonObject = EMPTY

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(b.text for b in self.content if isinstance(b, TextBlock))


class AssistantMessage(
    msgspec.Struct, frozen=True, gc=False, tag="assistant", omit_defaults=True
):
    """What the model answered, in the order in which it said it."""

    content: tuple[TextBlock | ReasoningBlock | ToolCall, ...]
    interrupted: bool = False

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(b.text for b in self.content if isinstance(b, TextBlock))

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in the model's order."""
        return tuple(b for b in self.content if isinstance(b, ToolCall))


class ToolResults(msgspec.Struct, frozen=True, gc=False, tag="tool-results"):
    """The results of one assistant message, complete and in call order."""

    results: tuple[ToolResult, ...]


class Note(msgspec.Struct, frozen=True, gc=False, tag="note"):
    """A remark in the history that nobody said, such as that a turn was stopped."""

    text: str


Message: TypeAlias = UserMessage | AssistantMessage | ToolResults | Note


class Usage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Tokens as the provider counted them; None is unknown, never zero."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class ToolSpec(msgspec.Struct, frozen=True, gc=False):
    """What a model is told about a tool; `parameters` is a JSON schema, copied.

    Raises:
      TypeError: if the name or the description is no text, or the parameters no JSON.

    """

    name: str
    description: str
    parameters: JsonObject

    def __post_init__(self) -> None:
        """Detach the values and clean the text; refuse what no log could hold."""
        for field in ("name", "description"):
            text: object = getattr(self, field)
            if not isinstance(text, str):
                raise TypeError(f"tool {self.name!r}: its {field} must be text")
            msgspec.structs.force_setattr(self, field, clean_text(text))
        where = f"the parameters of tool {self.name!r}"
        parameters = freeze_object(dict(self.parameters), where)
        msgspec.structs.force_setattr(self, "parameters", parameters)


FinishReason: TypeAlias = Literal[
    "stop", "tool-calls", "max-tokens", "refusal", "content-filter"
]


class TextChunk(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """More text of the answer."""

    text: str


class ReasoningChunk(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """More reasoning."""

    text: str


class ReasoningEndChunk(
    msgspec.Struct, frozen=True, gc=False, tag="reasoning-end", omit_defaults=True
):
    """The reasoning block is complete, with the provider's seal if it gave one."""

    signature: str | None = None
    data: str | None = None


class ToolCallChunk(
    msgspec.Struct, frozen=True, gc=False, tag="tool-call", omit_defaults=True
):
    """One complete call, its arguments as the model wrote them.

    A provider yields it when the call is known to be complete; a call that the
    stream cut short is yielded with `truncated`.
    """

    name: str
    arguments: str
    provider_id: str | None = None
    truncated: bool = False


class UsageChunk(msgspec.Struct, frozen=True, gc=False, tag="usage"):
    """The attempt's tokens so far; each replaces what the one before it knew."""

    usage: Usage


class FinishChunk(msgspec.Struct, frozen=True, gc=False, tag="finish"):
    """The provider said that the answer ends here, and why.

    A stream that ends without one was cut, and its attempt has failed.
    """

    reason: FinishReason


Chunk: TypeAlias = (
    TextChunk
    | ReasoningChunk
    | ReasoningEndChunk
    | ToolCallChunk
    | UsageChunk
    | FinishChunk
)
