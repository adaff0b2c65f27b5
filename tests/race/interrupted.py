"""A program that is interrupted: real SIGINT, at a chosen line of the kernel.

`python -m tests.race.interrupted` runs a scenario once to learn which lines of the
kernel it executes, then once for each of them, with a SIGINT that arrives just before
that line. `every=7` takes every seventh line only, `waits` a store that is written to
by a task, `-v` says which line is next. It prints one JSON object: how many runs there were, what the runs raised,
and for each run that broke a rule which line it was and what was wrong.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import trio

import agentkernel as ak
from agentkernel.testing import FaultyStore, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool

Line: TypeAlias = tuple[str, int]

ROOT = Path(ak.__file__).parent
FOLDERS = (str(ROOT / "_loop"), str(ROOT / "_session"))
HANGS_AFTER = 60


class Interrupter:
    """Raises SIGINT in front of one line; without one it collects the lines."""

    def __init__(self, target: Line | None) -> None:
        self.target = target
        self.lines: dict[Line, None] = {}
        self.fired = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:  # type: ignore[explicit-any]  # the signature of a trace function  # noqa: ANN401  # a trace function
        return self.at if frame.f_code.co_filename.startswith(FOLDERS) else None

    def at(self, frame: FrameType, event: str, arg: Any) -> Any:  # type: ignore[explicit-any]  # likewise  # noqa: ANN401  # a trace function
        if event == "line":
            line = (frame.f_code.co_filename, frame.f_lineno)
            if self.target is None:
                self.lines[line] = None
            elif line == self.target and not self.fired:
                self.fired = True
                signal.raise_signal(signal.SIGINT)
        return self.at


async def scenario(store: ak.SessionStore) -> None:
    """One agent through a stop, parallel calls, a retry, and its end."""
    waiting = trio.Event()

    async def waits(_: ak.ToolInvocation) -> ak.ToolOutput:
        waiting.set()
        await trio.sleep_forever()
        raise AssertionError

    async def works(_: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        return ak.ToolOutput.of("done")

    async def retries(payload: ak.RequestError, following: object) -> ak.Retry:
        return ak.Retry(0)

    async def passes(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        await trio.lowlevel.checkpoint()
        return await following(payload)

    model = ScriptedModel(
        [call("works"), call("works")],
        ["one ", ak.ModelError("down", retryable=True)],
        ["two"],
        [call("waits")],
        default=["ok"],
    )
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("scripted", model)
        tools = [
            BodyTool("works", works, parallel_safe=True),
            BodyTool("waits", waits),
        ]
        handle = await kernel.create("s", model="scripted", tools=tools)
        agent = handle.agent
        agent.on(ak.RequestError, retries)
        agent.on(ak.PreStep, passes)
        agent.on(ak.Appended, lambda _: None)
        agent.followup("a")
        await agent.when_idle()
        agent.followup("b")
        await waiting.wait()
        agent.followup("dropped")
        agent.cancel()
        agent.followup("c")
        await agent.when_idle()
        agent.inject("parked")
        await handle.dispose()


async def problem_of(store: ak.SessionStore) -> str | None:
    """Say what is wrong with the session that a run has left behind."""
    async with store:
        try:
            check_log(await store.read("s", limit=10_000))
        except ak.SessionNotFoundError:
            return None
        except AssertionError as error:
            return f"the log: {error}"
    return None


def run(target: Line | None, *, waits: bool) -> tuple[Interrupter, str, str | None]:
    """Run the scenario once; return what it raised and what was wrong, if anything."""
    inner = ak.MemoryStore()
    store = FaultyStore(inner) if waits else inner
    interrupter = Interrupter(target)
    raised = "nothing"
    detail = ""
    faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
    sys.settrace(interrupter)
    try:
        trio.run(scenario, store)
    except BaseException as error:  # noqa: BLE001  # whatever it is
        raised = type(error).__name__
        detail = "".join(traceback.format_exception(error)[-6:])
    finally:
        sys.settrace(None)
        faulthandler.cancel_dump_traceback_later()
    problem = trio.run(problem_of, inner)
    if problem is None and raised != (
        "nothing" if target is None else "KeyboardInterrupt"
    ):
        problem = f"it raised {raised}: {detail}"
    return interrupter, raised, problem


def main() -> None:
    waits = "waits" in sys.argv[1:]
    verbose = "-v" in sys.argv[1:]
    every = next((int(a[6:]) for a in sys.argv if a.startswith("every=")), 1)
    lines = [*run(None, waits=waits)[0].lines][::every]
    outcomes: Counter[str] = Counter()
    broken: dict[str, str] = {}
    for line in lines:
        name = f"{Path(line[0]).name}:{line[1]}"
        if verbose:
            print(name, file=sys.stderr, flush=True)  # noqa: T201  # a program
        interrupter, raised, problem = run(line, waits=waits)
        if interrupter.fired:
            outcomes[raised] += 1
        if problem is not None:
            broken[name] = problem
    report = {"lines": len(lines), "outcomes": outcomes, "broken": broken}
    print(json.dumps(report))  # noqa: T201  # a program


if __name__ == "__main__":
    main()
