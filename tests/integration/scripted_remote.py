"""Remote agents that do what a test's script says, and what they were told."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import trio

from agentkernel.bridges.subagents import (
    Decide,
    RemoteAgent,
    RemoteUpdate,
    Report,
    run_remote,
)
from agentkernel.tools import ProcessLimits

PEER = Path(__file__).parent / "scripted_peer.py"
GUARD = 60
NEVER = 600


class Message(msgspec.Struct):
    """A line that the program was sent."""

    id: object = None
    method: str | None = None
    params: dict[str, object] = {}
    result: dict[str, dict[str, str]] | None = None
    error: dict[str, object] | None = None


def scripted(  # what a test may want
    wire: Path,
    script: str,
    permission: Literal["allow", "deny", "ask"] = "deny",
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    cancel_seconds: float = NEVER,
) -> RemoteAgent:
    """A program; a stop that waits for what nobody says is noticed by the guard."""
    return RemoteAgent(
        (sys.executable, "-S", str(PEER), str(wire), textwrap.dedent(script)),
        cwd=cwd,
        env=env,
        permission=permission,
        cancel_seconds=cancel_seconds,
        limits=ProcessLimits(hangup=0.5, grace=0.2),
    )


def received(wire: Path) -> list[Message]:
    if not wire.exists():
        return []
    lines = wire.read_text("utf-8").splitlines()
    return [
        msgspec.json.decode(line, type=Message)
        for line in lines
        if line.startswith("{")
    ]


def methods(wire: Path) -> list[str | None]:
    return [m.method for m in received(wire)]


def outcomes(wire: Path) -> list[str]:
    """What the program was answered to its questions: an option, or `cancelled`."""
    found = [m.result["outcome"] for m in received(wire) if m.result is not None]
    return [each.get("optionId", each["outcome"]) for each in found]


async def run(
    remote: RemoteAgent,
    prompt: str = "go",
    *,
    decide: Decide | None = None,
    on_update: Callable[[RemoteUpdate], object] | None = None,
) -> Report:
    with trio.fail_after(GUARD):
        return await run_remote(remote, prompt, decide=decide, on_update=on_update)


def problem(report: Report) -> str:
    assert report.failure is not None
    return report.failure.message
