"""Typed Python functions as tools: `@tool`, and `FunctionTool` for existing ones.

Sits above `schema` (arguments) and `outputs` (results) and uses the kernel as any user
does. An async function runs in the task of its call. A sync one runs in a worker thread
that is joined, never abandoned: it learns of a stop or a deadline from
`trio.from_thread.check_cancelled()`, and of a stop from the signal of the invocation.
With `isolation="process"` it runs in a Python process of its own, the one place where
it can be ended by force.

The threads of one tool have a limit of their own, so a tool whose threads all block
delays only its own further calls.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Literal, TypedDict, Unpack, final, overload

import trio
import trio.lowlevel

from agentkernel import (
    JsonObject,
    TextBlock,
    ToolArgumentsError,
    ToolFailure,
    ToolInvocation,
    ToolOutput,
    ToolSpec,
)

from .isolated import call_in_process, import_name
from .outputs import to_output
from .schema import Function, Parameters, is_async

__all__ = ["THREADS_PER_TOOL", "FunctionTool", "ToolOptions", "tool"]

# How many threads one tool may hold at once in one Trio run; further calls wait.
THREADS_PER_TOOL = 40
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class ToolOptions(TypedDict, total=False):
    """How a function is offered as a tool; everything may be left out.

    Attributes:
      name: what the model calls it; the function's name by default.
      description: what the model is told; the docstring up to its first section by
        default.
      parallel_safe: whether its calls may overlap; False by default.
      max_seconds: the limit of one call; None, the default, for none.
      isolation: `process` to run each call in a Python process of its own. The
        function must then be importable by name and take no `ToolInvocation`; it
        gets its arguments, and gives its result, as JSON.
      env: the whole environment of that process; None, the default, for this one's
        without what looks secret.
      needs_approval: whether somebody has to approve each call. With a policy it is
        the policy that decides; where no listener does, `Approve` listeners are asked,
        and with none the call is denied.

    """

    name: str
    description: str
    parallel_safe: bool
    max_seconds: float | None
    isolation: Literal["none", "process"]
    env: Mapping[str, str] | None
    needs_approval: bool


@final
class FunctionTool:
    """A Python function that a model may call; an `agentkernel.Tool`.

    One object may serve any number of agents, kernels and Trio runs. Immutable.

    Attributes:
      fn: the function itself.
      spec: its name, what the model is told, and the schema of its arguments.
      parallel_safe: whether calls of it may overlap.
      max_seconds: the limit of one call.
      isolation: where it runs.
      env: the environment of its own process; None for one without what looks secret.
      needs_approval: whether somebody has to approve each call.

    """

    def __init__(self, fn: Function, /, **options: Unpack[ToolOptions]) -> None:
        """Make a tool of a function.

        Raises:
          TypeError: if its parameters cannot be described or filled in from JSON, or
            if it cannot run where `isolation` says.
          ValueError: if its name is not 1 to 64 letters, digits, `_` and `-`, or
            `max_seconds` is not positive.

        """
        self.fn = fn
        self._parameters = Parameters.of(fn)
        name = options.get("name", "") or _name(fn)
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name for a tool: 1 to 64 letters, digits, _ and -"
            )
        self.spec: ToolSpec = ToolSpec(
            name,
            options.get("description", "") or self._parameters.description,
            self._parameters.schema,
        )
        self.parallel_safe: bool = options.get("parallel_safe", False)
        self.max_seconds: float | None = options.get("max_seconds")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds of tool {name!r} must be positive")
        self.isolation = options.get("isolation", "none")
        self.env: Mapping[str, str] | None = options.get("env")
        self.needs_approval: bool = options.get("needs_approval", False)
        self._import_name: str | None = None
        if self.isolation == "process":
            if self._parameters.injected is not None:
                raise TypeError(
                    f"tool {name!r} takes a ToolInvocation, which cannot be handed "
                    "to another process"
                )
            self._import_name = import_name(fn)
        # One limit per tool and Trio run: a limiter belongs to one run only.
        self._limiter: trio.lowlevel.RunVar[trio.CapacityLimiter] = (
            trio.lowlevel.RunVar(f"threads of {name}")
        )

    def __repr__(self) -> str:
        return f"<FunctionTool {self.spec.name!r}>"

    def check(self, arguments: JsonObject, /) -> JsonObject:
        """Validate arguments and fill in defaults. Not a checkpoint.

        Raises:
          ToolArgumentsError: if they do not fit; it names the tool and the place.

        """
        try:
            return self._parameters.check(arguments)
        except ToolArgumentsError as exc:
            raise self._refusal(exc) from None

    async def run(self, call: ToolInvocation, /) -> ToolOutput:
        """Call the function once.

        Reaching `max_seconds` is an output with an error, not an exception. A
        function that returns although it was told to stop has returned: its value
        counts.

        Always a checkpoint.

        Cancellation:
          Passes through once the function has ended: as soon as an async function
          lets it, when a thread returns or raises, when the process is killed and
          reaped.

        Raises:
          ToolArgumentsError: if the call's arguments do not fit.
          Exception: whatever the function raises.

        """
        await trio.lowlevel.checkpoint()
        try:
            values = self._parameters.values(call.arguments)
        except ToolArgumentsError as exc:
            raise self._refusal(exc) from None
        if self._parameters.injected is not None:
            values[self._parameters.injected] = call
        if self.max_seconds is None:
            return to_output(await self._call(values, call), self.spec.name)
        with trio.move_on_after(self.max_seconds):
            return to_output(await self._call(values, call), self.spec.name)
        return self._timeout()

    async def _call(self, values: dict[str, object], call: ToolInvocation) -> object:
        if self._import_name is not None:
            return await call_in_process(
                self._import_name, call.arguments, env=self.env
            )
        if is_async(self.fn):
            return await self.fn(**values)
        return await trio.to_thread.run_sync(
            functools.partial(self.fn, **values), limiter=self._get_limiter()
        )

    def _get_limiter(self) -> trio.CapacityLimiter:
        try:
            return self._limiter.get()
        except LookupError:
            limiter = trio.CapacityLimiter(THREADS_PER_TOOL)
            self._limiter.set(limiter)
            return limiter

    def _refusal(self, problem: ToolArgumentsError) -> ToolArgumentsError:
        return ToolArgumentsError(f"tool {self.spec.name!r}: {problem}")

    def _timeout(self) -> ToolOutput:
        text = (
            f"tool {self.spec.name!r} was stopped: it did not finish within "
            f"{self.max_seconds:g} s"
        )
        return ToolOutput((TextBlock(text),), ToolFailure("TIMEOUT", text))


@overload
def tool(fn: Function, /) -> FunctionTool: ...


@overload
def tool(
    **options: Unpack[ToolOptions],
) -> Callable[[Function], FunctionTool]: ...


def tool(
    fn: Function | None = None, /, **options: Unpack[ToolOptions]
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool of a function, as a decorator with or without options.

    Not a checkpoint.

    Raises:
      TypeError, ValueError: as `FunctionTool` does.

    """
    if fn is not None:
        return FunctionTool(fn, **options)
    return lambda fn: FunctionTool(fn, **options)


def _name(fn: Function) -> str:
    name: object = getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__name__
