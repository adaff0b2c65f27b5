"""Tools that run in a process of their own: results, errors, and the end by force."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio

from agentkernel import (
    BinaryBlock,
    Blob,
    JsonObject,
    TextBlock,
    ToolFailure,
    ToolInvocation,
    ToolOutput,
    TurnSignal,
)
from agentkernel.tools import FunctionTool, IsolatedCallError
from tests.integration import test_tools_isolated_functions as functions

if TYPE_CHECKING:
    from agentkernel._loop.agent import Agent

GUARD = 60


async def call(made: FunctionTool, **arguments: object) -> ToolOutput:
    with trio.fail_after(GUARD):
        return await made.run(
            ToolInvocation(
                agent=cast("Agent", None),
                signal=TurnSignal(),
                turn=1,
                step=1,
                call_id="c1",
                name=made.spec.name,
                arguments=made.check(cast("JsonObject", arguments)),
            )
        )


def is_live(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in {b"Z", b"X"}


async def test_the_function_runs_elsewhere_and_its_result_comes_back() -> None:
    """Same arguments, same result, another process."""
    output = await call(functions.where, add=41)
    (block,) = output.content
    assert isinstance(block, TextBlock)
    assert block.text.startswith('{"sum":42,')
    assert str(os.getpid()) not in block.text


async def test_an_async_function_gets_a_trio_run_of_its_own() -> None:
    """It may use everything that Trio has."""
    assert await call(functions.pause, text="a\u2028b") == ToolOutput.of("a\u2028b")


async def test_nothing_that_is_printed_mixes_with_the_result() -> None:
    """`print`, a raw write and an inherited descriptor all go to standard error."""
    assert await call(functions.chatty) == ToolOutput.of("returned")


async def test_blocks_errors_and_meta_travel_whole() -> None:
    """An isolated tool may return whatever another tool may."""
    assert await call(functions.rich) == ToolOutput(
        (TextBlock("t\u2028\0"), BinaryBlock("image/png", Blob(b"\x89PNG\0"), "a.png")),
        ToolFailure("odd", "message"),
        {"n": (1, None)},
    )


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("raise", "^ValueError: not today$"),
        ("exit", "^SystemExit: 3$"),
        ("kill", "(?s)exit code -9.*last words"),
        ("large", "too large: 4"),
    ],
)
async def test_a_function_that_does_not_return_is_an_error_that_says_how(
    how: str, problem: str
) -> None:
    """Raised, left, killed, or too big to hand over."""
    with pytest.raises(IsolatedCallError, match=problem):
        await call(functions.fail, how=how)


async def test_an_error_whose_text_is_no_text_is_told_all_the_same() -> None:
    """The name of a file may hold any byte, and so may what is said about it."""
    with pytest.raises(IsolatedCallError, match=r"^ValueError: bad name \ufffd$"):
        await call(functions.odd_error)


async def test_a_function_does_not_see_secrets_unless_its_tool_is_given_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with every other process; its modules are found by the same variables."""
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    assert await call(functions.variable, name="SOME_API_KEY") == ToolOutput.of("none")
    for name in ("PATH", "PYTHONPATH", "HOME"):
        assert await call(functions.variable, name=name) == ToolOutput.of(
            os.environ[name]
        )
    given = FunctionTool(functions.variable.fn, isolation="process", env=os.environ)
    assert await call(given, name="SOME_API_KEY") == ToolOutput.of("hidden")


@pytest.mark.clause("C11b", "C11e")
@pytest.mark.case("TOOL-04")
async def test_a_function_that_ignores_everything_is_killed_at_its_limit(
    tmp_path: Path,
) -> None:
    """TERM, grace, KILL of the group: what a thread could never be made to do."""
    started = tmp_path / "started"
    limited = FunctionTool(functions.stubborn.fn, isolation="process", max_seconds=1.5)
    output = await call(limited, started=str(started), seconds=_tag())
    assert output.error is not None
    assert output.error.code == "TIMEOUT"
    # On a machine so slow that the function had not begun, nobody is to be found.
    assert not any(is_live(pid) for pid in _pids(started))


@pytest.mark.clause("C11b", "C11e")
async def test_a_function_that_ignores_everything_is_killed_when_it_is_cancelled(
    tmp_path: Path,
) -> None:
    """The call returns only after the process and its child are gone."""
    started = tmp_path / "started"
    os.mkfifo(started)
    pids: list[int] = []
    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            unlimited = FunctionTool(functions.stubborn.fn, isolation="process")

            async def run() -> None:
                await call(unlimited, started=str(started), seconds=_tag())

            nursery.start_soon(run)
            pids += await trio.to_thread.run_sync(_pids, started)
            assert [is_live(pid) for pid in pids] == [True, True]
            nursery.cancel_scope.cancel()
    assert [is_live(pid) for pid in pids] == [False, False]


def test_a_function_that_cannot_be_imported_is_refused_when_the_tool_is_made() -> None:
    """Not at the first call: a nested function, a method, one that needs the agent."""

    def nested() -> None: ...

    class Holder:
        def method(self) -> None: ...

    for fn in (nested, lambda: None, Holder().method):
        with pytest.raises(TypeError, match="process"):
            FunctionTool(fn, name="x", isolation="process")
    with pytest.raises(TypeError, match="another process"):
        FunctionTool(_wants_agent, isolation="process")


def _wants_agent(call: ToolInvocation) -> None: ...


def _tag() -> float:
    return 10**6 + secrets.randbelow(10**6)


def _pids(started: Path) -> list[int]:
    if not started.exists():
        return []
    return [int(word) for word in started.read_text().split()]
