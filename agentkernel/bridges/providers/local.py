"""A model in this process: any GGUF file, run by llama.cpp, without a key.

`LocalModel` is a `Model`. One answer goes through four modules:

    request ─▶ local_prompt ─▶ local ⇄ local_engine ─▶ local_reader ─▶ chunks

It needs the extra `trio-agentkernel[local]`, which brings the engine. What holds here:

* The engine computes in a worker thread of the answer's own. Leaving a stream tells
  that thread to stop and waits for it, shielded: it looks up between two tokens and
  between two pieces of the prompt. No such thread outlives its stream.
* One answer at a time: requests wait in line, in order, and can leave the line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import final

import outcome
import trio

from agentkernel import Chunk, JsonObject, ModelError
from agentkernel.abc import ModelRequest

from .local_engine import Engine, find_weights
from .local_prompt import ask
from .local_reader import Reader

__all__ = ["LocalModel", "find_weights"]


@final
class LocalModel:
    """Answers from a GGUF file, in this process. Implements `agentkernel.Model`.

    Loads the file when it is first asked, in a thread, and keeps it until `aclose`
    or the end of `async with`; without either the engine goes with this object.
    Used from one Trio run; any number of tasks may ask, one is answered at a time.

    Args:
      path: the weights; None takes those that `find_weights` finds.
      threads: how many threads compute, at most all cores but one; None for that.
      context: the window in tokens, prompt and answer together; 0 takes the file's.
      max_tokens: the longest answer, where a request does not say otherwise.
      guided: whether the words of the user's message decide which tool is called:
        for models that are too small to decide. See `local_prompt`.

    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        threads: int | None = None,
        context: int = 4096,
        max_tokens: int = 256,
        guided: bool = True,
    ) -> None:
        self.max_tokens = max_tokens
        self.guided = guided
        self._engine = Engine(
            None if path is None else Path(path), threads=threads, context=context
        )

    def __repr__(self) -> str:
        engine = self._engine
        return f"LocalModel({str(engine.path)!r}, threads={engine.threads})"

    async def __aenter__(self) -> LocalModel:
        """Do nothing yet: the model is loaded when it is first asked.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        """
        await trio.lowlevel.checkpoint()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the engine; see `aclose`. Always a checkpoint.

        Cancellation:
          The engine is closed all the same.

        """
        with trio.CancelScope(shield=True):
            await self.aclose()

    def stream(
        self, request: ModelRequest, /
    ) -> AbstractAsyncContextManager[AsyncIterable[Chunk]]:
        """Open one answer; see `agentkernel.Model.stream`. Not a checkpoint.

        On entry or while iterating it raises `ModelError`: `invalid-request` if the
        conversation does not fit into the window (the message names both), `error`
        if the engine or the weights are missing or broken.
        """
        return _Answer(self._engine, self._compose, request)

    async def load(self) -> None:
        """Load the model now, if it is not loaded. Always a checkpoint.

        Cancellation:
          Ends the wait in line. Loading itself takes about a second and is not
          interrupted: a model that was loaded stays loaded.

        Raises:
          ModelError: if the engine or the weights are missing or broken.

        """
        async with self._engine.turn_taking:
            await self._engine.load()

    async def aclose(self) -> None:
        """Give back the engine, its memory and its threads. Always a checkpoint.

        Waits for the answers that are under way or in line. A later request loads
        the model again.

        Cancellation:
          Nothing happened if it comes while waiting in line; else the engine is
          closed.

        """
        async with self._engine.turn_taking:
            await self._engine.aclose()

    def _compose(self, request: ModelRequest) -> JsonObject:
        asked = ask(
            request,
            guided=self.guided,
            max_tokens=self.max_tokens,
            max_result_chars=max(500, self._engine.context // 2),
        )
        return asked.compose(self._engine.translate)


@final
class _Answer:
    """One answer: an async context manager that gives itself to be iterated.

    No nursery is open around the caller's block, so what that block raises comes out
    as it is. The engine's thread talks to the run through `run_sync_soon` alone.
    """

    def __init__(
        self,
        engine: Engine,
        compose: Callable[[ModelRequest], JsonObject],
        request: ModelRequest,
    ) -> None:
        self._engine = engine
        self._compose = compose
        self._request = request
        # Looked at by the thread, set by the run; a bool needs no lock.
        self._stopped = False
        self._ended = trio.Event()
        # Unbounded, since the engine cannot wait; an answer's length is bounded.
        self._sink, self._source = trio.open_memory_channel[object](float("inf"))
        self._ready: deque[Chunk] = deque()
        self._reader = Reader()
        self._unregister: Callable[[], object] = _nothing

    async def __aenter__(self) -> _Answer:
        """Wait in line, load the model if need be, and start the engine.

        Always a checkpoint.

        Cancellation:
          Passes through; nothing was started.

        """
        await self._engine.turn_taking.acquire()
        try:
            server = await self._engine.load()
            body = self._compose(self._request)
        except BaseException:
            self._engine.turn_taking.release()
            raise
        token = trio.lowlevel.current_trio_token()

        def tell(event: object) -> bool:
            if not self._stopped:
                token.run_sync_soon(self._sink.send_nowait, event)
            return self._stopped

        def end(result: outcome.Outcome[object]) -> None:
            token.run_sync_soon(self._end, result)

        # From here to the return there is no checkpoint: the exit joins the thread.
        trio.lowlevel.start_thread_soon(
            lambda: server.handle_chat_completions(body, tell), end, "local-model"
        )
        if self._request.signal is not None:
            self._unregister = self._request.signal.on_cancel(self._stop)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Stop the engine, wait for its thread, let the next request in.

        Always a checkpoint.

        Cancellation:
          Does not interrupt it: the thread ends within one token, or one piece of
          the prompt.

        """
        self._stop()
        self._unregister()
        with trio.CancelScope(shield=True):
            await self._ended.wait()
        self._source.close()
        self._engine.turn_taking.release()

    def __aiter__(self) -> _Answer:
        return self

    async def __anext__(self) -> Chunk:
        """Give the next chunk. Always a checkpoint.

        Cancellation:
          Nothing is lost: the chunk is given next time.

        Raises:
          ModelError: if the engine failed.
          StopAsyncIteration: if the answer is over.

        """
        await trio.lowlevel.checkpoint()
        while not self._ready:
            try:
                event = await self._source.receive()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
            if isinstance(event, outcome.Error):
                raise ModelError(f"the engine failed: {event.error}") from event.error
            self._ready.extend(self._reader.feed(event))
        return self._ready.popleft()

    def _stop(self, _reason: object = None) -> None:
        self._stopped = True

    def _end(self, result: outcome.Outcome[object]) -> None:
        """Note, in the run, that the thread is done."""
        if isinstance(result, outcome.Error):
            self._sink.send_nowait(result)
        self._sink.close()
        self._ended.set()


def _nothing() -> None:
    """Unregister what was never registered."""
