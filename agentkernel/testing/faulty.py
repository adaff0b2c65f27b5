"""A store that fails on cue: for tests of what is above a store.

It wraps any store, counts the calls, and fails or holds the ones that it was told to.
What is not scripted passes through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeAlias, TypeVar, final

import trio

from agentkernel import (
    Append,
    Claim,
    SessionEvent,
    SessionInfo,
    SessionStore,
    StorageError,
)

__all__ = ["FaultyStore", "Hold", "StoreOperation"]

T = TypeVar("T")
StoreOperation: TypeAlias = Literal["claim", "release", "read", "write", "sessions"]


@final
class Hold:
    """Keeps calls waiting until it is opened; made by `FaultyStore.hold`.

    Attributes:
      reached: is set when the first call waits.

    """

    def __init__(self) -> None:
        self.reached: trio.Event = trio.Event()
        self._opened = trio.Event()

    def open(self) -> None:
        """Let the calls go on, those to come as well. Not a checkpoint."""
        self._opened.set()

    async def pass_through(self) -> None:
        """Wait until the hold is open. Always a checkpoint.

        Cancellation:
          The wait ends; the call has not happened.

        """
        self.reached.set()
        await self._opened.wait()


class _Fault:
    def __init__(
        self,
        first: int,
        last: float,
        step: Callable[[], Awaitable[None]],
        *,
        after: bool,
    ) -> None:
        self.first = first
        self.last = last
        self.step = step
        self.after = after


async def _raise(error: Exception) -> None:  # noqa: RUF029, ASYNC124  # a step like a hold's
    raise error


@final
class FaultyStore:
    """Wraps a store and lets chosen calls of it fail or wait.

    Script it before or while it is in use:

    ```python
    store = FaultyStore(MemoryStore())
    store.fail("write", times=2)        # the next two writes raise StorageError
    hold = store.hold("write", nth=5)   # the fifth write waits for hold.open()
    ```

    Args:
      inner: the store that does the work; entered and left with this one.
      waits: what `waits` says. True lets a kernel write in a task of its own, which
        a hold needs; pass False to test a store that never waits.

    Attributes:
      calls: how often each operation was called, failed calls included.

    """

    def __init__(self, inner: SessionStore, *, waits: bool = True) -> None:
        self.inner = inner
        self.calls: Counter[StoreOperation] = Counter()
        self._waits = waits
        self._faults: dict[StoreOperation, list[_Fault]] = {}

    @property
    def waits(self) -> bool:
        """As this store was told to say."""
        return self._waits

    def fail(
        self,
        operation: StoreOperation,
        *,
        nth: int | None = None,
        times: float = 1,
        after: bool = False,
        error: Exception | None = None,
    ) -> None:
        """Let calls raise. Not a checkpoint.

        Args:
          operation: what to fail.
          nth: the first call to fail, counted from 1; the next one by default.
          times: how many calls in a row; `math.inf` until `mend`.
          after: raise once the inner store has done the work, so that the caller
            cannot know.
          error: what to raise; a StorageError by default.

        """
        failure = error or StorageError("no space left on device (scripted)")
        self._add(operation, nth, times, partial(_raise, failure), after=after)

    def hold(
        self,
        operation: StoreOperation,
        *,
        nth: int | None = None,
        times: float = 1,
        after: bool = False,
    ) -> Hold:
        """Let calls wait until the returned hold is opened. Not a checkpoint.

        Args:
          operation: what to hold.
          nth: the first call to hold, counted from 1; the next one by default.
          times: how many calls in a row; `math.inf` until `mend`.
          after: wait once the inner store has done the work.

        """
        hold = Hold()
        self._add(operation, nth, times, hold.pass_through, after=after)
        return hold

    def mend(self) -> None:
        """Forget what was scripted; calls that wait go on waiting. Not a checkpoint."""
        self._faults.clear()

    def _add(
        self,
        operation: StoreOperation,
        nth: int | None,
        times: float,
        step: Callable[[], Awaitable[None]],
        *,
        after: bool,
    ) -> None:
        first = nth or self.calls[operation] + 1
        fault = _Fault(first, first + times - 1, step, after=after)
        self._faults.setdefault(operation, []).append(fault)

    async def _run(
        self, operation: StoreOperation, call: Callable[[], Awaitable[T]]
    ) -> T:
        self.calls[operation] += 1
        number = self.calls[operation]
        faults = [
            fault
            for fault in self._faults.get(operation, ())
            if fault.first <= number <= fault.last
        ]
        for fault in faults:
            if not fault.after:
                await fault.step()
        result = await call()
        for fault in faults:
            if fault.after:
                await fault.step()
        return result

    async def __aenter__(self) -> Self:
        """Open the inner store. A checkpoint if that is one."""
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the inner store. A checkpoint if that is one."""
        await self.inner.__aexit__(exc_type, exc, traceback)  # noqa: ASYNC102  # the inner store shields what it must

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> Claim:
        """Claim, unless scripted otherwise; see `SessionStore.claim`.

        Cancellation:
          As with the inner store; a claim that is held or fails after the work was
          done stays claimed.

        """
        return await self._run(
            "claim",
            lambda: self.inner.claim(
                session_id, token=token, create=create, takeover=takeover
            ),
        )

    async def release(self, claim: Claim, /) -> None:
        """Release, unless scripted otherwise; see `SessionStore.release`."""
        await self._run("release", lambda: self.inner.release(claim))

    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[SessionEvent]:
        """Read, unless scripted otherwise; see `SessionStore.read`."""
        return await self._run(
            "read", lambda: self.inner.read(session_id, after=after, limit=limit)
        )

    async def write(self, batch: Sequence[Append], /) -> Sequence[Claim]:
        """Write, unless scripted otherwise; see `SessionStore.write`."""
        return await self._run("write", lambda: self.inner.write(batch))

    async def sessions(self) -> Sequence[SessionInfo]:
        """List, unless scripted otherwise; see `SessionStore.sessions`."""
        return await self._run("sessions", self.inner.sessions)
