"""One question and its reply: send a followup, read what comes, know the outcome."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, final

import trio

from .._errors import AgentDisposedError, AgentKernelError, MessageNotPendingError
from .._messages import TextChunk
from .._session.events import ChunkStreamed, MessageEntered, SessionEvent, TurnEnded
from .._session.fold import MessageRecord
from .._signal import USER
from .inbox import MessageLike

if TYPE_CHECKING:
    from .agent import Agent
    from .outcome import Outcome
    from .verbs import Sent

__all__ = ["Reply", "ReplyEvents", "ReplyText"]


@final
class Reply:
    """The reply to one message; made by `agent.ask`, entered once.

    Entering sends the message. Leaving the block normally waits for the outcome,
    whether or not the text was read. Leaving it by an exception or a cancellation
    withdraws the message, or stops its turn and no other, and waits until that is
    done; other pending input is kept.
    """

    def __init__(self, agent: Agent, message: MessageLike) -> None:
        self._agent = agent
        self._message = message
        self._sent: Sent | None = None
        self._outcome: Outcome | None = None
        self._start = 0

    @property
    def sent(self) -> Sent:
        """The receipt of the message."""
        if self._sent is None:
            raise AgentKernelError("the reply has not been entered")
        return self._sent

    @property
    def outcome(self) -> Outcome:
        """What became of the message; there once the block was left normally."""
        if self._outcome is None:
            raise AgentKernelError("the outcome is known when the block is left")
        return self._outcome

    async def __aenter__(self) -> Reply:
        """Send the message. Not a checkpoint; raises as `Agent.followup`."""
        self._agent.refuse_own_turn("ask")
        self._start = self._agent.session.last_seq
        self._sent = self._agent.followup(self._message)
        if self._sent.duplicate:
            self._start = 0
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for the outcome, or end the message's turn first.

        Always a checkpoint.

        Cancellation:
          The message's turn is stopped, and the wait for that is shielded.

        """
        if exc is None:
            try:
                self._outcome = await self._agent.outcome(self.sent.id)  # noqa: ASYNC102  # waits on the good way out only, and may be cancelled
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self._withdraw()
                raise
            return
        with trio.CancelScope(shield=True):
            await self._withdraw()

    def events(self) -> ReplyEvents:
        """Iterate over the durable events of the message's turn, as they come."""
        return ReplyEvents(self._agent, self.sent.id, self._start)

    def text(self) -> ReplyText:
        """Iterate over the text of the reply, piece by piece.

        A request that is tried again starts its text anew; `events` shows the
        `llm/retry` in between.
        """
        return ReplyText(self.events())

    async def _withdraw(self) -> None:
        """Withdraw the message if it is pending, else stop its turn; then wait.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        agent, message_id = self._agent, self.sent.id
        record = agent.session.record(message_id)
        if record is not None and record.turn is not None:
            agent.cancel(USER, keep_inbox=True, turn=record.turn)
        try:
            with suppress(MessageNotPendingError):
                agent.inbox.remove(message_id)
            await agent.outcome(message_id)
        except AgentDisposedError:
            await trio.lowlevel.checkpoint()


@final
class ReplyEvents:
    """The events of one message's turn; an async iterator."""

    def __init__(self, agent: Agent, message_id: str, start: int) -> None:
        self._session = agent.session
        self._id = message_id
        self._subscription = agent.session.subscribe(after=start, buffer=None)
        self._entered = False
        self._over = False

    def __aiter__(self) -> ReplyEvents:
        return self

    async def __anext__(self) -> SessionEvent:
        """Return the next event of the turn.

        Always a checkpoint.

        Cancellation:
          Nothing was consumed; the turn goes on until the reply's block is left.

        """
        while True:
            if self._over:
                await trio.lowlevel.checkpoint()
                raise StopAsyncIteration
            item = await anext(self._subscription)
            record = self._session.record(self._id)
            if not isinstance(item, SessionEvent) or record is None:
                continue
            data = item.data
            if isinstance(data, MessageEntered) and data.message.id == self._id:
                self._entered = True
            if record.state == "discarded" or (
                isinstance(data, TurnEnded) and _is_end_of(data, record)
            ):
                self._over = True
            if self._entered:
                return item


def _is_end_of(ended: TurnEnded, record: MessageRecord) -> bool:
    """Whether a turn's end is the end of what came of a message.

    A turn that failed before the message entered has put it back, with its outcome.
    """
    if record.state == "pending":
        return record.returned_by == ended.turn and ended.reason.kind in {
            "error",
            "blocked",
        }
    return record.turn == ended.turn


@final
class ReplyText:
    """The text of one reply; an async iterator."""

    def __init__(self, events: ReplyEvents) -> None:
        self._events = events

    def __aiter__(self) -> ReplyText:
        return self

    async def __anext__(self) -> str:
        """Return the next piece of text.

        Always a checkpoint.

        Cancellation:
          Nothing was consumed; the turn goes on until the reply's block is left.

        """
        while True:
            data = (await anext(self._events)).data
            if isinstance(data, ChunkStreamed) and isinstance(data.chunk, TextChunk):
                return data.chunk.text
