"""`open_kernel`: the block that owns every agent, their store and their end.

Inside the block two nurseries are at work. The outer one holds the body and a
sentinel; the drivers run in a task of their own, in a nursery that is shielded from
whatever cancels the block. A cancellation from outside therefore reaches the
sentinel, which disposes of all agents: turns learn of it through their signals, in
the same pass of the scheduler, and record it. Only then does it go on its way.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager

import trio
from trio.lowlevel import enable_ki_protection

from .._errors import StorageError
from .._session.writer import Writer
from .._util import new_id, wall_clock
from ..abc import SessionStore
from .commons import Commons
from .failure import fatal_leaf
from .kernel import Kernel
from .roster import Roster

__all__ = ["open_kernel"]


@asynccontextmanager
@enable_ki_protection
async def open_kernel(
    store: SessionStore,
    *,
    clock: Callable[[], float] = wall_clock,
    make_id: Callable[[], str] = new_id,
    stuck_after: float = 5.0,
    strict: bool = False,
) -> AsyncGenerator[Kernel, None]:
    """Open a kernel for the length of a block; nothing it starts outlives the block.

    Leaving the block disposes of every agent: all are interrupted at once, and the
    store is closed when the last one has gone. An exception of the body leaves the
    block as itself. Entry and exit are checkpoints.

    Cancellation:
      A cancellation of the block disposes of every agent, is recorded by their
      turns as `disposed`, and then passes through. Work that ignores its
      cancellation delays it.

    Args:
      store: where sessions live; the kernel enters and leaves it.
      clock: gives Unix time in seconds, for the dates of events.
      make_id: gives a new id, for messages and sessions that come without one.
      stuck_after: seconds after which a stop, or a write, is reported as stuck.
      strict: raise what observers raised, as a group, when the block ends: for tests.

    Raises:
      StorageError: when the block ends, if the last events of an agent could not be
        written and the body raised nothing itself; what the block raises has a note
        for each session of which that is true and nobody was told.

    """
    commons = Commons(
        Writer(store),
        now=clock,
        make_id=make_id,
        stuck_after=stuck_after,
        strict=strict,
    )
    roster = Roster(commons)
    kernel = Kernel(commons, roster, store)
    body_error: BaseException | None = None
    async with store:
        try:
            async with trio.open_nursery() as nursery:
                context = contextvars.copy_context()
                nursery.start_soon(roster.host, context, nursery.cancel_scope.cancel)
                try:
                    await roster.hosted.wait()
                    nursery.start_soon(roster.watch_for_cancellation)
                    yield kernel
                except BaseException as error:  # noqa: ASYNC103, BLE001  # raised below, outside of the nursery that would wrap it
                    body_error = error
                with trio.CancelScope(shield=True):
                    body_error = await roster.see_to_the_end(body_error)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # Nothing is left to wait for but the sentinel: an interruption came then.
            body_error = body_error or fatal_leaf(group) or group
    leaving = commons.fatal or body_error
    if commons.contained:
        leaving = leaving or ExceptionGroup("observers raised", commons.contained)
    leaving = _with_losses(leaving, roster.close_failures)
    if leaving is not None:
        raise leaving


def _with_losses(
    error: BaseException | None, losses: Mapping[str, StorageError]
) -> BaseException | None:
    """Note each session that was not written to its end; one loss is an error itself."""
    for session_id, loss in losses.items():
        error = error or loss
        error.add_note(f"session {session_id!r} was not written to its end: {loss}")
    return error
