"""What a run of a hook means: its exit and its output, read into one verdict. Pure.

The order in which a run is judged: cancelled before timed out before its exit. A run
that was cancelled says nothing, whatever it printed.

For Claude Code, exit 2 refuses, with standard error as the reason, and no output undoes that. Exit 0
with an object on standard output says what the object says; plain text is text for
the model where the event takes some. Any other exit is a failure of the hook, unless
its output is an object, which then counts alone.

For Codex, exit 2 refuses if standard error has a reason, output counts after exit 0
only, and hooks about ends print JSON or nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from .answer import Answer, Nonsense, parsed
from .hook import BLOCKING, OBSERVING, Hook, HookEvent
from .verdict import HookRun, Outcome, Verdict

__all__ = ["judge", "set_aside"]

_DETAIL: Final = 500
# Where exit 2 refuses, and where output is JSON or nothing, for Codex.
_CODEX_BLOCKING: Final[frozenset[HookEvent]] = frozenset(
    {*BLOCKING, "PermissionRequest"}
)
_CODEX_JSON: Final[frozenset[HookEvent]] = frozenset(
    {"Stop", "SubagentStop", "Interrupt"}
)
# Where plain output is text for the model.
_TELLING: Final[frozenset[HookEvent]] = frozenset(
    {"SessionStart", "UserPromptSubmit", "SubagentStart"}
)


def judge(hook: Hook, run: HookRun) -> Verdict:
    """Read what one run says about its event; what a StopFailure hook says is nothing."""
    if hook.event != "StopFailure":
        return _judged(hook, run)
    verdict = _judged(hook, msgspec.structs.replace(run, stdout=""))
    return Verdict(verdict.outcome, detail=verdict.detail)


def _judged(hook: Hook, run: HookRun) -> Verdict:
    if run.cancelled:
        return Verdict("cancelled", detail=run.problem)
    if run.timed_out:
        return _failed(hook, "timed-out", f"it took longer than {hook.max_seconds:g} s")
    if run.problem is not None:
        return _failed(hook, "failed", run.problem)
    read = _read if hook.dialect == "claude" else _read_codex
    verdict, problem = read(hook, run)
    if run.exit_code == 2 and hook.dialect == "claude":
        return _refusal(hook, run, verdict)
    if verdict is None:
        return _failed(hook, "failed", problem)
    return verdict


def set_aside(hook: Hook, run: HookRun) -> Verdict:
    """Read what a run says that nothing waited for: words, and no decision."""
    verdict = judge(hook, run)
    ended_it = run.cancelled or run.timed_out or run.problem is not None
    if ended_it or hook.event in OBSERVING:
        return verdict
    plain = run.stdout.strip()
    if run.exit_code == 2:
        words = run.stderr.strip() or plain
        if hook.rewakes:
            return Verdict(wake=words or f"A {hook.event} hook asks you to look again.")
        told = f"The {hook.event} hook failed: exit 2: {words}"[:_DETAIL]
        return Verdict("failed", messages=(told.rstrip(": "),), detail="exit 2")
    if verdict.outcome == "failed":
        return verdict
    texts = verdict.texts
    if plain and not texts and not plain.startswith("{"):
        texts = (plain,)
    return Verdict(texts=texts, messages=verdict.messages)


def _read(hook: Hook, run: HookRun) -> tuple[Verdict | None, str]:
    """Read the output of a run that ended by itself; or say what is wrong with it."""
    text = run.stdout.strip()
    try:
        said = parsed(run)
        if said is not None:
            return Answer(hook, said).verdict(), ""
    except Nonsense as error:
        return None, str(error)
    if run.exit_code != 0:
        return None, _exit(run)
    told = (text,) if text and hook.event in _TELLING else ()
    return Verdict(texts=told), ""


def _read_codex(hook: Hook, run: HookRun) -> tuple[Verdict | None, str]:
    """Read a run by the rules of Codex; or say what is wrong with it.

    Only exit 0 has an output that counts, and only exit 2 with words refuses.
    """
    text, words = run.stdout.strip(), run.stderr.strip()
    if run.exit_code == 2 and words and hook.event in _CODEX_BLOCKING:
        return Verdict("blocked", "deny", words), ""
    if run.exit_code != 0:
        return None, _exit(run)
    try:
        said = parsed(run)
        if said is not None:
            return Answer(hook, said).verdict(), ""
    except Nonsense as error:
        return None, str(error)
    if text and (hook.event in _CODEX_JSON or text.startswith("[")):
        return None, "its output is no JSON object"
    told = (text,) if text and hook.event in _TELLING else ()
    return Verdict(texts=told), ""


def _exit(run: HookRun) -> str:
    line = run.stderr.strip().partition("\n")[0]
    return f"exit {run.exit_code}: {line}".rstrip(": ")


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
