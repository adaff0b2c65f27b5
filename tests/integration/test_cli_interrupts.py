"""SIGINT at any time: the log loads, nothing is left, the session goes on.

The time is drawn with a seed; a failure names it. Half of the runs get a second
SIGINT a tenth of a second after the first. The sweep counts what it met, and fails
if it met no tool or no answer.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.cli_terminal import Command, Terminal

# How long a turn of the script lasts, about, in seconds.
LENGTH = 1.5
SCRIPT = (
    [
        "Let me ",
        "look ",
        "at that. ",
        {"call": "read_file", "arguments": {"path": "f"}},
    ],
    ["Now a command. ", {"call": "run_shell", "arguments": {"command": "sleep 0.4"}}],
    ["So ", "this ", "is ", "what ", "there ", "is ", "to ", "say."],
)


async def interrupt_once(folder: Path, seed: int) -> str:
    """Play one run and check what it leaves; give how it ended."""
    chance = random.Random(seed)  # noqa: S311  # a seed, not a secret
    command = Command(folder)
    (folder / "f").write_text("content\n")
    model = command.script(*SCRIPT, delay=0.05)
    twice = seed % 2 == 0
    async with command.terminal(
        "chat", "--model", model, "--session", "s", "--allow", "shell"
    ) as term:
        await term.wait_for("/help]")
        await term.wait_for("> ")
        term.say("go")
        await trio.sleep(chance.uniform(0, LENGTH))
        term.process.send_signal(signal.SIGINT)
        if twice:
            await trio.sleep(0.1)
            term.process.send_signal(signal.SIGINT)
            assert await term.finish() == 0
        else:
            await stop_and_leave(term)
    assert command.left_over() == []
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        kernel.models.register("m", ScriptedModel(["again"]))
        handle = await kernel.resume("s", model="m")
        async with handle as agent:
            async with agent.ask("go on") as reply:
                pass
            assert reply.outcome.text == "again"
        events = [*await kernel.store.read("s", limit=10_000)]
    check_log(events)
    return where(events)


def where(events: list[ak.SessionEvent]) -> str:
    """Find what the first turn was doing when it was stopped."""
    for event in events:
        match event.data:
            case ak.ToolReturned(error=ak.ToolFailure()):
                return "in a tool"
            case ak.AssistantReplied(interrupted=True):
                return "in an answer"
            case ak.TurnEnded(reason=ending):
                return f"{ending.kind} elsewhere"
            case _:
                continue
    return "before the turn"


async def stop_and_leave(term: Terminal) -> None:
    """One SIGINT stops a turn and does not end the program; an idle one it ends."""
    with suppress(AssertionError):  # it has left: the turn had ended before the signal
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.process.send_signal(signal.SIGINT)
    assert await term.finish() == 0


async def sweep(seeds: range) -> None:
    met: Counter[str] = Counter()
    limit = trio.CapacityLimiter(3)

    async def one(seed: int) -> None:
        async with limit:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    met[await interrupt_once(Path(folder), seed)] += 1
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise

    async with trio.open_nursery() as nursery:
        for seed in seeds:
            nursery.start_soon(one, seed)
    assert {"in a tool", "in an answer"} <= met.keys(), met


@pytest.mark.case("CONC-06")
async def test_interrupt_at_any_time_leaves_a_sound_session() -> None:
    await sweep(range(20))


@pytest.mark.long
@pytest.mark.case("CONC-06")
async def test_interrupt_at_a_hundred_times_leaves_a_sound_session() -> None:
    await sweep(range(100, 200))
