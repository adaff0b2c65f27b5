"""Reads the object that a hook has printed into a verdict. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, cast

import agentkernel as ak

from .hook import BLOCKING, Hook, HookEvent
from .verdict import Choice, HookRun, Outcome, Verdict

__all__ = ["Answer", "Nonsense", "parsed"]

# `defer` leaves a call pending until somebody decides: here that is a question.
_PERMISSIONS: Final[dict[str, Choice]] = {
    "allow": "allow",
    "approve": "allow",
    "ask": "ask",
    "defer": "ask",
    "deny": "deny",
    "block": "deny",
}


class Nonsense(Exception):  # control flow inside this module
    """The output is JSON and means nothing here."""


class Answer:
    """Reads one object that a hook has printed."""

    def __init__(self, hook: Hook, said: Mapping[str, object]) -> None:
        self._event: HookEvent = hook.event
        # Codex takes no refusal without a reason.
        self._wants_reason = hook.dialect == "codex"
        self._said = said
        self._specific: Mapping[str, object] = {}
        # The answer to a PermissionRequest, None if there is none.
        self._permission: Mapping[str, object] | None = None

    def verdict(self) -> Verdict:
        """Read it all, or raise `Nonsense`."""
        said = self._said
        if self._event == "Interrupt":
            return self._observed()
        self._specific = self._read_specific()
        self._permission = self._read_permission()
        choice, reason = self._choice()
        stop: str | None = None
        if said.get("continue") is False:
            stop = self._text(said, "stopReason") or "a hook stopped it"
        elif choice == "deny" and self._interrupts():
            stop = reason
        message = self._text(said, "systemMessage")
        text = self._text(self._specific, "additionalContext")
        outcome: Outcome = "blocked" if choice == "deny" or stop else "success"
        return Verdict(
            outcome,
            choice,
            reason,
            stop,
            self._updated_input() if choice != "deny" else None,
            self._updated_output(),
            (text,) if text else (),
            (message,) if message else (),
        )

    def _observed(self) -> Verdict:
        """Read what an observer may say: a message, and nothing that controls."""
        for key in ("continue", "decision", "stopReason", "suppressOutput"):
            if key in self._said:
                raise Nonsense(f"{key!r} has no place in an Interrupt hook")
        message = self._text(self._said, "systemMessage")
        return Verdict(messages=(message,) if message else ())

    def _read_specific(self) -> Mapping[str, object]:
        value = self._said.get("hookSpecificOutput")
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise Nonsense("hookSpecificOutput is no object")
        specific = cast("Mapping[str, object]", value)
        named = specific.get("hookEventName")
        if named != self._event:
            raise Nonsense(f"hookEventName is {named!r}, the event is {self._event}")
        return specific

    def _interrupts(self) -> bool:
        answer = self._permission
        return answer is not None and answer.get("interrupt") is True

    def _read_permission(self) -> Mapping[str, object] | None:
        value = self._specific.get("decision")
        if value is None or self._event != "PermissionRequest":
            return None
        if not isinstance(value, Mapping):
            raise Nonsense("decision is no object")
        return cast("Mapping[str, object]", value)

    def _choice(self) -> tuple[Choice, str]:
        """Read the decision, in the event's own form before the common one."""
        said, specific = self._said, self._specific
        if self._permission is not None:
            return self._answered(self._permission)
        if self._event == "PreToolUse" and "permissionDecision" in specific:
            word = specific["permissionDecision"]
            reason = self._text(specific, "permissionDecisionReason")
        else:
            word = said.get("decision")
            reason = self._text(said, "reason")
        if word is None:
            return "none", reason
        choice = _PERMISSIONS.get(word) if isinstance(word, str) else None
        if choice is None or (choice != "deny" and self._event != "PreToolUse"):
            if word == "approve":
                return "none", reason
            raise Nonsense(f"{word!r} is no decision of a {self._event} hook")
        if self._event not in BLOCKING:
            raise Nonsense(f"a {self._event} hook has nothing to decide")
        if choice == "deny" and self._wants_reason and not reason.strip():
            raise Nonsense("it refuses without a reason")
        default = "a hook refused it without a reason" if choice == "deny" else ""
        return choice, reason or default

    def _answered(self, answer: Mapping[str, object]) -> tuple[Choice, str]:
        """Read the answer to a question."""
        word = answer.get("behavior")
        if word not in {"allow", "deny"}:
            raise Nonsense(f"{word!r} is no answer to a question")
        if word == "allow":
            return "allow", ""
        return "deny", self._text(answer, "message") or "a hook said no"

    def _updated_input(self) -> ak.JsonObject | None:
        """Read other arguments; a question is about those that the policy has seen."""
        asked = self._permission
        if asked is not None and asked.get("updatedInput") is not None:
            raise Nonsense("a yes is to the arguments that were asked about")
        value = self._specific.get("updatedInput")
        if value is None or self._event != "PreToolUse":
            return None
        if not isinstance(value, Mapping):
            raise Nonsense("updatedInput is no object")
        return cast("ak.JsonObject", value)

    def _updated_output(self) -> str | None:
        value = self._specific.get("updatedToolOutput")
        if value is None or self._event != "PostToolUse":
            return None
        return value if isinstance(value, str) else json.dumps(value)

    def _text(self, where: Mapping[str, object], key: str) -> str:
        value = where.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise Nonsense(f"{key} is no text")
        return value


def parsed(run: HookRun) -> Mapping[str, object] | None:
    """Parse standard output if it is meant as JSON, or raise `Nonsense`."""
    text = run.stdout.strip()
    if not text.startswith("{"):
        return None
    if run.cut:
        raise Nonsense("its output is too long")
    try:
        return cast("Mapping[str, object]", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise Nonsense(f"its output is no JSON: {error}") from None
