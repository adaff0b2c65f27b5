"""Runs one call of a function in a Python process of its own, which can be killed.

The parent's side; the child's is `isolated_child`. The child gets this process's
module search path, the function's name and its arguments on standard input, and
answers on a pipe that nothing else writes to: what the function prints goes to
standard error. What this buys is an end by force, not a sandbox.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

from agentkernel import (
    AgentKernelError,
    BinaryBlock,
    Blob,
    JsonObject,
    TextBlock,
    ToolFailure,
    ToolOutput,
    freeze,
)

from .process import CommandResult, ProcessLimits, run_command
from .schema import Function

__all__ = ["IsolatedCallError", "Job", "Reply", "call_in_process", "import_name"]

_LIMITS = ProcessLimits(max_bytes=16 * 1024 * 1024)
_MAX_STDERR = 4000
# The search path comes first: the package itself may be found by nothing else.
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from agentkernel.tools.isolated_child import main; main()"
)


class Job(msgspec.Struct, frozen=True):
    """What the child is asked to do: call `module:qualified.name`."""

    function: str
    arguments: msgspec.Raw


class WireBlock(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block on its way between processes; binary if it has a media type."""

    text: str = ""
    media_type: str | None = None
    data: bytes = b""
    name: str | None = None


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the child answers: an output, or the problem that kept it from one."""

    content: tuple[WireBlock, ...] = ()
    error: ToolFailure | None = None
    meta: msgspec.Raw = msgspec.Raw(b"{}")
    problem: str | None = None

    @classmethod
    def of(cls, output: ToolOutput) -> Reply:
        """Pack an output."""
        content = tuple(
            WireBlock(block.text)
            if isinstance(block, TextBlock)
            else WireBlock("", block.media_type, block.data.data, block.name)
            for block in output.content
        )
        meta = msgspec.Raw(msgspec.json.encode(output.meta))
        return cls(content, output.error, meta)

    def output(self) -> ToolOutput:
        """Unpack the output."""
        content = tuple(
            TextBlock(block.text)
            if block.media_type is None
            else BinaryBlock(block.media_type, Blob(block.data), block.name)
            for block in self.content
        )
        meta = freeze(msgspec.json.decode(self.meta))
        assert isinstance(meta, dict)
        return ToolOutput(content, self.error, meta)


class IsolatedCallError(AgentKernelError):
    """If a function raised in its own process, or the process died before it returned.

    Attributes:
      function: its name, `module:qualified.name`.
      problem: the exception, or how the process ended.
      stderr: the end of what it printed.

    """

    def __init__(self, function: str, problem: str, stderr: str = "") -> None:
        self.function = function
        self.problem = problem
        self.stderr = stderr
        tail = f"\n{stderr}" if stderr else ""
        super().__init__(f"{problem}{tail}")


def import_name(fn: Function) -> str:
    """Return the name by which another process can import a function.

    Raises:
      TypeError: if there is none.

    """
    module = getattr(fn, "__module__", None)
    qualname = getattr(fn, "__qualname__", None)
    if not module or not qualname or "<" in qualname or module == "__main__":
        raise TypeError(
            f"{qualname or fn!r} cannot run in a process of its own: it must be "
            "defined at the top level of a module that can be imported (not of the "
            "program's main file)"
        )
    if getattr(fn, "__self__", None) is not None:
        raise TypeError(f"{qualname} is bound to an object that stays in this process")
    return f"{module}:{qualname}"


async def call_in_process(
    function: str, arguments: JsonObject, *, env: Mapping[str, str] | None = None
) -> ToolOutput:
    """Call a function, named by `import_name`, in a process of its own.

    Always a checkpoint.

    Cancellation:
      Passes through once the process and everything it started is ended (SIGTERM,
      grace, SIGKILL) and reaped. What the function has done until then stays done.

    Args:
      function: its name.
      arguments: what it is called with.
      env: the whole environment of the process; None for this one's without what
        looks secret.

    Raises:
      IsolatedCallError: if it raised, or the process ended without an answer.
      OSError: if the process cannot be started.

    """
    job = Job(function, msgspec.Raw(msgspec.json.encode(arguments)))
    result = await run_command(
        [
            sys.executable,
            "-c",
            _BOOTSTRAP,
            msgspec.json.encode(sys.path).decode(),
        ],
        env=env,
        stdin=msgspec.json.encode(job),
        limits=_LIMITS,
    )
    reply = _read_reply(function, result)
    if reply.problem is not None:
        raise IsolatedCallError(function, reply.problem, _tail(result))
    return reply.output()


def _read_reply(function: str, result: CommandResult) -> Reply:
    if result.stdout.dropped:
        problem = f"its result is too large: {result.stdout.size} bytes"
        raise IsolatedCallError(function, problem)
    try:
        return msgspec.json.decode(result.stdout.head, type=Reply)
    except msgspec.MsgspecError:
        problem = f"its process ended with exit code {result.exit_code}"
        raise IsolatedCallError(function, problem, _tail(result)) from None


def _tail(result: CommandResult) -> str:
    return result.stderr.text.strip()[-_MAX_STDERR:]
