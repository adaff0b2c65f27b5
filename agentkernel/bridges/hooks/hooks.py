"""Shell hooks: commands that an agent's owner has run at points of a turn.

Sits above the kernel and turns its events into those of the settings:

    agent/pre-step       SessionStart or SubagentStart (once), UserPromptSubmit,
                         PostToolBatch where calls went before
    tools/pre-execute    PreToolUse
    tools/approve        PermissionRequest
    tools/post-execute   PostToolUse, PostToolUseFailure
    agent/turn-stopping  Stop, or SubagentStop for an agent with a parent
    turn/end, aborted    Interrupt, as a detached hook: nothing waits for it
    turn/end, error      StopFailure, likewise
    the agent's end      SessionEnd

Invariants. A hook runs under the signal of its turn: a stop kills and joins it and
takes no decision from it. A detached one runs under its agent's end instead. A turn that was stopped or that failed runs no Stop hooks.
What a hook says to the user is an extension of the session (`HOOK_MESSAGE`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import final

import agentkernel as ak

from .batches import BatchHooks
from .calls import CallHooks
from .ends import EndHooks
from .executor import CommandExecutor, HookExecutor
from .permissions import PermissionHooks
from .prompts import PromptHooks
from .runner import Runner
from .settings import HookSettings
from .spill import Spill

__all__ = ["Hooks"]


@final
class Hooks:
    """Runs the hooks of some settings for agents.

    For a kernel it serves every agent; for an agent, that agent and its children,
    and theirs. Made before `Approvals` (and before other listeners of tool calls), it
    decides first: a hook that allows a call then saves a question that no rule wants.
    All methods belong to the kernel's Trio thread.
    """

    def __init__(
        self,
        scope: ak.Kernel | ak.Agent,
        settings: HookSettings,
        *,
        cwd: str | Path = ".",
        executor: HookExecutor | None = None,
        names: Mapping[str, str] | None = None,
        spill_folder: str | Path | None = None,
    ) -> None:
        """Listen from now on.

        Args:
          scope: whose agents.
          settings: what is run.
          cwd: the folder in which hooks run, and that they are told; made absolute
            here and now.
          executor: how hooks are run; by default as commands in `cwd`.
          names: what tools are called in hooks, for settings that were written for
            other names: `{"run_command": "Bash"}`.
          spill_folder: where texts of hooks of more than 10,000 characters are kept
            whole, each in a file that is yours to remove; None cuts them.

        """
        self._runner = Runner(
            scope,
            settings,
            executor or CommandExecutor(cwd),
            Spill(spill_folder),
            cwd=str(Path(cwd).absolute()),
            names=dict(names or {}),
        )
        kernel = scope.kernel if isinstance(scope, ak.Agent) else scope
        self._unregister = self._listen(kernel)

    def close(self) -> None:
        """Run no further hooks, except those of the ends of agents that live.

        Not a checkpoint. Done by itself when the agent that it was made for is
        disposed of.
        """
        for unregister in self._unregister:
            unregister()

    def _listen(self, kernel: ak.Kernel) -> list[Callable[[], None]]:
        """Register for what some hook is about; the rest costs nothing."""
        events = {hook.event for hook in self._runner.settings.hooks}
        runner = self._runner
        prompts, batches = PromptHooks(runner), BatchHooks(runner)
        calls, permissions = CallHooks(runner), PermissionHooks(runner)
        ends = EndHooks(runner)
        unregister = [kernel.on(ak.AgentDisposed, self._disposed)]
        if "PostToolBatch" in events:
            unregister.append(kernel.on(ak.PreStep, batches.pre_step))
        if events & {"SessionStart", "SubagentStart", "UserPromptSubmit"}:
            unregister.append(kernel.on(ak.PreStep, prompts.pre_step))
        if "PreToolUse" in events:
            unregister.append(kernel.on(ak.PreExecute, calls.pre_execute))
        if "PermissionRequest" in events:
            unregister.append(kernel.on(ak.Approve, permissions.approve))
            unregister.append(kernel.on(ak.Execute, permissions.execute))
        if events & {"PostToolUse", "PostToolUseFailure"}:
            unregister.append(kernel.on(ak.PostExecute, calls.post_execute))
        if events & {"Stop", "SubagentStop"}:
            unregister.append(kernel.on(ak.TurnStopping, ends.turn_stopping))
        if events & {"Interrupt", "StopFailure"}:
            unregister.append(kernel.on(ak.Appended, ends.appended))
        if "SessionEnd" in events:
            unregister.append(
                kernel.on(
                    ak.AgentCreated, lambda payload: ends.await_end(payload.agent)
                )
            )
            for agent in kernel.agents:
                ends.await_end(agent)
        return unregister

    def _disposed(self, payload: ak.AgentDisposed) -> None:
        if payload.agent is self._runner.scope:
            self.close()
