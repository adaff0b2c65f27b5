"""Ctrl-C: it leaves the kernel as itself, and the log behind it is whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, codes, endings

ROOT = Path(__file__).parents[2]


@pytest.mark.clause("C10c", "S3c", "T3c")
@pytest.mark.case("CONC-04")
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (SystemExit(3), SystemExit),
        (
            BaseExceptionGroup("g", [ValueError("x"), KeyboardInterrupt()]),
            KeyboardInterrupt,
        ),
        (
            BaseExceptionGroup("g", [BaseExceptionGroup("h", [SystemExit(3)])]),
            SystemExit,
        ),
    ],
)
async def test_what_must_leave_ends_the_turn_at_once_and_leaves_as_itself(
    error: BaseException, leaves: type[BaseException], *, parallel: bool
) -> None:
    """From a body: its call is answered, its siblings end, the model is not asked."""
    store = ak.MemoryStore()
    model = ScriptedModel([call("t"), call("u")], default=["never asked"])

    async def raises(_: ak.ToolInvocation) -> ak.ToolOutput:
        await wait_all_tasks_blocked()
        raise error

    async def sleeps(_: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.sleep_forever()
        raise AssertionError

    agents: list[ak.Agent] = []
    caught: list[BaseException] = []
    try:
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            for name in ("s", "other"):
                agent = (await kernel.create(name, model="scripted")).agent
                agents.append(agent)
            agents[0].tools.add(BodyTool("t", raises, parallel_safe=parallel))
            agents[0].tools.add(BodyTool("u", sleeps, parallel_safe=parallel))
            agents[1].models.register("scripted", ScriptedModel([Gate()]))
            agents[1].followup("waits")
            agents[0].followup("go")
            await trio.sleep_forever()
    except BaseException as raised:  # noqa: BLE001  # whatever it is
        caught.append(raised)
    assert [type(leaf) for leaf in caught] == [leaves]
    assert len(model.requests) == 1
    assert endings(agents[0]) == [(1, "error")]
    assert endings(agents[1]) == [(1, "disposed")]
    assert sorted(codes(agents[0]), key=str) == (
        ["ABORTED", "TOOL_ERROR"]
        if parallel
        else ["ABORTED_BEFORE_DISPATCH", "TOOL_ERROR"]
    )
    for name in ("s", "other"):
        check_log(await store.read(name))


@pytest.mark.clause("C10c", "C10a")
@pytest.mark.parametrize("seam", ["pre-step", "request", "turn-stopping", "observer"])
async def test_interrupt_anywhere_in_a_turn_balances_the_log_first(seam: str) -> None:
    """The turn ends `error`, and the exit that was asked for happens."""
    store = ak.MemoryStore()

    async def raises(payload: object, following: object = None) -> ak.Enter:
        await trio.lowlevel.checkpoint()
        raise SystemExit(3)

    def observes(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, ak.StepStarted):
            raise SystemExit(3)

    with pytest.raises(SystemExit):  # noqa: PT012  # leaving the block is what raises
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", ScriptedModel(default=["ok"]))
            agent = (await kernel.create("s", model="scripted")).agent
            if seam == "observer":
                agent.on(ak.Appended, observes)
            else:
                events = {
                    "pre-step": ak.PreStep,
                    "request": ak.Request,
                    "turn-stopping": ak.TurnStopping,
                }
                agent.on(events[seam], raises)  # type: ignore[call-overload]  # any of three  # pyright: ignore[reportArgumentType, reportCallIssue]
            agent.followup("go")
            await trio.sleep_forever()
    report = check_log(await store.read("s"))
    ending = report.turns[1]
    assert ending is not None
    assert (ending.kind, ending.code) == ("error", "fatal")


def _sweep(*arguments: str) -> dict[str, Any]:  # type: ignore[explicit-any]  # parsed JSON
    """Run the program that interrupts itself at the kernel's lines."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.race.interrupted", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)  # type: ignore[explicit-any]  # parsed JSON
    return report


@pytest.mark.clause("C10c", "C10d", "S3c")
def test_sigint_between_two_lines_of_the_kernel_leaves_a_whole_log() -> None:
    """A real signal in front of every eleventh line that a busy scenario executes."""
    report = _sweep("every=11")
    assert report["broken"] == {}
    assert report["outcomes"]["KeyboardInterrupt"] > 80


@pytest.mark.long
@pytest.mark.clause("C10c", "C10d", "S3c")
@pytest.mark.parametrize("store", ["immediate", "waits"])
def test_sigint_between_any_two_lines_of_the_kernel_leaves_a_whole_log(
    store: str,
) -> None:
    """In front of each line, over a store that writes at once and one that waits."""
    report = _sweep(store)
    assert report["broken"] == {}
    assert report["outcomes"]["KeyboardInterrupt"] > 800


PROGRAM = """
    import sys
    import time
    import trio
    import trio.testing
    import agentkernel as ak
    from agentkernel.testing import ScriptedModel, call
    from agentkernel.testing.log_check import check_log
    from tests.race.rig import BodyTool

    store = ak.MemoryStore()

    began = trio.Event()

    async def body(invocation):
        began.set()
        if sys.argv[1] == "spins":
            print("ready", flush=True)
            while True:
                pass
        if sys.argv[1] == "thread":
            def works():
                while not invocation.signal.cancelled:
                    time.sleep(0.001)
            await trio.to_thread.run_sync(works)
        await trio.sleep_forever()

    async def main():
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", ScriptedModel([call("t")]))
            tool = BodyTool("t", body)
            agent = (await kernel.create("s", model="scripted", tools=[tool])).agent
            agent.followup("go")
            await began.wait()
            await trio.testing.wait_all_tasks_blocked()
            print("ready", flush=True)
            await agent.when_idle()

    async def report():
        turns = check_log(await store.read("s")).turns
        print(turns[1].kind, flush=True)

    try:
        trio.run(main)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    trio.run(report)
"""


@pytest.mark.clause("C10c", "C10b", "C11b")
@pytest.mark.parametrize(
    ("how", "ending"),
    [("waits", "disposed"), ("thread", "disposed"), ("spins", "error")],
)
def test_ctrl_c_of_a_program_ends_it_as_itself_with_a_whole_log(
    how: str, ending: str
) -> None:
    """The tool waits, works in a thread, or spins; a spinning body gets the interrupt."""
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), how],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
    assert child.returncode == 0
    assert rest.splitlines() == ["interrupted", ending]
