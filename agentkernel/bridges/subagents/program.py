"""A remote agent as a value: the program, how it is dealt with, and what it tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from agentkernel.tools import ProcessLimits

__all__ = ["Decide", "RemoteAgent", "RemoteUpdate"]

Decide: TypeAlias = Callable[[str], Awaitable[bool]]


class RemoteAgent(msgspec.Struct, frozen=True, eq=False):
    """A program that speaks the protocol, and how it is dealt with.

    Attributes:
      argv: program and arguments.
      cwd: the folder that it is to work in, and that it is started in.
      env: its whole environment; None for this process's own without what looks
        secret, the keys that most agents need among it.
      permission: what its questions are answered with, if nobody is asked.
      max_line_bytes: the longest message that is taken from it.
      max_text_bytes: how much of its text is kept.
      start_seconds: how long it may take until its session is there.
      cancel_seconds: how long it may take to answer after a stop.
      limits: `hangup`, `grace` and `drain` of its process group.

    """

    argv: tuple[str, ...]
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    permission: Literal["allow", "deny", "ask"] = "ask"
    max_line_bytes: int = 16 * 1024 * 1024
    max_text_bytes: int = 256 * 1024
    start_seconds: float = 60.0
    cancel_seconds: float = 10.0
    limits: ProcessLimits = ProcessLimits(hangup=1.0, grace=2.0)


class RemoteUpdate(msgspec.Struct, frozen=True):
    """What a remote agent has said or done.

    Attributes:
      kind: the protocol's word for it, such as `agent_message_chunk` or `tool_call`.
      text: more of its message, or the title of what it does.
      status: of what it does, if that has one.

    """

    kind: str
    text: str = ""
    status: str | None = None
