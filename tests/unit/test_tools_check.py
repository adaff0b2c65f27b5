"""`check_tool`: good tools pass it, and each broken promise is found."""

from __future__ import annotations

import msgspec
import pytest
import trio
import trio.testing

from agentkernel import (
    JsonObject,
    TextBlock,
    ToolArgumentsError,
    ToolInvocation,
    ToolOutput,
    ToolSpec,
)
from agentkernel.testing.tool_check import check_tool
from agentkernel.tools import tool


@tool
async def waits(n: int, word: str = "w") -> str:
    """Wait a little."""
    for _ in range(n):
        await trio.lowlevel.checkpoint()
    return word * n


@tool
def counts(n: int) -> int:
    """Count in a thread."""
    return n + 1


async def test_function_tools_keep_the_port_in_a_task_and_in_a_thread() -> None:
    """The checker returns what the first call gave back."""
    assert await check_tool(waits, {"n": 3}) == ToolOutput.of("www")
    assert await check_tool(counts, {"n": 3}) == ToolOutput.of("4")


class Plain:
    """A tool without any help, that can be broken in one place."""

    def __init__(self, **parts: object) -> None:
        self.spec = ToolSpec(
            "plain",
            "",
            {"type": "object", "required": ("a",), "additionalProperties": False},
        )
        self.parallel_safe = False
        self.max_seconds: float | None = None
        for name, part in parts.items():
            setattr(self, name, part)

    def check(self, arguments: JsonObject, /) -> JsonObject:
        if set(arguments) != {"a"}:
            raise ToolArgumentsError("a, and nothing else")
        return arguments

    async def run(self, call: ToolInvocation, /) -> ToolOutput:
        await trio.lowlevel.checkpoint()
        return ToolOutput.of(f"{call.arguments['a']}")


async def _no_checkpoint(_call: ToolInvocation) -> ToolOutput:
    return ToolOutput()


async def _no_output(_call: ToolInvocation) -> str:
    await trio.lowlevel.checkpoint()
    return "text"


async def _half(_call: ToolInvocation) -> ToolOutput:
    await trio.lowlevel.checkpoint()
    return ToolOutput((TextBlock("\ud83d"),))


async def _raises(_call: ToolInvocation) -> ToolOutput:
    raise ZeroDivisionError


async def _hangs(_call: ToolInvocation) -> ToolOutput:
    await trio.sleep_forever()
    raise AssertionError


async def _swallows(_call: ToolInvocation) -> ToolOutput:
    try:
        await trio.lowlevel.checkpoint()
    except trio.Cancelled:
        raise ValueError("cancelled?") from None
    return ToolOutput()


async def _leaks(_call: ToolInvocation) -> ToolOutput:
    await trio.lowlevel.checkpoint()
    trio.lowlevel.spawn_system_task(trio.sleep_forever)
    return ToolOutput()


def _changes(arguments: dict[str, object]) -> dict[str, object]:
    arguments.pop("a", None)
    return arguments


def _grows(arguments: dict[str, object]) -> dict[str, object]:
    return {**arguments, "a": f"{arguments['a']}!"}


SCHEMA = ToolSpec("plain", "", {"type": "object"})


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"spec": msgspec.structs.replace(SCHEMA, name="no good")}, "no name"),
        ({"spec": ToolSpec("plain", "", {})}, "not that of an object"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"check": _changes}, "changed what it was given"),
        ({"check": _grows}, "changed them"),
        ({"check": dict}, "accepted"),
        ({"run": _no_checkpoint}, "checkpoint"),
        ({"run": _no_output}, "is not a ToolOutput"),
        ({"run": _half}, "surrogate"),
        ({"run": _raises}, "ZeroDivisionError"),
        ({"run": _hangs}, "hung"),
        ({"run": _swallows}, "cancelled at its task step"),
        ({"run": _leaks}, "left a task behind"),
    ],
)
async def test_a_broken_promise_is_found(
    parts: dict[str, object], problem: str, autojump_clock: trio.testing.MockClock
) -> None:
    """One fault each; what is not broken passes."""
    await check_tool(Plain(), {"a": 1})
    with pytest.raises(AssertionError, match=problem):
        await check_tool(Plain(**parts), {"a": 1})
