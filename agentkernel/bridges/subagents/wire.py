"""JSON-RPC over the pipes of a child: lines in, lines out, with a limit of their length.

`Lines` frames, `read_message` tells what a line is, `decode` reads a part of it. A line
that is too long is skipped to its end in bounded memory; what follows it can be read
again. Whatever bytes a child writes, the errors of this module are all that comes of it.
"""

from __future__ import annotations

import json
from typing import Final, Literal, TypeAlias, TypeVar, final

import msgspec
import trio

import agentkernel as ak

__all__ = [
    "BUSY",
    "CANCELLED",
    "INTERNAL_ERROR",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Incoming",
    "LineTooLongError",
    "Lines",
    "MalformedError",
    "RequestId",
    "RpcError",
    "TooDeepError",
    "cut",
    "decode",
    "encode_line",
    "read_message",
]

PARSE_ERROR: Final = -32700
INTERNAL_ERROR: Final = -32603
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
CANCELLED: Final = -32800
# Of the range that is left to implementations.
BUSY: Final = -32029
_CHUNK = 65536
_MAX_ID = 200

RequestId: TypeAlias = int | str
_T = TypeVar("_T")


class LineTooLongError(ak.AgentKernelError):
    """If a line is longer than what is allowed; it has been skipped."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"a line is longer than {max_bytes} bytes")


class TooDeepError(ak.AgentKernelError):
    """If a line nests more deeply than can be read: nobody can tell what it was."""

    def __init__(self) -> None:
        super().__init__("a line is nested too deeply")


class MalformedError(ak.AgentKernelError):
    """If a line, or a part of it, is not what the protocol has there.

    Attributes:
      code: the error's number: no JSON, or not the right one.
      id: whose line it is, if that can be told.
      answers: whether it was meant as an answer.

    """

    def __init__(
        self,
        reason: object,
        code: Literal[-32700, -32600] = PARSE_ERROR,
        *,
        id: RequestId | None = None,
        answers: bool = False,
    ) -> None:
        self.reason = reason
        self.code = code
        self.id = id
        self.answers = answers
        super().__init__(cut(str(reason)))


class RpcError(msgspec.Struct, frozen=True):
    """The error of an answer."""

    code: int = 0
    message: str = ""
    data: object = None


class Incoming(msgspec.Struct, frozen=True):
    """A request (id and method), a notification (method) or an answer (id)."""

    id: RequestId | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: RpcError | None = None


class _Head(msgspec.Struct, frozen=True):
    """What can still be told of a line that is no message."""

    id: object = None
    method: object = None


class _Loose(msgspec.Struct, frozen=True):
    """A message, read from values."""

    id: RequestId | None = None
    method: str | None = None
    params: object = msgspec.field(default_factory=dict[str, object])
    result: object = None
    error: RpcError | None = None


def read_message(line: bytes) -> Incoming:
    """Read one line. Its parts are read later, by `decode`.

    Raises:
      MalformedError: if it is no message.
      TooDeepError: if it cannot even be told whose it is.

    """
    try:
        message = _read(line)
    except MalformedError as error:
        error.id, error.answers = _sender(line)
        raise
    if isinstance(message.id, str) and len(message.id) > _MAX_ID:
        raise MalformedError("the id is too long", INVALID_REQUEST)
    return message


def _read(line: bytes) -> Incoming:
    try:
        return msgspec.json.decode(line, type=Incoming)
    except msgspec.ValidationError as error:
        raise MalformedError(error, INVALID_REQUEST) from None
    except RecursionError:
        raise TooDeepError from None
    except msgspec.DecodeError:
        loose = _decode_loosely(line, _Loose)
        params, result = (
            msgspec.Raw(json.dumps(part).encode())
            for part in (loose.params, loose.result)
        )
        return Incoming(loose.id, loose.method, params, result, loose.error)


def decode(data: msgspec.Raw | bytes, kind: type[_T]) -> _T:
    """Read a part of a message.

    Bytes that are no UTF-8 become U+FFFD, and half a surrogate pair stays what it is:
    they spoil the text that they are in, and not the message.

    Raises:
      MalformedError: if it is something else.

    """
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise MalformedError(error, INVALID_REQUEST) from None
    except RecursionError as error:
        raise MalformedError(error) from None
    except msgspec.DecodeError:
        return _decode_loosely(bytes(data), kind)


def _decode_loosely(data: bytes, kind: type[_T]) -> _T:
    """Read JSON whose strings are not quite Unicode."""
    try:
        loose: object = json.loads(data.decode(errors="replace"))
        return msgspec.convert(loose, kind)
    except msgspec.ValidationError as error:
        raise MalformedError(error, INVALID_REQUEST) from None
    except (ValueError, RecursionError) as error:
        raise MalformedError(error) from None


def _sender(line: bytes) -> tuple[RequestId | None, bool]:
    """Tell whose a line is that is no message, and whether it was an answer."""
    try:
        head = decode(line, _Head)
    except MalformedError:
        return None, False
    known = head.id if isinstance(head.id, int | str) else None
    if isinstance(known, bool) or len(str(known)) > _MAX_ID:
        known = None
    return known, head.method is None


def cut(text: str, length: int = 500) -> str:
    """Shorten a text that came from outside, and say so in it."""
    text = ak.clean_text(text)
    if len(text) <= length:
        return text
    return f"{text[:length]} [... {len(text) - length} characters left out ...]"


def encode_line(body: dict[str, object]) -> bytes:
    """Write one message as one line; half a surrogate pair as its escape."""
    message = {"jsonrpc": "2.0", **body}
    try:
        return msgspec.json.encode(message) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(message).encode() + b"\n"


@final
class Lines:
    """Reads lines from a stream; used by one task."""

    def __init__(self, stream: trio.abc.ReceiveStream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False

    async def next(self) -> bytes | None:
        """Read the next line that is not blank, without its end.

        Always a checkpoint.

        Cancellation:
          Nothing was consumed that a later call would miss.

        Returns:
          None at the end; what stands there without an end of line is dropped.

        Raises:
          LineTooLongError: if the line is too long; the next call goes on behind it.

        """
        await trio.lowlevel.checkpoint()
        line = self._take()
        while line is None:
            data = await self._stream.receive_some(_CHUNK)
            if not data:
                return None
            self._buffer += data
            line = self._take()
        return line

    def _take(self) -> bytes | None:
        """Take a line out of what has been read; None if there is no whole one."""
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if self._skipping or len(line) > self._max_bytes:
                self._skipping = False
                raise LineTooLongError(self._max_bytes)
            if line.strip():
                return line
        if len(self._buffer) > self._max_bytes:
            self._skipping = True
        if self._skipping:
            self._buffer.clear()
        self._searched = len(self._buffer)
        return None
