"""What tests of hooks share: shell lines as hooks, and a look at what is left of them."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.bridges.hooks import (
    HOOK_MESSAGE,
    CommandExecutor,
    Hooks,
    HookSettings,
)
from tests.race.rig import facts


async def wait_started(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


def living(tag: str) -> list[str]:
    """The command lines of live processes that name the tag."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if tag.encode() in words and state not in {b"Z", b"X"}:
                found.append(words.decode())
    return found


def has_children() -> bool:
    """Whether this process has a child, dead or alive, that was not waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def tag() -> str:
    return f"{secrets.randbelow(10**6) + 10**6}.{secrets.randbelow(10**6)}"


def attach(
    agent: ak.Agent, folder: Path, *events: tuple[str, str], **more: object
) -> Hooks:
    """Run shell lines as hooks of events, each with the settings in `more`."""
    value: dict[str, list[object]] = {}
    for event, line in events:
        group = {"hooks": [{"type": "command", "command": line, **more}]}
        value.setdefault(event, []).append(group)
    settings = HookSettings.from_json({"hooks": value})
    executor = CommandExecutor(folder, grace=0.2)
    return Hooks(agent.kernel, settings, cwd=folder, executor=executor)


def say(**said: object) -> str:
    """A shell line that prints an object."""
    return f"cat <<'END'\n{json.dumps(said)}\nEND"


def specific(event: str, **fields: object) -> str:
    return say(hookSpecificOutput={"hookEventName": event, **fields})


def results(agent: ak.Agent) -> list[tuple[str, str]]:
    """How hooks ended, and what was decided, in the order of the log."""
    return [(f.outcome, f.decision) for f in facts(agent, ak.HookReturned)]


def messages(agent: ak.Agent) -> list[object]:
    """What hooks said to the user."""
    return [
        fact.body["text"]
        for fact in facts(agent, ak.Extension)
        if fact.name == HOOK_MESSAGE and isinstance(fact.body, dict)
    ]


async def turn(agent: ak.Agent, text: str = "go") -> None:
    agent.followup(text)
    await agent.when_idle()
