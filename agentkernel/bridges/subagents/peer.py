"""One connection to a program that speaks JSON-RPC over its standard input and output.

Made, used and ended in the block of one task. A reader in a shielded scope carries
what the program says, so that it can be listened to after the block was cancelled, for
as long as the block wants. Requests of the program are answered in tasks of their own:
none of them holds back the reader.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec
import trio

import agentkernel as ak
from agentkernel.tools import BoundedOutput, ProcessGroup

from .wire import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Incoming,
    Lines,
    LineTooLongError,
    RequestId,
    encode_line,
    read_message,
)

__all__ = ["Handler", "Peer", "PeerError", "Pending"]

_log = logging.getLogger(__name__)
_STDERR_BYTES: Final = 16 * 1024
_SEND_SECONDS: Final = 5.0


class PeerError(ak.AgentKernelError):
    """If the program answered with an error, broke the protocol, or is gone.

    Attributes:
      code: the error's number, None if the program did not answer.

    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        self.message = message
        self.code = code
        super().__init__(message)


class Handler(msgspec.Struct, frozen=True, eq=False):
    """How requests of one method are answered.

    Attributes:
      fn: called with the parameters.
      stopped: the result if whoever would answer has been stopped.

    """

    fn: Callable[[msgspec.Raw], Awaitable[object]]
    stopped: object


@final
class Pending:
    """A request of ours; its answer can be waited for again after a cancellation."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.answered: trio.Event = trio.Event()
        self.answer: Incoming | None = None


@final
class Peer:
    """The other side of a child's pipes.

    Attributes:
      ended: set when the program said nothing more, or broke the protocol.
      problem: what it did wrong, if it did.

    """

    def __init__(
        self,
        group: ProcessGroup,
        nursery: trio.Nursery,
        *,
        max_line_bytes: int,
        on_notification: Callable[[str, msgspec.Raw], object],
        handlers: dict[str, Handler],
    ) -> None:
        self.ended: trio.Event = trio.Event()
        self.problem: str | None = None
        # Shielded: cancelled by the owner of the block, by nothing else.
        self.scope: trio.CancelScope = trio.CancelScope(shield=True)
        self._group = group
        self._nursery = nursery
        self._lines = Lines(group.stdout, max_line_bytes)
        self._on_notification = on_notification
        self._handlers = handlers
        self._pending: dict[RequestId, Pending] = {}
        self._serving: dict[RequestId, trio.CancelScope] = {}
        self._next_id = 0
        self._sending = trio.Lock()
        self._stderr = BoundedOutput(_STDERR_BYTES)

    @property
    def stderr(self) -> str:
        """What the program wrote to standard error, bounded."""
        return self._stderr.captured().text

    @property
    def serving(self) -> int:
        """How many requests of the program are being answered."""
        return len(self._serving)

    async def run(self) -> None:
        """Carry what the program says until it ends or `scope` is cancelled.

        Always a checkpoint.

        Cancellation:
          Only that of `scope`, which stops here.

        """
        await trio.lowlevel.cancel_shielded_checkpoint()
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._drain)
                await self._read()
                self._finish()

    async def request(self, method: str, params: object) -> msgspec.Raw:
        """Ask the program for something and wait for its answer.

        Always a checkpoint.

        Cancellation:
          The wait ends; a late answer is ignored.

        Raises:
          PeerError: if it answers with an error, breaks the protocol, or ends.

        """
        pending = Pending(method)
        await self.ask(pending, params)
        return await self.answer_of(pending)

    async def ask(self, pending: Pending, params: object) -> None:
        """Send a request.

        Always a checkpoint.

        Cancellation:
          It may have been sent, in part or whole; `answer_of` can still be awaited.

        """
        self._next_id += 1
        number = self._next_id
        self._pending[number] = pending
        if self.ended.is_set():
            pending.answered.set()
        await self._send({"id": number, "method": pending.method, "params": params})

    async def answer_of(self, pending: Pending) -> msgspec.Raw:
        """Wait for the answer to a request.

        Always a checkpoint.

        Cancellation:
          The wait ends, and can be begun again.

        Raises:
          PeerError: as `request`.

        """
        await pending.answered.wait()
        answer = pending.answer
        if answer is None:
            raise PeerError(self.problem or f"it ended during {pending.method}")
        if answer.error is not None:
            raise PeerError(answer.error.message, code=answer.error.code)
        return answer.result

    async def notify(self, method: str, params: object) -> None:
        """Tell the program something.

        Always a checkpoint.

        Cancellation:
          It may have been sent in part: the connection is of no use then.

        """
        await self._send({"method": method, "params": params})

    async def _send(self, body: dict[str, object]) -> None:
        """Write one line. A program that is gone is found out by the reader.

        Always a checkpoint.

        Cancellation:
          As `notify`.

        """
        assert self._group.stdin is not None
        async with self._sending:
            try:
                await self._group.stdin.send_all(encode_line(body))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.lowlevel.checkpoint()

    async def _drain(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._group.stderr is None:
            return
        while data := await self._group.stderr.receive_some(65536):
            self._stderr.write(data)

    async def _read(self) -> None:
        """Take lines until the end; what is no message is answered and passed over.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        await trio.lowlevel.checkpoint()
        while self.problem is None:
            try:
                line = await self._lines.next()
            except LineTooLongError as error:
                self.problem = str(error)
                return
            if line is None:
                return
            try:
                message = read_message(line)
            except msgspec.ValidationError as error:
                self._refuse(None, INVALID_REQUEST, str(error))
            except msgspec.DecodeError as error:
                self._refuse(None, PARSE_ERROR, str(error))
            else:
                self._take(message)

    def _finish(self) -> None:
        """Release everybody who waits for the program."""
        self.ended.set()
        for pending in self._pending.values():
            pending.answered.set()
        for scope in self._serving.values():
            scope.cancel()

    def _take(self, message: Incoming) -> None:
        if message.method is None:
            pending = self._pending.pop(message.id or 0, None)
            if pending is not None:
                pending.answer = message
                pending.answered.set()
        elif message.id is not None:
            self._nursery.start_soon(self._serve, message)
        elif message.method == "$/cancel_request":
            scope = self._serving.get(_cancelled_id(message.params))
            if scope is not None:
                scope.cancel()
        else:
            self._on_notification(message.method, message.params)

    async def _serve(self, message: Incoming) -> None:
        """Answer one request of the program.

        Always a checkpoint.

        Cancellation:
          That of the block: whoever handles the request has answered by then.

        """
        assert message.id is not None
        assert message.method is not None
        handler = self._handlers.get(message.method)
        if handler is None:
            self._refuse(message.id, METHOD_NOT_FOUND, f"no method {message.method}")
            await trio.lowlevel.checkpoint()
            return
        with trio.CancelScope() as scope:  # noqa: ASYNC912  # the handler waits, inside of the try
            self._serving[message.id] = scope
            try:
                await trio.lowlevel.checkpoint()
                result = await handler.fn(message.params)
            except trio.Cancelled:
                if not scope.cancel_called:
                    with trio.move_on_after(_SEND_SECONDS, shield=True):
                        await self._send({"id": message.id, "result": handler.stopped})
                raise
            except ak.TurnCancelled:
                await self._answer(message.id, handler.stopped)
            except msgspec.ValidationError as error:
                self._refuse(message.id, INVALID_REQUEST, str(error))
            except Exception as error:  # noqa: BLE001  # the program is told that there is no answer
                _log.warning("a request failed: %s", type(error).__name__)
                _log.debug("the error was", exc_info=error)
                self._refuse(message.id, INTERNAL_ERROR, "the client failed")
            else:
                await self._answer(message.id, result)
            finally:
                self._serving.pop(message.id, None)
        if scope.cancelled_caught:
            self._refuse(message.id, CANCELLED, "the request was cancelled")
        await trio.lowlevel.checkpoint()

    async def _answer(self, number: RequestId, result: object) -> None:
        """Send an answer, also when everything else is being stopped.

        Always a checkpoint.

        Cancellation:
          Shielded, and bounded in time.

        """
        with trio.move_on_after(_SEND_SECONDS, shield=True):
            await self._send({"id": number, "result": result})

    def _refuse(self, number: RequestId | None, code: int, text: str) -> None:
        """Answer with an error, in a task: the reader does not wait for a writer."""

        async def send() -> None:
            with trio.move_on_after(_SEND_SECONDS, shield=True):
                error = {"code": code, "message": text}
                await self._send({"id": number, "error": error})

        self._nursery.start_soon(send)


class _CancelParams(msgspec.Struct, rename="camel"):
    request_id: RequestId


def _cancelled_id(params: msgspec.Raw) -> RequestId:
    try:
        return msgspec.json.decode(params, type=_CancelParams).request_id
    except msgspec.ValidationError:
        return 0
