"""What all providers' JSON has in common: text, ids, names, and tolerant reading.

Pure functions. Out goes only what every server accepts: no half surrogate, no NUL
(both become U+FFFD, also where JSON could escape them: servers exist that cut a
string there), ids and tool names of letters, digits, `_` and `-`. What comes in is
read by msgspec, and by the standard library where a server escaped half a surrogate
pair, which msgspec refuses.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from agentkernel import JsonObject, JsonValue, ModelError, ToolSpec, clean_text

__all__ = [
    "TextJoiner",
    "decode",
    "encode",
    "is_cut",
    "join_arguments",
    "tool_names",
    "wire_id",
    "wire_name",
    "wire_text",
    "wire_value",
]

T = TypeVar("T")

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HALF_NUMBER = re.compile(r"-|\.|[eE][+-]?")
_HIGH_SURROGATES = ("\ud800", "\udbff")


def wire_text(text: str) -> str:
    """Give text as it may go out."""
    return clean_text(text).replace("\0", "\ufffd")


def wire_value(value: JsonValue) -> JsonValue:
    """Give a JSON value whose text, names included, may go out."""
    if isinstance(value, str):
        return wire_text(value)
    if isinstance(value, Mapping):
        return {wire_text(name): wire_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [wire_value(item) for item in value]
    return value


def wire_id(call_id: str) -> str:
    """Give a call's id as providers accept one.

    The kernel's own ids stay as they are; any other is mapped, always alike.
    """
    if _ID.fullmatch(call_id):
        return call_id
    digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass"))
    return f"call_{digest.hexdigest()[:32]}"


def wire_name(name: str) -> str:
    """Give a tool's name as providers accept one.

    A name that the model made up stays in the history, and a history with a name
    that the provider refuses would be refused for ever.
    """
    if _NAME.fullmatch(name):
        return name
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "unnamed"


def tool_names(tools: tuple[ToolSpec, ...]) -> dict[str, str]:
    """Map the names that go out to those of the tools.

    Raises:
      ModelError: if two tools would go out under one name.

    """
    names: dict[str, str] = {}
    for tool in tools:
        other = names.setdefault(wire_name(tool.name), tool.name)
        if other != tool.name:
            raise ModelError(
                f"the tools {other!r} and {tool.name!r} have the same name for the "
                f"provider, {wire_name(tool.name)!r}; rename one of them",
                code="invalid-request",
            )
    return names


def encode(body: JsonObject) -> bytes:
    """Write a request body: the same bytes for the same value.

    Raises:
      ModelError: if something in it is not JSON.

    """
    try:
        raw = msgspec.json.encode(body)
    except UnicodeEncodeError:
        raw = b"\\u0000"
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"the request is not JSON: {error}", code="invalid-request"
        ) from error
    if b"\\u0000" in raw:
        raw = msgspec.json.encode(wire_value(body))
    return raw


def join_arguments(arguments: JsonObject) -> str:
    """Write a call's arguments as the text of a JSON object."""
    return encode(arguments).decode()


def decode(text: str, shape: type[T]) -> T:
    """Read one JSON value.

    Half a surrogate pair stays what it is: the other half may be in the next event.

    Raises:
      ValueError: if it is not JSON, or not of that shape. The message holds none of
        the text.

    """
    try:
        return msgspec.json.decode(text, type=shape)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    try:
        return msgspec.convert(json.loads(text), shape)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (position {error.pos})") from None
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def is_cut(arguments: str) -> bool:
    """Whether arguments are the beginning of JSON rather than something else."""
    try:
        json.loads(arguments)
    except json.JSONDecodeError as error:
        rest = arguments.rstrip()[error.pos :]
        literal = any(word.startswith(rest) for word in ("true", "false", "null"))
        literal = literal or _HALF_NUMBER.fullmatch(rest) is not None
        escape = "escape" in error.msg and len(rest) < len("\\u0000")
        return literal or escape or error.msg.startswith("Unterminated string")
    except RecursionError:
        return False
    return False


class TextJoiner:
    """Joins surrogate pairs that a server split over two events.

    One for each stretch of text. What has no other half becomes U+FFFD.
    """

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Take the next piece; give what is complete of it. Not a checkpoint."""
        if not self._half and text.isascii():
            return text
        text = self._half + text
        self._half = ""
        low, high = _HIGH_SURROGATES
        if text and low <= text[-1] <= high:
            text, self._half = text[:-1], text[-1]
        return clean_text(text)

    def flush(self) -> str:
        """Give what is left over at the end of the text. Not a checkpoint."""
        half, self._half = self._half, ""
        return clean_text(half)
