"""What a hook has said: its exit and its output, read into one verdict. Pure.

The order in which a run is judged: cancelled before timed out before its exit. A run
that was cancelled says nothing, whatever it printed.

Texts are as long as the hook made them: `Spill` shortens them before anybody is told.

Exit 2 refuses, with standard error as the reason, and no output undoes that. Exit 0
with an object on standard output says what the object says; plain text is text for
the model where the event takes some. Any other exit is a failure of the hook, unless
its output is an object, which then counts alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, cast

import msgspec

import agentkernel as ak

from .settings import BLOCKING, Hook, HookEvent

__all__ = ["HookRun", "Outcome", "Verdict", "judge", "merge"]

Outcome: TypeAlias = Literal["success", "blocked", "failed", "timed-out", "cancelled"]
Choice: TypeAlias = Literal["none", "allow", "ask", "deny"]

_DETAIL: Final = 500
# Where plain output is text for the model.
_TELLING: Final[frozenset[HookEvent]] = frozenset(
    {"SessionStart", "UserPromptSubmit", "SubagentStart"}
)
# From the weakest to the strongest.
_CHOICES: Final[tuple[Choice, ...]] = ("none", "allow", "ask", "deny")
# `defer` leaves a call pending until somebody decides: here that is a question.
_PERMISSIONS: Final[dict[str, Choice]] = {
    "allow": "allow",
    "approve": "allow",
    "ask": "ask",
    "defer": "ask",
    "deny": "deny",
    "block": "deny",
}


class HookRun(msgspec.Struct, frozen=True):
    """How the process of one hook ended.

    Attributes:
      exit_code: negative for a signal; None if it was not started or not reaped.
      stdout, stderr: as text; what was too much is left out, and said so.
      cut: whether any of `stdout` was left out.
      cancelled, timed_out: why it was ended, if it did not end by itself.
      duration: seconds.
      problem: why it could not be started, None if it was.

    """

    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    cut: bool = False
    cancelled: bool = False
    timed_out: bool = False
    duration: float = 0.0
    problem: str | None = None


class Verdict(msgspec.Struct, frozen=True):
    """What follows from one hook, or from all of an event.

    Attributes:
      outcome: of the run.
      choice: about what was asked. `deny` is also the block of events other than
        PreToolUse.
      reason: of the choice.
      stop: why the agent is to stop, None if it is not.
      updated_input: arguments to run instead, None to leave them.
      updated_output: what the model is shown instead of a tool's output.
      texts: for the model.
      messages: for the user.
      detail: for the log: what was wrong with the run.

    """

    outcome: Outcome = "success"
    choice: Choice = "none"
    reason: str = ""
    stop: str | None = None
    updated_input: ak.JsonObject | None = None
    updated_output: str | None = None
    texts: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    detail: str | None = None

    @property
    def decision(self) -> str:
        """What the log says was decided: `stop` before the choice."""
        return "stop" if self.stop is not None else self.choice


def judge(hook: Hook, run: HookRun) -> Verdict:
    """Read what one run says about its event."""
    if run.cancelled:
        return Verdict("cancelled")
    if run.timed_out:
        return _failed(hook, "timed-out", f"it took longer than {hook.max_seconds:g} s")
    if run.problem is not None:
        return _failed(hook, "failed", run.problem)
    verdict, problem = _read(hook, run)
    if run.exit_code == 2:
        return _refusal(hook, run, verdict)
    if verdict is None:
        return _failed(hook, "failed", problem)
    return verdict


def _read(hook: Hook, run: HookRun) -> tuple[Verdict | None, str]:
    """Read the output of a run that ended by itself; or say what is wrong with it."""
    text = run.stdout.strip()
    try:
        said = _parsed(run)
        if said is not None:
            return _Reader(hook.event, said).verdict(), ""
    except _Nonsense as error:
        return None, str(error)
    if run.exit_code != 0:
        line = run.stderr.strip().partition("\n")[0]
        return None, f"exit {run.exit_code}: {line}".rstrip(": ")
    told = (text,) if text and hook.event in _TELLING else ()
    return Verdict(texts=told), ""


def merge(verdicts: list[Verdict]) -> Verdict:
    """Fold the verdicts of an event, in the order of the settings.

    The strongest choice stands, with the reasons of all that made it; of several
    changed inputs or outputs the last counts; the first stop counts.
    """
    choices: list[Choice] = [v.choice for v in verdicts]
    choice = max(choices, key=_CHOICES.index) if choices else "none"
    reasons = [v.reason for v in verdicts if v.choice == choice and v.reason]
    stops = [v.stop for v in verdicts if v.stop is not None]
    inputs = [v.updated_input for v in verdicts if v.updated_input is not None]
    outputs = [v.updated_output for v in verdicts if v.updated_output is not None]
    return Verdict(
        choice=choice,
        reason="\n".join(reasons) if choice != "none" else "",
        stop=stops[0] if stops else None,
        updated_input=inputs[-1] if inputs else None,
        updated_output=outputs[-1] if outputs else None,
        texts=tuple(text for v in verdicts for text in v.texts),
        messages=tuple(message for v in verdicts for message in v.messages),
    )


def _refusal(hook: Hook, run: HookRun, verdict: Verdict | None) -> Verdict:
    """Read an exit 2: a refusal where there is something to refuse."""
    reason = run.stderr.strip()
    if hook.event not in BLOCKING:
        return Verdict("failed", messages=(reason,) if reason else (), detail="exit 2")
    if verdict is None:
        verdict = Verdict()
    return msgspec.structs.replace(
        verdict,
        outcome="blocked",
        choice="deny",
        reason=verdict.reason or reason or "a hook refused it without a reason",
        updated_input=None,
    )


def _failed(hook: Hook, outcome: Outcome, problem: str) -> Verdict:
    """Judge a hook that did not do its work: by its setting, open or closed."""
    detail = problem[:_DETAIL]
    message = f"The {hook.event} hook failed: {detail}"
    if hook.on_failure != "block":
        return Verdict(outcome, messages=(message,), detail=detail)
    return Verdict(
        outcome,
        "deny",
        f"A required check could not be made: {detail}",
        messages=(message,),
        detail=detail,
    )


def _parsed(run: HookRun) -> Mapping[str, object] | None:
    """Parse standard output if it is meant as JSON, or raise `_Nonsense`."""
    text = run.stdout.strip()
    if not text.startswith("{"):
        return None
    if run.cut:
        raise _Nonsense("its output is too long")
    try:
        return cast("Mapping[str, object]", json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _Nonsense(f"its output is no JSON: {error}") from None


class _Nonsense(Exception):  # control flow inside this module
    """The output is JSON and means nothing here."""


class _Reader:
    """Reads one object that a hook has printed."""

    def __init__(self, event: HookEvent, said: Mapping[str, object]) -> None:
        self._event = event
        self._said = said
        self._specific: Mapping[str, object] = {}

    def verdict(self) -> Verdict:
        """Read it all, or raise `_Nonsense`."""
        said = self._said
        if self._event == "Interrupt":
            return self._observed()
        self._specific = self._read_specific()
        stop: str | None = None
        if said.get("continue") is False:
            stop = self._text(said, "stopReason") or "a hook stopped it"
        choice, reason = self._choice()
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
                raise _Nonsense(f"{key!r} has no place in an Interrupt hook")
        message = self._text(self._said, "systemMessage")
        return Verdict(messages=(message,) if message else ())

    def _read_specific(self) -> Mapping[str, object]:
        value = self._said.get("hookSpecificOutput")
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise _Nonsense("hookSpecificOutput is no object")
        specific = cast("Mapping[str, object]", value)
        named = specific.get("hookEventName")
        if named != self._event:
            raise _Nonsense(f"hookEventName is {named!r}, the event is {self._event}")
        return specific

    def _choice(self) -> tuple[Choice, str]:
        """Read the decision, in the event's own form before the common one."""
        said, specific = self._said, self._specific
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
            raise _Nonsense(f"{word!r} is no decision of a {self._event} hook")
        if self._event not in BLOCKING:
            raise _Nonsense(f"a {self._event} hook has nothing to decide")
        default = "a hook refused it without a reason" if choice == "deny" else ""
        return choice, reason or default

    def _updated_input(self) -> ak.JsonObject | None:
        value = self._specific.get("updatedInput")
        if value is None or self._event != "PreToolUse":
            return None
        if not isinstance(value, Mapping):
            raise _Nonsense("updatedInput is no object")
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
            raise _Nonsense(f"{key} is no text")
        return value
