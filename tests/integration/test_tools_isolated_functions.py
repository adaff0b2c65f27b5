"""Functions that tests run in a process of their own: importable, and not nice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import trio

from agentkernel import BinaryBlock, Blob, TextBlock, ToolFailure, ToolOutput
from agentkernel.tools import tool


@tool(isolation="process")
def where(add: int, to: Annotated[int, msgspec.Meta(ge=0)] = 1) -> dict[str, int]:
    """Add two numbers, elsewhere."""
    return {"sum": add + to, "pid": os.getpid()}


@tool(isolation="process")
async def pause(text: str) -> str:
    """Say something after a checkpoint."""
    await trio.lowlevel.checkpoint()
    return text


@tool(isolation="process")
def chatty() -> str:
    """Print to standard output in every way there is."""
    sys.stdout.write("printed\n")
    os.write(1, b"written\n")
    subprocess.run(["/bin/echo", "inherited"], check=True)
    return "returned"


@tool(isolation="process")
def rich() -> ToolOutput:
    """Return everything that an output may hold."""
    return ToolOutput(
        (TextBlock("t\u2028\0"), BinaryBlock("image/png", Blob(b"\x89PNG\0"), "a.png")),
        ToolFailure("odd", "message"),
        {"n": (1, None)},
    )


@tool(isolation="process")
def fail(how: str) -> str:
    """End in some other way than by returning."""
    if how == "raise":
        raise ValueError("not today")
    if how == "exit":
        sys.exit(3)
    if how == "kill":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    return "?" * (40 * 1024 * 1024)


@tool(isolation="process", max_seconds=0.5)
def stubborn(started: str, seconds: float) -> str:
    """Ignore every polite request to stop, with a child that does the same."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(["/bin/sleep", str(seconds)])
    Path(started).write_text(f"{os.getpid()} {child.pid}")
    while True:
        time.sleep(0.01)


@tool(isolation="process")
def variable(name: str) -> str:
    """Look up a variable of the environment."""
    return os.environ.get(name, "none")


@tool(isolation="process")
def odd_error() -> None:
    """Fail over a name that is no text."""
    raise ValueError("bad name \udcff")
