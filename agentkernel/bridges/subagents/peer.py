"""One connection to a program that speaks JSON-RPC over its standard input and output.

Made, used and ended in the block of one task. `run` is the attendant of that block: it
carries what the program says and is told, so that it can be listened to after the
block was cancelled, for as long as the block wants. Requests of the program are
answered in tasks of their own (`serving`): none holds back the reader.

Invariants. Whatever ends the connection releases everybody who waits for it. The
program's exit ends it, not the end of its pipe, which a child of it may hold open.
Nothing that the program says raises an exception here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, final

import msgspec
import trio
from trio.lowlevel import enable_ki_protection

import agentkernel as ak
from agentkernel.tools import BoundedOutput, ProcessGroup

from .outbox import Line, Outbox
from .serving import Handler, Serving
from .wire import (
    Incoming,
    Lines,
    LineTooLongError,
    MalformedError,
    RequestId,
    TooDeepError,
    encode_line,
    read_message,
)

__all__ = ["Peer", "PeerError", "PeerOptions", "Pending"]

_STDERR_BYTES: Final = 16 * 1024


class PeerError(ak.AgentKernelError):
    """If the program answered with an error, broke the protocol, or is gone.

    Attributes:
      code: the error's number, None if the program did not answer.

    """

    def __init__(self, message: str, *, code: int | None = None) -> None:
        self.message = message
        self.code = code
        super().__init__(message)


class PeerOptions(msgspec.Struct, frozen=True, eq=False):
    """What a connection is made for.

    Attributes:
      max_line_bytes: the longest message that is taken.
      drain: how long what is left of the output is awaited after the program's exit.
      handlers: who answers its requests, by method.
      on_notification: told of the others, synchronously.
      on_failure: told what one of these raised.

    """

    max_line_bytes: int
    drain: float
    handlers: dict[str, Handler]
    on_notification: Callable[[str, msgspec.Raw], object]
    on_failure: Callable[[Exception], object]


@final
class Pending:
    """A request of ours; its answer can be waited for again after a cancellation."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.answered: trio.Event = trio.Event()
        self.answer: Incoming | MalformedError | None = None
        self.line: Line | None = None

    def take_back(self) -> bool:
        """Take the request back, if it is not on its way. Not a checkpoint.

        Returns:
          Whether the program does not get it.

        """
        if self.line is not None:
            self.line.withdraw()
        return self.line is None or not self.line.begun


@final
class Peer:
    """The other side of a child's pipes.

    Attributes:
      ended: set when the program said nothing more, or broke the protocol.
      problem: what it did wrong, if it did.
      exit_code: of a program that left by itself; None if it is there, or was ended.
      serving: what it has asked for.

    """

    def __init__(
        self, group: ProcessGroup, nursery: trio.Nursery, options: PeerOptions
    ) -> None:
        assert group.stdin is not None
        self.ended: trio.Event = trio.Event()
        self.problem: str | None = None
        self.exit_code: int | None = None
        self._group = group
        self._options = options
        self._lines = Lines(group.stdout, options.max_line_bytes)
        self._outbox = Outbox(group.stdin)
        self.serving: Serving = Serving(
            nursery, self._outbox, options.handlers, options.on_failure
        )
        self._pending: dict[RequestId, Pending] = {}
        self._next_id = 0
        self._stderr = BoundedOutput(_STDERR_BYTES)

    @property
    def stderr(self) -> str:
        """What the program wrote to standard error, bounded."""
        return self._stderr.captured().text

    async def run(self) -> None:
        """Carry what the program says, and is told, until it ends.

        Always a checkpoint.

        Cancellation:
          Passes through; nobody waits for the program any more.

        """
        silent, gone, told = trio.Event(), trio.Event(), trio.Event()
        over = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_then, self._outbox.run)
                nursery.start_soon(_then, self._read, silent, over)
                nursery.start_soon(_then, self._drain, told)
                nursery.start_soon(_then, self._watch, gone, over)
                await over.wait()
                if self.problem is None:
                    with trio.move_on_after(self._options.drain):
                        for event in (gone, silent, told):
                            await event.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._finish()

    async def request(self, method: str, params: object) -> msgspec.Raw:
        """Ask the program for something and wait for its answer.

        Always a checkpoint.

        Cancellation:
          The wait ends; a late answer is ignored.

        Raises:
          PeerError: if it answers with an error, breaks the protocol, or ends.
          ValueError: if the parameters cannot be written.

        """
        pending = Pending(method)
        self.ask(pending, params)
        return await self.answer_of(pending)

    def ask(self, pending: Pending, params: object) -> None:
        """Send a request. Not a checkpoint.

        Raises:
          ValueError: if the parameters cannot be written.

        """
        self._next_id += 1
        number = self._next_id
        body = {"id": number, "method": pending.method, "params": params}
        pending.line = self._outbox.put(encode_line(body))
        self._pending[number] = pending
        if self.ended.is_set():
            pending.answered.set()

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
        if isinstance(answer, MalformedError):
            raise PeerError(f"its answer to {pending.method} cannot be read: {answer}")
        if answer.error is not None:
            raise PeerError(answer.error.message, code=answer.error.code)
        return answer.result

    def notify(self, method: str, params: object) -> None:
        """Tell the program something. Not a checkpoint."""
        self._outbox.put(encode_line({"method": method, "params": params}))

    async def _drain(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._group.stderr is None:
            return
        while data := await self._group.stderr.receive_some(65536):
            self._stderr.write(data)

    async def _watch(self) -> None:
        """Wait for the exit of the program itself. Always a checkpoint.

        Cancellation:
          Passes through.

        """
        self.exit_code = await self._group.wait()

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
                if line is None:
                    return
                message = read_message(line)
            except MalformedError as error:
                self._pass_over(error)
            except (LineTooLongError, TooDeepError) as error:
                self.problem = str(error)
            else:
                self._take(message)

    def _finish(self) -> None:
        """Release everybody who waits for the program."""
        self.ended.set()
        for pending in self._pending.values():
            pending.answered.set()
        self.serving.give_up()

    def _pass_over(self, error: MalformedError) -> None:
        """Take a line that is no message: an answer of that kind is one all the same."""
        if not (error.answers and self._answer(error.id, error)):
            self.serving.refuse(error.id, error.code, str(error))

    def _answer(
        self, number: RequestId | None, answer: Incoming | MalformedError
    ) -> bool:
        """Hand an answer to whoever waits for it; False if nobody does."""
        if isinstance(number, str) and number.isascii() and number.isdigit():
            number = int(number)  # some give a number back as a string
        pending = None if number is None else self._pending.pop(number, None)
        if pending is None:
            return False
        pending.answer = answer
        pending.answered.set()
        return True

    def _take(self, message: Incoming) -> None:
        if message.method is None:
            self._answer(message.id, message)
        elif message.id is not None:
            self.serving.begin(message, message.id, message.method)
        elif message.method == "$/cancel_request":
            self.serving.take_back(message.params)
        else:
            try:
                self._options.on_notification(message.method, message.params)
            except Exception as error:  # noqa: BLE001  # its owner decides
                self._options.on_failure(error)


@enable_ki_protection
async def _then(work: Callable[[], Awaitable[None]], *events: trio.Event) -> None:
    """Do some work, then say so. Always a checkpoint.

    Cancellation:
      Passes through; nothing is said.

    """
    await work()
    for event in events:
        event.set()
