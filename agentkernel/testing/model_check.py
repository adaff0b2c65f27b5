"""The conformance checker of the `Model` port.

`check_model` puts a model through everything that the kernel may do to it: an answer
read to its end, left in the middle by `break`, by an error and by a cancellation at
each of its task steps, and two answers at once. It is told nothing of how the model
works; it looks at what comes out and at what is left.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import final

import trio
import trio.testing

from agentkernel import (
    Chunk,
    FinishChunk,
    Model,
    ModelRequest,
    ReasoningChunk,
    ReasoningEndChunk,
    TextBlock,
    TextChunk,
    ToolCallChunk,
    UsageChunk,
    UserMessage,
)

__all__ = ["check_model"]

_ALL = sys.maxsize
_MOST_STEPS = 2000
# How many scheduling rounds a task that has been cancelled may take to end.
_TASK_ROUNDS = 1000
_CHUNKS = (
    FinishChunk,
    ReasoningChunk,
    ReasoningEndChunk,
    TextChunk,
    ToolCallChunk,
    UsageChunk,
)


async def check_model(
    make_model: Callable[[], Model],
    *,
    request: ModelRequest | None = None,
    wait_released: Callable[[], Awaitable[object]] | None = None,
    hang_after: float = 10.0,
) -> None:
    """Prove that a model keeps what the `Model` port promises.

    The model answers the same request many times, dozens of them cancelled, so it
    should answer quickly: with at least two chunks before the one that finishes.

    Always a checkpoint.

    Cancellation:
      Passes through; the answer that was being read is closed.

    Args:
      make_model: gives the model; called once.
      request: what it is asked with; a short greeting if None.
      wait_released: returns once nothing that belongs to an answer is open on the
        other side: no connection of a test server, say.
      hang_after: seconds on Trio's clock after which one answer has hung.

    Raises:
      AssertionError: if the model breaks a promise; the message says which.

    """
    if request is None:
        hello = UserMessage("check-model", (TextBlock("Say hello."),))
        request = ModelRequest(system="Be brief.", messages=(hello,))
    check = _ModelCheck(make_model(), request, wait_released, hang_after)
    with _no_leftovers(check):
        await check.whole_answer()
        await check.left_by_break()
        await check.left_by_an_error()
        await check.cancelled_at_every_step()
        await check.two_at_once()


@final
class _ModelCheck:
    """One model under test. Used by the task that runs the check."""

    def __init__(
        self,
        model: Model,
        request: ModelRequest,
        wait_released: Callable[[], Awaitable[object]] | None,
        hang_after: float,
    ) -> None:
        self._model = model
        self._request = request
        self._wait_released = wait_released
        self._hang_after = hang_after
        # How many tasks are alive when no answer is open; known after the first one.
        self._living: int | None = None
        self.leftovers: list[str] = []

    async def whole_answer(self) -> None:
        """Read an answer to its end, and look at what it is made of."""
        before = tuple(self._request.messages)
        with trio.testing.assert_checkpoints():
            chunks = await self._guarded("an answer", self._read)
        _check_grammar(chunks)
        _require(
            tuple(self._request.messages) == before, "the model changed its request"
        )
        await self._settle("an answer read to its end")

    async def left_by_break(self) -> None:
        """Leave an answer after each of its chunks."""
        chunks = await self._guarded("an answer", self._read)
        for count in range(len(chunks)):
            await self._guarded("an answer left by break", self._read, count + 1)
            await self._settle(f"an answer left by break after {count + 1} chunks")

    async def left_by_an_error(self) -> None:
        """Raise in the block of an answer: that error comes out, and no other."""
        for count in range(2):
            await self._guarded("an answer left by an error", self._fail_after, count)
            await self._settle(f"an answer left by an error after {count} chunks")

    async def cancelled_at_every_step(self) -> None:
        """Cancel an answer at its first, second, … task step."""
        for step in range(1, _MOST_STEPS):
            scope = trio.CancelScope()
            cancel = _CancelAtStep(trio.lowlevel.current_task(), scope, step)
            with scope:
                trio.lowlevel.add_instrument(cancel)
                try:
                    await self._guarded(f"a cancel at task step {step}", self._read)
                finally:
                    trio.lowlevel.remove_instrument(cancel)
            if not cancel.acted:
                return
            await self._settle(f"an answer cancelled at its task step {step}")
        raise AssertionError(f"an answer took more than {_MOST_STEPS} task steps")

    async def two_at_once(self) -> None:
        """Read two answers at the same time."""
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(self._guarded, "one of two answers", self._read)
        await self._settle("two answers at once")

    async def _read(self, most: int = _ALL) -> list[Chunk]:
        """Read an answer, or so much of it."""
        chunks: list[Chunk] = []
        async with self._model.stream(self._request) as answer:
            async for chunk in answer:
                chunks.append(chunk)
                if len(chunks) == most:
                    break
        return chunks

    async def _fail_after(self, count: int) -> list[Chunk]:
        """Raise inside the block, and see what comes out of it."""
        await trio.lowlevel.checkpoint()
        mine = _MineError()
        came: BaseException | None = None
        try:
            await self._raise_after(count, mine)
        except Exception as error:  # noqa: BLE001  # whatever it is, it is reported
            came = error
        _require(came is mine, f"an error raised inside the block came out as {came!r}")
        return []

    async def _raise_after(self, count: int, mine: _MineError) -> None:
        seen = 0
        async with self._model.stream(self._request) as answer:
            if not count:
                raise mine
            async for _ in answer:
                seen += 1
                if seen == count:
                    raise mine

    async def _guarded(
        self,
        what: str,
        fn: Callable[[int], Awaitable[list[Chunk]]],
        count: int = _ALL,
    ) -> list[Chunk]:
        """Run one reading; it must neither hang nor raise."""
        await trio.lowlevel.checkpoint()
        nurseries = len(trio.lowlevel.current_task().child_nurseries)
        chunks: list[Chunk] | None = None
        with trio.move_on_after(self._hang_after):
            try:
                chunks = await fn(count)
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(f"{what} raised {error!r}") from error
        _require(chunks is not None, f"{what} hung for {self._hang_after:g} seconds")
        _require(
            len(trio.lowlevel.current_task().child_nurseries) == nurseries,
            f"{what} left a nursery open",
        )
        return chunks or []

    async def _settle(self, what: str) -> None:
        """Make sure that nothing is left, and that the next answer comes."""
        gc.collect()
        await trio.lowlevel.checkpoint()
        _require(not self.leftovers, f"{what} was left to the garbage collector")
        if self._wait_released is not None:
            with trio.move_on_after(self._hang_after) as scope:
                await self._wait_released()
            _require(not scope.cancelled_caught, f"{what} left something open")
        await self._wait_tasks(what)
        chunks = await self._guarded(f"the answer after {what}", self._read)
        _check_grammar(chunks)

    async def _wait_tasks(self, what: str) -> None:
        """Make sure that no more tasks are alive than after the first answer."""
        await trio.lowlevel.checkpoint()
        living = 0
        for _ in range(_TASK_ROUNDS):
            await trio.lowlevel.checkpoint()
            living = trio.lowlevel.current_statistics().tasks_living
            if self._living is not None and living <= self._living:
                return
        if self._living is None:
            self._living = living
            return
        raise AssertionError(f"{what} left a task behind")


class _MineError(Exception):
    """Raised by the checker inside the block of an answer."""


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope before the n-th step that its task takes from now."""

    def __init__(
        self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int
    ) -> None:
        self._task = task
        self._scope = scope
        self._left = step
        self.acted = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count, and cancel when it is time."""
        if task is self._task and not self.acted:
            self._left -= 1
            if not self._left:
                self.acted = True
                self._scope.cancel()


@contextmanager
def _no_leftovers(check: _ModelCheck) -> Generator[None, None, None]:
    """Collect the warnings about what nobody closed, while the check runs."""
    previous = warnings.showwarning

    def notice(
        message: Warning | str,
        category: type[Warning],
        *args: object,
        **kwargs: object,
    ) -> None:
        if issubclass(category, ResourceWarning):
            check.leftovers.append(str(message))
        else:
            previous(message, category, *args, **kwargs)  # type: ignore[arg-type]  # handed on as it came  # pyright: ignore[reportArgumentType]

    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.showwarning = notice
        yield
        gc.collect()


def _check_types(items: Sequence[object]) -> None:
    for item in items:
        _require(isinstance(item, _CHUNKS), f"{item!r} is not a chunk")


def _check_grammar(chunks: Sequence[Chunk]) -> None:
    """Check one whole answer against the grammar of chunks."""
    _check_types(chunks)
    ends = [n for n, chunk in enumerate(chunks) if isinstance(chunk, FinishChunk)]
    _require(len(ends) == 1, f"an answer finished {len(ends)} times instead of once")
    after = chunks[ends[0] + 1 :]
    _require(
        all(isinstance(chunk, UsageChunk) for chunk in after),
        "something other than usage followed the end of the answer",
    )
    _require(ends[0] >= 2, "give the model a request that it answers in more chunks")
    thinking = False
    for chunk in chunks:
        if isinstance(chunk, TextChunk | ReasoningChunk):
            _require(bool(chunk.text), f"{chunk!r} is empty")
        if isinstance(chunk, ToolCallChunk):
            _require(bool(chunk.name) or chunk.truncated, "a call has no name")
        if isinstance(chunk, ReasoningEndChunk):
            sealed = chunk.signature is not None or chunk.data is not None
            _require(thinking or sealed, "reasoning ended that had not begun")
            thinking = False
        thinking = thinking or isinstance(chunk, ReasoningChunk)
    finish = chunks[ends[0]]
    calls = any(isinstance(chunk, ToolCallChunk) for chunk in chunks)
    if isinstance(finish, FinishChunk) and finish.reason == "tool-calls":
        _require(calls, "an answer ended for tool calls and held none")


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001  # as assert does
    if not condition:
        raise AssertionError(otherwise)
