"""What a hook is, and the events at which one runs."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from .matcher import Dialect, Matcher

__all__ = [
    "BLOCKING",
    "CODEX_EVENTS",
    "CODEX_FOREIGN",
    "EVENTS",
    "FOREIGN",
    "OBSERVING",
    "SECONDS",
    "Hook",
    "HookEvent",
]

HookEvent: TypeAlias = Literal[
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "PostToolBatch",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "Interrupt",
    "SessionEnd",
]
EVENTS: Final[tuple[HookEvent, ...]] = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "PostToolUseFailure",
    "PostToolBatch",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "Interrupt",
    "SessionEnd",
)
# The events at which a hook can refuse something.
BLOCKING: Final[frozenset[HookEvent]] = frozenset(
    {
        *("UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch"),
        *("Stop", "SubagentStop"),
    }
)
# Where a hook looks on: nothing waits for it, and it has no words for the model.
OBSERVING: Final[frozenset[HookEvent]] = frozenset({"Interrupt", "StopFailure"})
# Events of Claude Code that are known and never happen here.
FOREIGN: Final = frozenset(
    {
        "ConfigChange",
        "CwdChanged",
        "DirectoryAdded",
        "Elicitation",
        "ElicitationResult",
        "FileChanged",
        "InstructionsLoaded",
        "MessageDisplay",
        "Notification",
        "PermissionDenied",
        "PostCompact",
        "PreCompact",
        "Setup",
        "TaskCompleted",
        "TaskCreated",
        "TeammateIdle",
        "UserPromptExpansion",
        "WorktreeCreate",
        "WorktreeRemove",
    }
)
# The events of Codex, and those of it that never happen here.
CODEX_EVENTS: Final[tuple[HookEvent, ...]] = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
    "StopFailure",
    "SubagentStart",
    "SubagentStop",
    "Interrupt",
    "SessionEnd",
)
CODEX_FOREIGN: Final = frozenset({"PostCompact", "PreCompact"})
# How long a hook may take, unless it says otherwise.
SECONDS: Final = 600.0


class Hook(msgspec.Struct, frozen=True, omit_defaults=True):
    """One command that an event runs.

    Attributes:
      event: when it runs.
      command: a line for the shell, or the program if there are `args`.
      matcher: which subjects of the event it is for.
      args: None for a line for the shell; else the program's arguments, and no
        shell is used.
      shell: `bash`, or None for `/bin/sh`.
      max_seconds: how long it may take.
      condition: a permission rule that a call must fit, None for every call.
      on_failure: `continue` if nothing follows from a hook that crashes, is too
        slow or talks nonsense; `block` if it then counts as a refusal.
      once: whether it runs one time only for each opening of a session.
      detached: whether nothing waits for it, and it decides nothing.
      rewakes: whether, detached, its exit 2 is a message that wakes the agent.
      dialect: whose protocol it speaks.

    """

    event: HookEvent
    command: str
    matcher: Matcher
    args: tuple[str, ...] | None = None
    shell: Literal["bash"] | None = None
    max_seconds: float = SECONDS
    condition: str | None = None
    on_failure: Literal["continue", "block"] = "continue"
    once: bool = False
    detached: bool = False
    rewakes: bool = False
    dialect: Dialect = "claude"

    @property
    def argv(self) -> list[str] | str:
        """What is run; a string is a line for `/bin/sh`, or for Codex's login shell."""
        if self.args is not None:
            return [self.command, *self.args]
        if self.shell is not None:
            return [self.shell, "-c", self.command]
        return self.command

    @property
    def identity(self) -> tuple[object, ...]:
        """What two hooks have in common that are run once."""
        how = (self.on_failure, self.once, self.detached, self.rewakes)
        return (self.dialect, self.command, self.args, self.shell, *how)
