"""The ports: what the kernel asks of models, tools and stores.

Implement one of these to plug something in; run it through the checker of the same
name in `agentkernel.testing` (`check_model`, `check_tool`, `check_store`) to prove
that it keeps what the port promises. All are protocols: no base class is needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import msgspec

from ._json import EMPTY, JsonObject
from ._messages import (
    BinaryBlock,
    Chunk,
    Message,
    TextBlock,
    ToolFailure,
    ToolSpec,
)
from ._session.events import SessionEvent
from ._signal import TurnSignal

if TYPE_CHECKING:
    from ._loop.agent import Agent

__all__ = [
    "Append",
    "Claim",
    "EpochStart",
    "Model",
    "ModelRequest",
    "SessionInfo",
    "SessionStore",
    "Tool",
    "ToolInvocation",
    "ToolOutput",
]


class ModelRequest(msgspec.Struct, frozen=True, eq=False):
    """Everything a model is asked with.

    Attributes:
      system: the system prompt, empty for none.
      messages: an immutable view of the history; it never changes afterwards.
      tools: what the model may call.
      model: the name that the provider knows, or the registered name.
      options: provider options (`temperature`, `max_tokens`, …) as JSON.
      signal: the turn's signal; None outside a turn.
      session_id, turn, step, attempt: where the request comes from; 0 outside a turn.

    """

    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    model: str = ""
    options: JsonObject = EMPTY
    signal: TurnSignal | None = None
    session_id: str = ""
    turn: int = 0
    step: int = 0
    attempt: int = 1


@runtime_checkable
class Model(Protocol):
    """Answers requests as a stream of chunks. Checked by `check_model`."""

    def stream(
        self, request: ModelRequest, /
    ) -> AbstractAsyncContextManager[AsyncIterable[Chunk]]:
        """Open one answer.

        The context manager owns everything the answer needs: a nursery, a socket,
        a pool slot. Its exit releases all of that in the same task, at once, after
        the last chunk, a `break`, an error and a cancellation alike; it must not
        wait for the other side. Iterating passes a checkpoint at least once before
        each chunk that was not yet there. After a `FinishChunk` nothing follows but
        a `UsageChunk`.

        Cancellation:
          Passes through, from the entry, from iterating and from the exit. No
          connection is left open, and the model takes the next request at once.

        Raises:
          ModelError: on entry or while iterating, if the request failed.

        """
        ...


class ToolInvocation(msgspec.Struct, frozen=True, eq=False):
    """One call, as its body sees it. `arguments` have passed the tool's check."""

    agent: Agent
    signal: TurnSignal
    turn: int
    step: int
    call_id: str
    name: str
    arguments: JsonObject


class ToolOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call gave back.

    Attributes:
      content: what the model is shown.
      error: set if the call failed; the model is told so.
      meta: JSON for observers and logs; the model is not shown it.

    """

    content: tuple[TextBlock | BinaryBlock, ...] = ()
    error: ToolFailure | None = None
    meta: JsonObject = EMPTY

    @classmethod
    def of(cls, text: str) -> ToolOutput:
        """Make an output of one text."""
        return cls((TextBlock(text),))


@runtime_checkable
class Tool(Protocol):
    """Something a model may call.

    A tool that also has `needs_approval`, and has it true, is run only if a listener
    allows the call: see `docs/tools.md`.

    Attributes:
      spec: its name, what the model is told, and the schema of its arguments.
      parallel_safe: whether calls of it may overlap with other parallel-safe calls.
      max_seconds: how long one call may take; None for as long as it likes.

    """

    @property
    def spec(self) -> ToolSpec:
        """What the model is told."""
        ...

    @property
    def parallel_safe(self) -> bool:
        """Whether calls of this tool may overlap."""
        ...

    @property
    def max_seconds(self) -> float | None:
        """The limit of one call, in seconds."""
        ...

    def check(self, arguments: JsonObject, /) -> JsonObject:
        """Validate arguments, fill in defaults, change nothing in the world.

        Raises:
          ToolArgumentsError: if they do not fit; the message is for the model.

        """
        ...

    async def run(self, call: ToolInvocation, /) -> ToolOutput:
        """Do the work of one call.

        Cancellation:
          Passes through as `trio.Cancelled` once everything the call started
          (tasks, threads, processes) has ended. Work that is past its point of no
          return may finish and return its value: a value returned after a stop is
          recorded as the result.

        Raises:
          Exception: any; it becomes an error result that names it.

        """
        ...


class EpochStart(msgspec.Struct, frozen=True):
    """A claim began when events up to `base_seq` were durable."""

    epoch: int
    base_seq: int


class Claim(msgspec.Struct, frozen=True):
    """The right to append to one session, held by one kernel.

    Attributes:
      token: the kernel's random token.
      epoch: counts the session's claims from 1.
      last_seq: the last durable event when the claim was made; 0 for a new session.
      epochs: every claim of the session so far, this one last.
      notices: what was found and set aside on the way (a torn tail, say), for people.

    """

    session_id: str
    token: str
    epoch: int
    last_seq: int
    epochs: tuple[EpochStart, ...]
    notices: tuple[str, ...] = ()


class Append(msgspec.Struct, frozen=True, eq=False):
    """Events of one session to be made durable, contiguous and in order."""

    claim: Claim
    events: Sequence[SessionEvent]


class SessionInfo(msgspec.Struct, frozen=True):
    """What a store tells about a session without opening it.

    Attributes:
      updated_at: Unix time in seconds of the last event, None if unknown.
      claimed: whether a live kernel holds it.

    """

    session_id: str
    last_seq: int
    updated_at: float | None = None
    claimed: bool = False


@runtime_checkable
class SessionStore(Protocol):
    """Keeps sessions. Checked by `check_store`.

    A kernel enters the store, uses it from several tasks, and leaves it; leaving
    joins its thread. `write` is called by one task at a time; `claim`, `release`
    and `read` may run beside it. Blobs are the store's affair: `encode_event` hands
    them over with the line, and they are made durable in the same barrier.

    Attributes:
      waits: False if `write` and `read` never wait for anything outside the
        process; the kernel then calls `write` without a task of its own, and it
        must not pass a checkpoint.

    """

    @property
    def waits(self) -> bool:
        """Whether `write` waits for something outside this process."""
        ...

    async def __aenter__(self) -> Self:
        """Open the store."""
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the store and join its thread; claims still held are released."""
        ...

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> Claim:
        """Become the one writer of a session.

        A claim whose owner is dead (the operating system has released its lock) is
        taken over without asking; a live one only with `takeover`. From then on the
        old owner's writes are refused, however late they come. Claiming again what
        this token already holds is refused like any other live claim.

        Cancellation:
          Either the claim was made and is released again, or nothing happened.

        Raises:
          SessionExistsError: if `create` and there is such a session.
          SessionNotFoundError: if not `create` and there is none.
          SessionBusyError: if a live kernel holds it.
          SessionFormatError: if what is stored is damaged before its tail.
          StorageError: if the storage cannot be reached.

        """
        ...

    async def release(self, claim: Claim, /) -> None:
        """Give a claim back; harmless if it is gone. A session without events goes.

        Cancellation:
          The claim is given back all the same.

        """
        ...

    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[SessionEvent]:
        """Read durable events in order, from the one behind `after`.

        Cancellation:
          Nothing happened.

        Returns:
          At most `limit` events; fewer only at the end.

        Raises:
          SessionNotFoundError: if there is no such session.
          SessionFormatError: if an event cannot be read; it names the number.
          ValueError: if `after` is negative, or `limit` not positive.

        """
        ...

    async def write(self, batch: Sequence[Append], /) -> Sequence[Claim]:
        """Make a batch durable, all sessions in one barrier, blobs included.

        When it returns, the events survive a power loss. When it raises, any part of
        the batch may or may not be durable: the kernel hands in the same events
        again, and the store writes them again (a sync alone is not enough after a
        failed one) without doubling any.

        Cancellation:
          The kernel shields this call.

        Returns:
          The claims that have been taken over by somebody else; nothing of theirs
          was written.

        Raises:
          StorageError: if it cannot be written now.

        """
        ...

    async def sessions(self) -> Sequence[SessionInfo]:
        """List the sessions, the most recently changed first."""
        ...
