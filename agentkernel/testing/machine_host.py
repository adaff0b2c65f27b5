"""A host loop with Trio as its guest, which lets one scheduling pass go by at a time.

A state machine is a plain synchronous program. With a `Host` it calls the verbs of an
agent between two scheduling passes, as a callback of an application's own loop would,
and says itself how far the tasks get before the next one.
"""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, final

import outcome
import trio
import trio.testing

__all__ = ["Host"]

T = TypeVar("T")

# Far above what anything that comes to rest takes.
_MOST_PASSES: Final = 50_000
# Real seconds without a pass, after which a task waits for something outside.
_LONGEST_WAIT: Final = 20


@final
class Host:
    """Runs Trio as a guest, with a virtual clock, one scheduling pass at a time.

    Made and used by one plain thread, outside of any Trio run; `close` ends it. What
    waits for a thread, a process or a socket is beyond it: it waits for time only,
    and the clock jumps ahead when nothing else is left to do.
    """

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended = False
        # How the guest run ended, until somebody was shown it.
        self._result: outcome.Outcome[None] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._due.put,
            done_callback=self._done,
            clock=trio.testing.MockClock(autojump_threshold=0),
            host_uses_signal_set_wakeup_fd=True,
        )
        self._until(lambda: self._nursery is not None)

    def tick(self) -> None:
        """Let one scheduling pass go by."""
        self._refuse_if_ended()
        assert self._token is not None
        self._token.run_sync_soon(int)
        self._due.get()()

    def settle(self) -> None:
        """Let passes go by until every task waits."""
        self.run(trio.testing.wait_all_tasks_blocked)

    def start(self, fn: Callable[[], Awaitable[object]]) -> None:
        """Start a task; it runs as passes go by. What it raises ends the guest run."""
        self._refuse_if_ended()
        assert self._nursery is not None
        self._nursery.start_soon(fn)

    def run(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Run an async function to its end; return or raise what it does.

        Raises:
          AssertionError: if the tasks never come to rest.

        """
        results: list[outcome.Outcome[T]] = []

        async def catch() -> None:  # noqa: ASYNC910  # waits as `fn` does
            try:
                results.append(outcome.Value(await fn()))
            except Exception as error:  # noqa: BLE001 - raised in the host
                results.append(outcome.Error(error))

        self.start(catch)
        self._until(lambda: bool(results))
        return results[0].unwrap()

    def close(self) -> None:
        """End the guest run: cancel what is left, and raise what a task has raised.

        What was raised before, by another method, is not raised again.
        """
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        self._until(lambda: self._ended)
        self._show_end()

    def _until(self, reached: Callable[[], bool]) -> None:
        for _ in range(_MOST_PASSES):
            if reached():
                return
            self._refuse_if_ended()
            self._due.get(timeout=_LONGEST_WAIT)()
        raise AssertionError("the tasks never come to rest")

    def _refuse_if_ended(self) -> None:
        if self._ended:
            self._show_end()
            raise RuntimeError("the guest run has ended")

    def _show_end(self) -> None:
        result, self._result = self._result, None
        if result is not None:
            result.unwrap()

    def _done(self, result: outcome.Outcome[None]) -> None:
        self._ended, self._result = True, result

    async def _main(self) -> None:
        """Own the tasks until the host closes.

        Always a checkpoint.

        Cancellation:
          That is how it ends.

        """
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()
