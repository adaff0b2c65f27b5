"""Runs one command: its console, its signals, and the exit code of what it raises."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias, cast

import trio

from agentkernel import AgentKernelError, StorageError

from .chat import chat
from .console import Console
from .exits import Complaint, Exit
from .life import Life
from .opening import Extras
from .plain import one_line
from .run import run
from .sessions import sessions
from .settings import Settings
from .signals import Interrupts

__all__ = ["serve"]

Command: TypeAlias = Callable[[Settings, Extras, Life], Awaitable[int]]


def serve(settings: Settings, extras: Extras) -> int:
    """Run a command to its end and give its exit code."""
    # What the loggers of the kernel say is told by events; this silences the default.
    logging.getLogger("agentkernel").addHandler(logging.NullHandler())
    code = trio.run(_serve, settings, extras)
    with suppress(OSError):
        sys.stdout.flush()
        return code
    # The other side of standard output is gone: let nothing be flushed at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


async def _serve(settings: Settings, extras: Extras) -> int:
    """Run a command between the start and the end of the console.

    Always a checkpoint.

    Cancellation:
      Passes through.

    """
    console = Console()
    interrupts = Interrupts()
    life = Life(console, interrupts)
    code = 0
    with interrupts.listening():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.run)
            code = await _run_command(settings, extras, life)
            await console.drained()
            nursery.cancel_scope.cancel()
    return code


async def _run_command(settings: Settings, extras: Extras, life: Life) -> int:
    """Run a command in its scope; what it raises becomes words and an exit code.

    Always a checkpoint.

    Cancellation:
      Passes through, from outside; the command's own scope is caught here.

    """
    await trio.lowlevel.checkpoint()
    commands: dict[str, Command] = {"run": run, "chat": chat, "sessions": sessions}
    code = Exit.ERROR
    try:
        with life.scope:
            code = Exit(await commands[settings.command](settings, extras, life))
    except Exception as error:  # noqa: BLE001  # the one place that turns errors into exit codes
        code = _explain(_leaf(error), life)
    if life.ended_by is not None and code != Exit.STORAGE:
        return life.ended_by
    return code


def _explain(error: BaseException, life: Life) -> Exit:
    """Say what went wrong; what nobody foresaw is raised."""
    if not isinstance(error, Complaint | AgentKernelError):
        raise error
    life.console.put(f"agentkernel: {one_line(str(error), 2000)}\n", error=True)
    if isinstance(error, Complaint):
        return error.code
    return Exit.STORAGE if isinstance(error, StorageError) else Exit.ERROR


def _leaf(error: BaseException) -> BaseException:
    """Take a lone error out of the groups that nurseries have put around it."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        if len(group.exceptions) == 1:
            return _leaf(group.exceptions[0])
        return group
    return error
