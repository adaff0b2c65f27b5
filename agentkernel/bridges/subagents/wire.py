"""JSON-RPC over the pipes of a child: lines in, lines out, with a limit of their length.

`Lines` frames, `read_message` tells what a line is. A line that is too long is skipped
to its end in bounded memory; what follows it can be read again.
"""

from __future__ import annotations

from typing import Final, TypeAlias, final

import msgspec
import trio

import agentkernel as ak

__all__ = [
    "CANCELLED",
    "INTERNAL_ERROR",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "Incoming",
    "LineTooLongError",
    "Lines",
    "RpcError",
    "encode_line",
    "read_message",
]

PARSE_ERROR: Final = -32700
INTERNAL_ERROR: Final = -32603
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
CANCELLED: Final = -32800
_CHUNK = 65536

RequestId: TypeAlias = int | str


class LineTooLongError(ak.AgentKernelError):
    """If a line is longer than what is allowed; it has been skipped."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        super().__init__(f"a line is longer than {max_bytes} bytes")


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


_DECODER = msgspec.json.Decoder(Incoming)


def read_message(line: bytes) -> Incoming:
    """Read one line.

    Raises:
      msgspec.DecodeError: if it is no JSON.
      msgspec.ValidationError: if it is JSON, and no message.

    """
    return _DECODER.decode(line)


def encode_line(body: dict[str, object]) -> bytes:
    """Write one message as one line."""
    return msgspec.json.encode({"jsonrpc": "2.0", **body}) + b"\n"


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
