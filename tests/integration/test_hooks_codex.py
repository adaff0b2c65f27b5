"""Hooks written for Codex, as real processes: what they are run by, told and obeyed in."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.hooks import CommandExecutor, Hooks, load_settings
from agentkernel.testing import ScriptedModel, call
from tests.integration.hooking import has_children, results, say, turn
from tests.race.rig import BodyTool, endings, entered, facts, returns_done

GUARD = 60


@pytest.fixture(autouse=True)
async def guard() -> AsyncIterator[None]:
    """End a test that hangs."""
    with trio.fail_after(GUARD):
        yield


def attach_codex(
    agent: ak.Agent,
    folder: Path,
    *events: tuple[str, str],
    env: dict[str, str] | None = None,
) -> None:
    """Run lines of a hooks.json of Codex."""
    value: dict[str, list[object]] = {}
    for event, line in events:
        group = {"matcher": "t", "hooks": [{"type": "command", "command": line}]}
        value.setdefault(event, []).append(group)
    (folder / "hooks.json").write_text(json.dumps({"hooks": value}))
    settings = load_settings(folder / "hooks.json", dialect="codex")
    executor = CommandExecutor(folder, env=env, grace=0.2)
    Hooks(agent.kernel, settings, cwd=folder, executor=executor)


async def test_a_line_is_run_by_the_login_shell_and_read_without_a_newline(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """The object is all there is on standard input, and it names the model."""
    shell = tmp_path / "shell"
    shell.write_text('#!/bin/sh\necho "$1" > flags\nexec /bin/sh "$@"\n')
    shell.chmod(0o700)
    env = {"PATH": os.environ["PATH"], "SHELL": str(shell)}
    attach_codex(agent, tmp_path, ("PreToolUse", "cat > seen"), env=env)
    agent.tools.add(BodyTool("tool", returns_done))
    model.add([call("tool", n=1)])
    await turn(agent)
    assert (tmp_path / "flags").read_text() == "-lc\n"
    raw = (tmp_path / "seen").read_bytes()
    assert raw.endswith(b"}")
    (reply, _) = facts(agent, ak.AssistantReplied)
    assert json.loads(raw) == {
        "session_id": agent.id,
        "transcript_path": None,
        "cwd": str(tmp_path),
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "model": "scripted",
        "turn_id": "1",
        "tool_name": "tool",
        "tool_input": {"n": 1},
        "tool_use_id": reply.message.calls[0].call_id,
    }


async def test_without_a_login_shell_a_line_is_run_by_sh(
    agent: ak.Agent, tmp_path: Path
) -> None:
    env = {"PATH": os.environ["PATH"]}
    attach_codex(agent, tmp_path, ("UserPromptSubmit", "echo hello"), env=env)
    await turn(agent)
    assert entered(agent) == ["go", "hello"]


@pytest.mark.parametrize(
    ("line", "result", "steps"),
    [
        ("true", ("success", "none"), 1),
        ("echo plain", ("failed", "none"), 1),
        ("exit 2", ("failed", "none"), 1),
        (
            "grep -q 'active\": true' || { echo more >&2; exit 2; }",
            ("blocked", "deny"),
            2,
        ),
        (say(decision="block", reason="more") + "\nexit 1", ("failed", "none"), 1),
        (
            say(**{"continue": False, "decision": "block", "reason": "more"}),
            ("blocked", "stop"),
            1,
        ),
    ],
)
async def test_the_end_of_a_turn_is_refused_by_the_rules_of_codex(
    agent: ak.Agent,
    model: ScriptedModel,
    tmp_path: Path,
    line: str,
    result: tuple[str, str],
    steps: int,
) -> None:
    """JSON or nothing; exit 2 with a reason; a stop outweighs a refusal."""
    attach_codex(agent, tmp_path, ("Stop", line))
    await turn(agent)
    assert results(agent)[0] == result
    assert len(model.requests) == steps
    assert endings(agent) == [(1, "completed")]
    assert not has_children()


async def test_several_refusals_are_told_together_in_the_order_of_the_file(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    once = "grep -q 'active\": true' && exit 0; "
    attach_codex(
        agent,
        tmp_path,
        ("Stop", once + "echo one >&2; exit 2"),
        ("Stop", once + "echo two >&2; exit 2"),
    )
    await turn(agent)
    assert entered(agent) == ["go", "one\ntwo"]
