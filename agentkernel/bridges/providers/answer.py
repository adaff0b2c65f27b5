"""The chunks of one answer, read from an HTTP response as they come.

Everything that waits for a stream is here; what the bytes mean is the business of
`sse` and of a `Decoder`, which are pure. Invariants:

- The client's nested async generators never reach the garbage collector: an early
  end unwinds them from the inside, by a cancellation that only they see.
- Silence is measured in events that say something. Comments and pings keep the
  connection alive and do not keep the request alive.
- Chunks that came before a failure are given before it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol, final

import httpx2
import trio

from agentkernel import Chunk, ModelError

from .failures import Secrets, client_failure, status_failure, stream_failure
from .sse import SseDecoder, SseEvent

__all__ = ["Answer", "Decoder", "idle_failure"]

# How long usage may still come after the answer itself is whole.
_AFTERMATH_SECONDS = 5.0
# How long the end of a body may take that holds nothing more.
_REST_SECONDS = 0.25
_ERROR_BODY_SECONDS = 5.0
_ERROR_BODY_BYTES = 64 * 1024
_NO_STREAM = frozenset({"application/json", "application/problem+json", "text/html"})


class Decoder(Protocol):
    """Reads the events of one answer; pure."""

    done: bool

    @property
    def finished(self) -> bool:
        """Whether the answer is whole and only usage may still come."""
        ...

    def feed(self, event: SseEvent, /) -> tuple[bool, list[Chunk]]:
        """Take an event; say whether it was progress, and what it completes."""
        ...

    def end(self) -> list[Chunk]:
        """Give what was held back; raise if the answer is not whole."""
        ...


@final
class Answer:
    """The chunks of one answer, as they come. Made by an `Endpoint`.

    Iterated by the task that entered the block it comes from, once.
    """

    def __init__(
        self,
        response: httpx2.Response,
        decoder: Decoder,
        secrets: Secrets,
        idle_seconds: float,
        *,
        is_shared: bool,
    ) -> None:
        self._response = response
        self._decoder = decoder
        self._secrets = secrets
        self._idle_seconds = idle_seconds
        self._sse = SseDecoder()
        self._bytes = response.aiter_bytes()
        self._events: deque[SseEvent] = deque()
        self._chunks: deque[Chunk] = deque()
        # No further chunk comes: the answer has ended, or failed, or was closed.
        self._over = False
        # The answer is whole, and the connection may serve another if its body ends.
        self._is_reusable = False
        self._is_shared = is_shared

    def __aiter__(self) -> Answer:
        return self

    @property
    def is_stream(self) -> bool:
        """Whether the provider answered with a stream."""
        return self._response.status_code == 200 and self._kind not in _NO_STREAM

    @property
    def _kind(self) -> str:
        kind = self._response.headers.get("content-type", "").partition(";")[0]
        return kind.strip().lower()

    async def __anext__(self) -> Chunk:
        """Wait for the next chunk.

        Always a checkpoint.

        Cancellation:
          Passes through; nothing more can be read from this answer.

        Raises:
          ModelError: if the answer failed, was cut, or went silent.
          StopAsyncIteration: if it is over.

        """
        if self._chunks or self._over:
            await trio.lowlevel.checkpoint()
        else:
            try:
                await self._fill()
            except BaseException:
                self._over = True
                raise
        if self._chunks:
            return self._chunks.popleft()
        if self._is_reusable:
            await self._end_body()
        raise StopAsyncIteration

    async def refusal(self) -> ModelError:
        """Read why there is no stream: an error, or a body of another kind.

        Always a checkpoint. For the block that owns the answer.

        Cancellation:
          Passes through; the answer can only be closed then.

        """
        response, secrets = self._response, self._secrets
        body = await self._read_error()
        if response.status_code != 200:
            return status_failure(response.status_code, response.headers, body, secrets)
        if '"error"' in body:
            return stream_failure(body, secrets)
        return ModelError(
            f"the provider answered with {self._kind} instead of a stream: "
            f"{secrets.excerpt(body)}",
            code="server",
            status=200,
        )

    async def aclose(self) -> None:
        """Give the connection back, or close it if the answer is not over.

        Always a checkpoint. For the block that owns the answer.

        Cancellation:
          Called shielded, with a deadline.

        """
        self._over = True
        self._is_reusable = False
        # Only the innermost read can unwind all generators around it in order, so
        # it is cancelled there; what had arrived before is passed over.
        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            try:
                while True:
                    await anext(self._bytes)
            except (StopAsyncIteration, httpx2.HTTPError, httpx2.StreamError):
                await trio.lowlevel.checkpoint()
        await self._response.aclose()

    async def _read_error(self) -> str:
        """Read the beginning of an error's body, for a limited time."""
        body = b""
        with trio.move_on_after(_ERROR_BODY_SECONDS):
            await trio.lowlevel.checkpoint()
            try:
                while len(body) < _ERROR_BODY_BYTES:
                    body += await anext(self._bytes)
            except (StopAsyncIteration, httpx2.HTTPError):
                pass
        return body[:_ERROR_BODY_BYTES].decode("utf-8", "replace")

    async def _end_body(self) -> None:
        """Read what follows the answer: mostly nothing, and the end of the body."""
        self._is_reusable = False
        with trio.move_on_after(_REST_SECONDS):
            await trio.lowlevel.checkpoint()
            try:
                while True:
                    await anext(self._bytes)
            except (StopAsyncIteration, httpx2.HTTPError):
                pass

    async def _fill(self) -> None:
        """Read on until there is a chunk, or the answer is over."""
        with trio.CancelScope() as scope:
            await trio.lowlevel.checkpoint()
            scope.deadline = trio.current_time() + self._patience()
            while not self._chunks and not self._over:
                if not self._events:
                    await self._read()
                elif self._take(self._events.popleft()):
                    scope.deadline = trio.current_time() + self._patience()
        if scope.cancelled_caught:
            if not self._decoder.finished:
                raise idle_failure("went silent", self._idle_seconds)
            self._end()

    def _take(self, event: SseEvent) -> bool:
        progress, chunks = self._decoder.feed(event)
        self._chunks.extend(chunks)
        if self._decoder.done:
            self._end()
        return progress

    def _patience(self) -> float:
        if self._decoder.finished:
            return min(_AFTERMATH_SECONDS, self._idle_seconds)
        return self._idle_seconds

    def _end(self) -> None:
        self._chunks.extend(self._decoder.end())
        self._over = True
        self._is_reusable = self._is_shared

    async def _read(self) -> None:  # noqa: ASYNC910  # the read is the checkpoint
        """Wait for more bytes, or for the end of the stream."""
        chunk: bytes | None = None
        failure: httpx2.HTTPError | None = None
        try:
            chunk = await anext(self._bytes, None)
        except httpx2.HTTPError as error:
            failure = error
        if failure is not None and not self._decoder.finished:
            raise client_failure(failure, self._secrets, streaming=True) from failure
        if chunk is None:
            self._end()
        else:
            self._events.extend(self._sse.feed(chunk))


def idle_failure(what: str, seconds: float) -> ModelError:
    """Describe a silence that was too long."""
    return ModelError(
        f"the provider {what} for {seconds:g} seconds", code="idle", retryable=True
    )
