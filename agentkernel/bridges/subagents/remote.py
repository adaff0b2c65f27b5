"""Agents in a program of their own, talked to by the Agent Client Protocol.

    prompt ─▶ process group ─▶ initialize ─▶ session/new ─▶ session/prompt ─▶ Report
                                   ▲ updates, permission requests ▼

Each run has a process of its own, in the block of one task. A stop becomes the
protocol's own: `session/cancel` is sent, open permission requests are answered
`cancelled`, and the program is listened to until it has answered its prompt, has ended,
or has used up `cancel_seconds`. Then its input is closed and its whole process group
is ended (SIGTERM, grace, SIGKILL) and reaped, on every way out.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import trio

from .conversation import Conversation
from .program import Decide, RemoteAgent, RemoteUpdate
from .values import Report

__all__ = ["Decide", "RemoteAgent", "RemoteUpdate", "run_remote"]


async def run_remote(
    remote: RemoteAgent,
    prompt: str,
    *,
    decide: Decide | None = None,
    on_update: Callable[[RemoteUpdate], object] | None = None,
) -> Report:
    """Start a remote agent, have it do one task, and end it.

    Always a checkpoint.

    Cancellation:
      The remote is told, listened to until it has answered, and ended; then the
      cancellation passes through. It takes `cancel_seconds` and the limits of the
      process group at most. A remote whose turn ends by its own doing all the same
      has done its work: that is a report.

    Args:
      remote: the program.
      prompt: what it is told.
      decide: asked with the title of what the remote wants to do, where its
        permission is `ask`; without it the answer is no.
      on_update: told of what it says and does, synchronously.

    Returns:
      What became of it. A program that cannot be started, breaks the protocol or
      ends early is a report with a failure.

    Raises:
      Exception: what `decide` or `on_update` raised. The remote is stopped first, as
        by a cancellation.

    """
    talk = Conversation(remote, prompt, decide, on_update)
    try:
        where = await trio.Path(remote.cwd or ".").resolve()
        group = await talk.run(str(where))
    except (OSError, ValueError, NotImplementedError) as error:
        if talk.has_started:
            raise
        talk.problem = f"It cannot be started: {error}"
        await trio.lowlevel.checkpoint()
        return talk.report()
    return msgspec.structs.replace(talk.report(), survivors=group.survivors)
