"""The requests that a program makes, each answered in a task of its own.

Sits below `peer`. A request can be taken back from the moment its line was read. No
more than a few are open at once, and what is refused is answered only as far as the
program reads its answers.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec
import trio

import agentkernel as ak

from .outbox import Outbox
from .wire import (
    BUSY,
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Incoming,
    MalformedError,
    RequestId,
    cut,
    decode,
    encode_line,
)

__all__ = ["Handler", "Serving"]

_SEND_SECONDS: Final = 5.0
_MOST_OPEN: Final = 16


class Handler(msgspec.Struct, frozen=True, eq=False):
    """How requests of one method are answered.

    Attributes:
      fn: called with the parameters.
      stopped: the result if whoever would answer has been stopped.

    """

    fn: Callable[[msgspec.Raw], Awaitable[object]]
    stopped: object


@final
class Serving:
    """Answers the requests of one program; used by its reader and its owner."""

    def __init__(
        self,
        nursery: trio.Nursery,
        outbox: Outbox,
        handlers: dict[str, Handler],
        on_failure: Callable[[Exception], object],
    ) -> None:
        # Where requests are answered; cancelled as its owner is.
        self._nursery = nursery
        self._outbox = outbox
        self._handlers = handlers
        self._on_failure = on_failure
        self._open: dict[RequestId, trio.CancelScope] = {}
        self._stopping = False

    def stop(self) -> None:
        """Have all requests answered as stopped. Not a checkpoint."""
        self._stopping = True
        self.give_up()

    def give_up(self) -> None:
        """Stop answering. Not a checkpoint."""
        for scope in self._open.values():
            scope.cancel()

    def take_back(self, params: msgspec.Raw) -> None:
        """Take `$/cancel_request`; what is not open is passed over. Not a checkpoint."""
        try:
            number = decode(params, _CancelParams).request_id
        except MalformedError:
            return
        if number in self._open:
            self._open[number].cancel()

    def begin(self, message: Incoming, number: RequestId, method: str) -> None:
        """Begin to answer a request. Not a checkpoint."""
        handler = self._handlers.get(method)
        if handler is None:
            self.refuse(number, METHOD_NOT_FOUND, f"no method {cut(method)}")
        elif number in self._open:
            self.refuse(number, INVALID_REQUEST, "the id is in use")
        elif len(self._open) >= _MOST_OPEN:
            self.refuse(number, BUSY, "too many requests are open")
        else:
            scope = self._open[number] = trio.CancelScope()
            self._nursery.start_soon(self._serve, number, scope, handler, message)

    async def _serve(
        self,
        number: RequestId,
        scope: trio.CancelScope,
        handler: Handler,
        message: Incoming,
    ) -> None:
        """Answer one request of the program.

        Always a checkpoint.

        Cancellation:
          Stops here: the request is answered as stopped, and the cancellation goes on
          in the task that owns the connection.

        """
        try:
            body = await self._reply(scope, handler, message)
            line = self._outbox.put(encode_line({"id": number, **body}))
            with trio.move_on_after(_SEND_SECONDS, shield=True):
                await line.done.wait()
            line.withdraw()
        finally:
            # Not before: who reads no answers is not to have any number of them.
            self._open.pop(number, None)

    async def _reply(
        self, scope: trio.CancelScope, handler: Handler, message: Incoming
    ) -> dict[str, object]:
        """Work out an answer. Always a checkpoint.

        Cancellation:
          Stops here, as a value.

        """
        await trio.lowlevel.cancel_shielded_checkpoint()
        body: dict[str, object] = {"result": handler.stopped}
        late = False
        try:
            with scope:
                try:
                    await trio.lowlevel.checkpoint()
                    body = {"result": await handler.fn(message.params)}
                finally:
                    late = self._is_late(scope)
        except ak.TurnCancelled:
            return body
        except MalformedError as error:
            return _error(INVALID_REQUEST, str(error))
        except Exception as error:  # noqa: BLE001  # its owner decides
            self._on_failure(error)
            return _error(INTERNAL_ERROR, "the client failed")
        if not late:
            return body
        if self._stopping:
            return {"result": handler.stopped}
        return _error(CANCELLED, "the request was cancelled")

    def _is_late(self, scope: trio.CancelScope) -> bool:
        """Whether an answer comes too late; a cancellation is held here then.

        A decision that was made after the stop is not used.
        """
        if trio.current_effective_deadline() > -math.inf:
            return False
        self._stopping = self._stopping or not scope.cancel_called
        # A scope that is shielded takes every cancellation for its own.
        scope.shield = True
        scope.cancel()
        return True

    def refuse(self, number: RequestId | None, code: int, text: str) -> None:
        """Answer with an error; nobody waits for it. Not a checkpoint."""
        self._outbox.offer(encode_line({"id": number, **_error(code, text)}))


def _error(code: int, text: str) -> dict[str, object]:
    return {"error": {"code": code, "message": text}}


class _CancelParams(msgspec.Struct, rename="camel"):
    request_id: RequestId
