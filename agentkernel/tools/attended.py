"""Work with an attendant beside it, and an end that nothing cuts short.

Sits below `group`. What talks to a process has a reader that must outlive the stop of
its owner, so its scope is shielded; whatever ends the owner's work, Ctrl-C included,
has to end that reader too, or nobody ever does. And what ends a process must not be
interrupted: Trio raises Ctrl-C in the main task, shielded or not, so the end runs in a
task of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import outcome
import trio
from trio.lowlevel import enable_ki_protection

__all__ = ["attended", "sheltered"]

_T = TypeVar("_T")


@enable_ki_protection
async def attended(
    work: Callable[[], Awaitable[_T]],
    *,
    attendant: Callable[[], Awaitable[None]],
    end: Callable[[outcome.Outcome[_T]], Awaitable[None]],
) -> outcome.Outcome[_T]:
    """Do some work with an attendant beside it, then end both.

    The attendant runs shielded, from before the work until `end` is through; then it
    is cancelled. An error of the attendant cancels the work and leaves in a group.
    Ctrl-C that comes while one of them runs is raised at the next wait of the main task;
    tasks that the attendant starts are its own to protect.

    Always a checkpoint.

    Cancellation:
      Reaches the work alone. What the work makes of it, `trio.Cancelled` included, is
      the result: whoever calls this unwraps it, or knows why not.

    Args:
      work: done in this task.
      attendant: what goes on beside it.
      end: told what became of the work; `sheltered`.

    Returns:
      What became of the work, whichever way it ended.

    Raises:
      KeyboardInterrupt: if it comes while `end` runs, which goes on to its end.

    """
    scope = trio.CancelScope(shield=True)

    @enable_ki_protection
    async def attend() -> None:
        await trio.lowlevel.cancel_shielded_checkpoint()
        with scope:
            await attendant()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(attend)
        result = await outcome.acapture(work)
        ended = await outcome.acapture(sheltered, functools.partial(end, result))
        scope.cancel()
    ended.unwrap()
    return result


@enable_ki_protection
async def sheltered(fn: Callable[[], Awaitable[None]]) -> None:
    """Run something to its end, whatever happens meanwhile.

    It runs in a task of its own. The caller bounds it in time.

    Always a checkpoint.

    Cancellation:
      None reaches it, and none is raised here.

    Raises:
      Exception: what it raises.
      KeyboardInterrupt: after its end, if Ctrl-C came meanwhile.

    """
    await trio.lowlevel.cancel_shielded_checkpoint()
    try:
        # Ctrl-C goes to this task, which waits here, and not to the other.
        async with trio.open_nursery() as nursery:  # noqa: ASYNC112  # a task of its own
            nursery.start_soon(_shielded, fn)
    except BaseExceptionGroup as group:
        interrupts, rest = group.split(KeyboardInterrupt)
        if interrupts is not None and rest is None:
            raise KeyboardInterrupt from None
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None  # noqa: ASYNC123  # it was alone
        raise


@enable_ki_protection
async def _shielded(fn: Callable[[], Awaitable[None]]) -> None:
    with trio.CancelScope(shield=True):
        await fn()
