"""What race tests of hooks share: hooks that are no processes, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

import trio

import agentkernel as ak
from agentkernel.bridges.hooks import Hook, HookRun, Hooks, HookSettings

Script: TypeAlias = Callable[[ak.JsonObject], Awaitable[HookRun]]


class ScriptedExecutor:
    """Runs a function of the test's for each command; keeps what hooks were told."""

    def __init__(self, scripts: Mapping[str, HookRun | Script]) -> None:
        self.scripts = dict(scripts)
        self.told: list[tuple[str, ak.JsonObject]] = []
        self.raw: list[bytes] = []
        self.running = 0

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        said: ak.JsonObject = json.loads(stdin)
        self.told.append((hook.command, said))
        self.raw.append(stdin)
        self.running += 1
        try:
            await trio.lowlevel.checkpoint()
            script = self.scripts.get(hook.command, HookRun(0))
            return script if isinstance(script, HookRun) else await script(said)
        finally:
            self.running -= 1

    def said(self, command: str) -> list[ak.JsonObject]:
        return [told for name, told in self.told if name == command]


def hooked(
    scope: ak.Kernel | ak.Agent,
    executor: ScriptedExecutor,
    *events: tuple[str, str],
    **more: object,
) -> Hooks:
    """Run commands of an executor as hooks of events, each with the settings in `more`."""
    value: dict[str, list[object]] = {}
    for event, command in events:
        group = {"hooks": [{"type": "command", "command": command, **more}]}
        value.setdefault(event, []).append(group)
    settings = HookSettings.from_json({"hooks": value})
    return Hooks(scope, settings, executor=executor)
