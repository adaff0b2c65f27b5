"""Hooks as real processes, stopped at one named point of their lives each.

Before the spawn, while standard input is written, while it runs, between its exit and
the reading of what it said, while a time limit is ending it. Waiting is done on named
pipes, never on time; `fail_after` is a guard.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.hooks import (
    CommandExecutor,
    Dialect,
    Hook,
    HookRun,
    Hooks,
    HookSettings,
    Matcher,
)
from agentkernel.testing import ScriptedModel, check_log
from tests.integration.hooking import (
    attach,
    has_children,
    living,
    messages,
    results,
    tag,
    turn,
    wait_started,
)
from tests.race.rig import endings, entered, facts

GUARD = 60


@pytest.fixture(autouse=True)
async def guard() -> AsyncIterator[None]:
    """End a test that hangs."""
    with trio.fail_after(GUARD):
        yield


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A named pipe: a hook writes to it once it is under way."""
    path = tmp_path / "started"
    os.mkfifo(path)
    return path


SPAWNED: list[object] = []


def _note_spawn(event: str, args: tuple[object, ...]) -> None:
    """Keep what this process starts; an audit hook stays for good, so there is one."""
    if event == "subprocess.Popen":
        SPAWNED.append(args[1])


sys.addaudithook(_note_spawn)


@pytest.fixture
def spawned() -> list[object]:
    """What this process starts from here on."""
    SPAWNED.clear()
    return SPAWNED


class Acting:
    """Runs hooks as commands, and does something right before or right after one."""

    def __init__(self, folder: Path, *, grace: float = 0.2) -> None:
        self.inner = CommandExecutor(folder, grace=grace)
        self.before: list[ak.Agent] = []
        self.after: list[ak.Agent] = []

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        for agent in self.before:
            agent.cancel()
        run = await self.inner.run(hook, stdin, signal=signal)
        for agent in self.after:
            agent.cancel()
        return run


def attach_acting(agent: ak.Agent, acting: Acting, line: str, **more: object) -> None:
    group = {"hooks": [{"type": "command", "command": line, **more}]}
    settings = HookSettings.from_json({"hooks": {"UserPromptSubmit": [group]}})
    Hooks(agent, settings, executor=acting)


@pytest.mark.clause("L3", "C11a")
async def test_a_stop_before_the_spawn_starts_no_process(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, spawned: list[object]
) -> None:
    acting = Acting(tmp_path)
    acting.before.append(agent)
    attach_acting(agent, acting, "exit 2")
    await turn(agent)
    assert not spawned
    assert results(agent) == [("cancelled", "none")]
    assert endings(agent) == [(1, "aborted")]
    assert not has_children()
    acting.before.clear()
    await turn(agent, "again")
    assert len(spawned) == 1
    assert not model.requests
    check_log(agent.session.events)


@pytest.mark.clause("L3")
async def test_a_signal_that_has_fired_starts_no_process_under_any_scope(
    tmp_path: Path, agent: ak.Agent, spawned: list[object]
) -> None:
    """The signal decides, also where no scope is cancelled."""
    hook = Hook("Stop", "true", Matcher(None))
    signals: list[ak.TurnSignal] = []

    async def keep(payload: ak.TurnStopping) -> None:
        signals.append(payload.signal)
        payload.agent.cancel()

    agent.on(ak.TurnStopping, keep)
    await turn(agent)
    run = await CommandExecutor(tmp_path).run(hook, b"", signal=signals[0])
    assert run.cancelled
    assert not spawned


@pytest.mark.clause("L3")
@pytest.mark.case("HOOK-01")
async def test_a_stop_while_a_hook_is_still_being_told_ends_it(
    agent: ak.Agent, tmp_path: Path, started: Path
) -> None:
    """A megabyte does not fit into a pipe, and nobody reads it."""
    mark = tag()
    attach(agent, tmp_path, ("UserPromptSubmit", f"echo > {started}; sleep {mark}"))
    agent.followup("x" * 1_000_000)
    await wait_started(started)
    agent.cancel()
    await agent.when_idle()
    assert not living(mark)
    assert not has_children()
    assert results(agent) == [("cancelled", "none")]


@pytest.mark.clause("L3", "C11a")
@pytest.mark.parametrize("line", ["echo no >&2; exit 2", "echo hello"])
async def test_a_stop_behind_the_exit_leaves_what_a_hook_said_unread(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, line: str
) -> None:
    """It has ended by itself, and yet its run is one that was cancelled."""
    acting = Acting(tmp_path)
    acting.after.append(agent)
    attach_acting(agent, acting, line, once=True, onFailure="block")
    await turn(agent)
    assert results(agent) == [("cancelled", "none")]
    (fact,) = facts(agent, ak.HookReturned)
    assert fact.exit_code == (2 if "exit" in line else 0)
    assert fact.detail is None
    assert endings(agent) == [(1, "aborted")]
    assert not messages(agent)
    assert not entered(agent)
    acting.after.clear()
    await turn(agent, "again")
    assert results(agent)[1][0] == ("blocked" if "exit" in line else "success")
    assert len(model.requests) == (0 if "exit" in line else 1)


@pytest.mark.clause("L3")
@pytest.mark.parametrize("on_failure", ["continue", "block"])
async def test_a_stop_outweighs_the_time_limit_that_is_ending_the_hook(
    agent: ak.Agent, tmp_path: Path, started: Path, on_failure: str
) -> None:
    """It answers SIGTERM with a word, and stays until the stop has come."""
    mark = tag()
    release = tmp_path / "release"
    os.mkfifo(release)
    acting = Acting(tmp_path, grace=GUARD)
    line = (
        f"trap 'echo > {started}; read x < {release}; exit 2' TERM; "
        f"while :; do sleep {mark} & wait; done"
    )
    attach_acting(agent, acting, line, timeout=0.05, onFailure=on_failure)
    agent.followup("go")
    await wait_started(started)
    agent.cancel()
    await trio.to_thread.run_sync(release.write_text, "go\n")
    await agent.when_idle()
    assert not living(mark)
    assert results(agent) == [("cancelled", "none")]
    assert endings(agent) == [(1, "aborted")]
    assert not messages(agent)


@pytest.mark.parametrize("dialect", ["claude", "codex"])
async def test_half_a_character_at_the_limit_of_output_is_left_out_whole(
    agent: ak.Agent, tmp_path: Path, dialect: Dialect
) -> None:
    """The limits of what is kept fall into the middle of characters, at both ends."""
    line = "printf x; yes é | head -n 200000 | tr -d '\\n'; printf y"
    group = {"hooks": [{"type": "command", "command": line}]}
    settings = HookSettings.from_json(
        {"hooks": {"UserPromptSubmit": [group]}}, dialect=dialect
    )
    folder = tmp_path / "long"
    Hooks(agent, settings, cwd=tmp_path, spill_folder=folder)
    await turn(agent)
    (path,) = folder.iterdir()
    head, gap, tail = path.read_text().split("\n")
    assert head.strip("é") == "x"
    assert tail.strip("é") == "y"
    assert "bytes left out" in gap
    assert "\ufffd" not in entered(agent)[1]
