"""The conformance checker of the `Tool` port.

`check_tool` puts a tool through what the kernel does to it: its description, the check
of arguments, a call, and calls cancelled at each of their task steps. It is told
nothing of how the tool works; it looks at what comes out and at what is left.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast, final

import trio
import trio.testing

from agentkernel import (
    BinaryBlock,
    JsonObject,
    TextBlock,
    Tool,
    ToolArgumentsError,
    ToolInvocation,
    ToolOutput,
    TurnSignal,
    clean_text,
    freeze,
)

if TYPE_CHECKING:
    from agentkernel import Agent

__all__ = ["check_tool"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_UNKNOWN = "no_tool_has_an_argument_of_this_name"
_MOST_STEPS = 2000
# How many scheduling rounds a task that has been cancelled may take to end.
_TASK_ROUNDS = 1000


async def check_tool(
    tool: Tool,
    arguments: JsonObject,
    *,
    agent: Agent | None = None,
    hang_after: float = 10.0,
) -> ToolOutput:
    """Prove that a tool keeps what the `Tool` port promises.

    The same call is made many times for real, most of them cancelled: name arguments
    with which that does no harm and takes no long time.

    Always a checkpoint.

    Cancellation:
      Passes through; the call that was being made has ended.

    Args:
      tool: the tool.
      arguments: of a call that succeeds.
      agent: what the calls say they are made for; tools that look at it need one.
      hang_after: seconds on Trio's clock after which one call has hung.

    Returns:
      What the first call gave back.

    Raises:
      AssertionError: if the tool breaks a promise; the message says which.

    """
    _check_description(tool)
    checked = _check_arguments(tool, arguments)
    calls = _Calls(tool, checked, agent, hang_after)
    output = await calls.make("a call")
    if output is None:
        raise AssertionError("a call came back without a result")
    _check_output(output)
    await calls.settle("a call")
    await calls.cancelled_at_every_step()
    return output


def _check_description(tool: Tool) -> None:
    spec = tool.spec
    name = spec.name
    _require(
        _NAME.fullmatch(name) is not None,
        f"{name!r} is no name that every provider takes",
    )
    _require(tool.spec == spec, "the description changes from one look to the next")
    _freeze(spec.parameters, "the schema of the arguments")
    _require(
        spec.parameters.get("type") == "object", "the schema is not that of an object"
    )
    limit = tool.max_seconds
    _require(limit is None or limit > 0, f"max_seconds is {limit!r}")


def _check_arguments(tool: Tool, arguments: JsonObject) -> JsonObject:
    before = _freeze(arguments, "the arguments to check")
    checked = tool.check(arguments)
    _require(before == freeze(arguments), "check() changed what it was given")
    _freeze(checked, "the checked arguments")
    _require(
        freeze(tool.check(checked)) == freeze(checked),
        "checking checked arguments changed them",
    )
    if tool.spec.parameters.get("additionalProperties") is False:
        _require_refusal(tool, {**arguments, _UNKNOWN: 1}, "an unknown argument")
    required = cast("tuple[str, ...]", tool.spec.parameters.get("required", ()))
    for name in required:
        fewer = {key: value for key, value in arguments.items() if key != name}
        _require_refusal(tool, fewer, f"a call without {name!r}")
    return checked


def _require_refusal(tool: Tool, arguments: JsonObject, what: str) -> None:
    try:
        tool.check(arguments)
    except ToolArgumentsError as exc:
        _require(bool(str(exc)), f"{what} was refused without a word")
    except Exception as exc:
        raise AssertionError(f"{what} made check() raise {exc!r}") from exc
    else:
        raise AssertionError(f"{what} was accepted, against the tool's own schema")


def _check_output(output: object) -> None:
    _require(isinstance(output, ToolOutput), f"{output!r} is not a ToolOutput")
    assert isinstance(output, ToolOutput)
    blocks = cast("Sequence[object]", output.content)
    for block in blocks:
        _require(isinstance(block, TextBlock | BinaryBlock), f"{block!r} is no block")
        if isinstance(block, TextBlock):
            clean = clean_text(block.text) == block.text
            _require(clean, "a text holds half a surrogate pair")
    _freeze(output.meta, "the meta of the output")


@final
class _Calls:
    """Calls of one tool. Used by the task that runs the check."""

    def __init__(
        self,
        tool: Tool,
        arguments: JsonObject,
        agent: Agent | None,
        hang_after: float,
    ) -> None:
        self._tool = tool
        self._arguments = arguments
        self._agent = agent
        self._hang_after = hang_after
        self._made = 0
        # How many tasks are alive when no call is under way; known after the first.
        self._living: int | None = None

    async def make(self, what: str) -> ToolOutput | None:
        """Make one call; it must neither hang nor raise."""
        await trio.lowlevel.checkpoint()
        self._made += 1
        invocation = ToolInvocation(
            agent=cast("Agent", self._agent),
            signal=TurnSignal(),
            turn=1,
            step=1,
            call_id=f"check-{self._made}",
            name=self._tool.spec.name,
            arguments=self._arguments,
        )
        nurseries = len(trio.lowlevel.current_task().child_nurseries)
        output: ToolOutput | None = None
        with trio.move_on_after(self._hang_after) as guard:
            try:
                with trio.testing.assert_checkpoints():
                    output = await self._tool.run(invocation)
            except AssertionError:
                raise
            except Exception as exc:
                raise AssertionError(f"{what} raised {exc!r}") from exc
        _require(not guard.cancelled_caught, f"{what} hung for {self._hang_after:g} s")
        _require(
            len(trio.lowlevel.current_task().child_nurseries) == nurseries,
            f"{what} left a nursery open",
        )
        return output

    async def cancelled_at_every_step(self) -> None:
        """Cancel a call at its first, second, … task step."""
        for step in range(1, _MOST_STEPS):
            what = f"a call cancelled at its task step {step}"
            scope = trio.CancelScope()
            cancel = _CancelAtStep(trio.lowlevel.current_task(), scope, step)
            output: ToolOutput | None = None
            with scope:
                trio.lowlevel.add_instrument(cancel)
                try:
                    output = await self.make(what)
                finally:
                    trio.lowlevel.remove_instrument(cancel)
            # It may have been past its point of no return: then its value counts.
            if not scope.cancelled_caught:
                _require(output is not None, f"{what} came back without a result")
            if output is not None:
                _check_output(output)
            await self.settle(what)
            if not cancel.acted:
                return
        raise AssertionError(f"a call took more than {_MOST_STEPS} task steps")

    async def settle(self, what: str) -> None:
        """Make sure that no more tasks are alive than after the first call."""
        await trio.lowlevel.checkpoint()
        living = 0
        for _ in range(_TASK_ROUNDS):
            await trio.lowlevel.checkpoint()
            living = trio.lowlevel.current_statistics().tasks_living
            if self._living is not None and living <= self._living:
                return
        if self._living is not None:
            raise AssertionError(f"{what} left a task behind")
        self._living = living


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope before the n-th step that its task takes from now."""

    def __init__(
        self, task: trio.lowlevel.Task, scope: trio.CancelScope, step: int
    ) -> None:
        self._task = task
        self._scope = scope
        self._left = step
        self.acted = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count, and cancel when it is time."""
        if task is self._task and not self.acted:
            self._left -= 1
            if not self._left:
                self.acted = True
                self._scope.cancel()


def _freeze(value: object, what: str) -> object:
    try:
        return freeze(value)
    except TypeError as exc:
        raise AssertionError(f"{what} is not JSON: {exc}") from exc


def _require(condition: bool, otherwise: str) -> None:  # noqa: FBT001  # as assert does
    if not condition:
        raise AssertionError(otherwise)
