"""What a hook's exit and output mean: the tables of the protocol."""

from __future__ import annotations

import json
from typing import Literal

import pytest

from agentkernel.bridges.hooks import Hook, HookEvent, HookRun, Matcher, Verdict
from agentkernel.bridges.hooks.judge import judge, set_aside
from agentkernel.bridges.hooks.verdict import merge


def hook(
    event: HookEvent, on_failure: Literal["continue", "block"] = "continue"
) -> Hook:
    return Hook(event, "x", Matcher(None), on_failure=on_failure)


def specific(event: str, **fields: object) -> str:
    return json.dumps({"hookSpecificOutput": {"hookEventName": event, **fields}})


def answer(behavior: object = ..., **more: object) -> str:
    said = more if behavior is ... else {"behavior": behavior, **more}
    return specific("PermissionRequest", decision=said)


def read(
    event: HookEvent, code: int, stdout: str = "", stderr: str = ""
) -> tuple[str, str, str, str | None]:
    verdict = judge(hook(event), HookRun(code, stdout, stderr))
    return verdict.outcome, verdict.choice, verdict.reason, verdict.stop


BLOCK = json.dumps({"decision": "block", "reason": "json says no"})
DENY = specific(
    "PreToolUse", permissionDecision="deny", permissionDecisionReason="json says no"
)
NO_REASON = "a hook refused it without a reason"


@pytest.mark.parametrize(
    ("event", "code", "stdout", "stderr", "expected"),
    [
        ("PreToolUse", 0, "", "", ("success", "none", "", None)),
        ("PreToolUse", 0, "plain", "", ("success", "none", "", None)),
        ("PreToolUse", 0, DENY, "", ("blocked", "deny", "json says no", None)),
        ("PreToolUse", 1, DENY, "", ("blocked", "deny", "json says no", None)),
        ("PreToolUse", 127, DENY, "", ("blocked", "deny", "json says no", None)),
        ("PreToolUse", 0, BLOCK, "", ("blocked", "deny", "json says no", None)),
        ("PreToolUse", 1, "", "no", ("failed", "none", "", None)),
        ("PreToolUse", 127, "", "not found", ("failed", "none", "", None)),
        ("PreToolUse", -9, "", "", ("failed", "none", "", None)),
        (
            "PreToolUse",
            2,
            "",
            "stderr says no",
            ("blocked", "deny", "stderr says no", None),
        ),
        ("PreToolUse", 2, "", "", ("blocked", "deny", NO_REASON, None)),
        ("PreToolUse", 2, DENY, "stderr", ("blocked", "deny", "json says no", None)),
        (
            "PreToolUse",
            2,
            specific("PreToolUse", permissionDecision="allow"),
            "no",
            ("blocked", "deny", "no", None),
        ),
        ("PreToolUse", 0, "{", "", ("failed", "none", "", None)),
        ("PreToolUse", 1, "{", "", ("failed", "none", "", None)),
        ("PreToolUse", 2, "{", "no", ("blocked", "deny", "no", None)),
        ("PreToolUse", 0, specific("Stop"), "", ("failed", "none", "", None)),
        ("PreToolUse", 2, specific("Stop"), "no", ("blocked", "deny", "no", None)),
        (
            "PreToolUse",
            0,
            specific("PreToolUse", permissionDecision="defer"),
            "",
            ("success", "ask", "", None),
        ),
        (
            "PreToolUse",
            0,
            specific("PreToolUse", permissionDecision="perhaps"),
            "",
            ("failed", "none", "", None),
        ),
        (
            "PreToolUse",
            0,
            '{"decision": "approve"}',
            "",
            ("success", "allow", "", None),
        ),
        (
            "PreToolUse",
            0,
            '{"continue": false, "stopReason": "enough"}',
            "",
            ("blocked", "none", "", "enough"),
        ),
        ("Stop", 0, BLOCK, "", ("blocked", "deny", "json says no", None)),
        ("Stop", 0, "plain", "", ("success", "none", "", None)),
        ("Stop", 2, "", "go on", ("blocked", "deny", "go on", None)),
        ("Stop", 0, '{"decision": "allow"}', "", ("failed", "none", "", None)),
        ("Stop", 0, '{"decision": "approve"}', "", ("success", "none", "", None)),
        ("UserPromptSubmit", 2, "", "no", ("blocked", "deny", "no", None)),
        ("PostToolUse", 2, "", "look", ("blocked", "deny", "look", None)),
        ("PostToolBatch", 2, "", "enough", ("blocked", "deny", "enough", None)),
        ("PostToolBatch", 0, BLOCK, "", ("blocked", "deny", "json says no", None)),
        ("PostToolBatch", 1, BLOCK, "", ("blocked", "deny", "json says no", None)),
        ("PostToolBatch", 0, "plain", "", ("success", "none", "", None)),
        ("PermissionRequest", 0, answer("allow"), "", ("success", "allow", "", None)),
        ("PermissionRequest", 1, answer("allow"), "", ("success", "allow", "", None)),
        (
            "PermissionRequest",
            0,
            answer("deny"),
            "",
            ("blocked", "deny", "a hook said no", None),
        ),
        (
            "PermissionRequest",
            0,
            answer("deny", message="no", interrupt=True),
            "",
            ("blocked", "deny", "no", "no"),
        ),
        (
            "PermissionRequest",
            0,
            answer("allow", interrupt=True),
            "",
            ("success", "allow", "", None),
        ),
        ("PermissionRequest", 2, "", "no", ("failed", "none", "", None)),
        ("PermissionRequest", 2, answer("allow"), "", ("failed", "none", "", None)),
        ("PermissionRequest", 0, answer("ask"), "", ("failed", "none", "", None)),
        ("PermissionRequest", 0, answer(), "", ("failed", "none", "", None)),
        ("PermissionRequest", 0, answer(None), "", ("failed", "none", "", None)),
        ("PermissionRequest", 0, BLOCK, "", ("failed", "none", "", None)),
        (
            "PermissionRequest",
            0,
            specific("PermissionRequest", decision="allow"),
            "",
            ("failed", "none", "", None),
        ),
        ("StopFailure", 0, BLOCK, "", ("success", "none", "", None)),
        ("StopFailure", 0, "{", "", ("success", "none", "", None)),
        ("StopFailure", 2, "", "no", ("failed", "none", "", None)),
        ("SessionStart", 2, "", "no", ("failed", "none", "", None)),
        ("SessionStart", 0, BLOCK, "", ("failed", "none", "", None)),
        ("PostToolUseFailure", 2, "", "no", ("failed", "none", "", None)),
        ("Interrupt", 0, '{"systemMessage": "m"}', "", ("success", "none", "", None)),
        ("Interrupt", 0, '{"continue": false}', "", ("failed", "none", "", None)),
        ("Interrupt", 0, BLOCK, "", ("failed", "none", "", None)),
        ("Interrupt", 2, "", "no", ("failed", "none", "", None)),
    ],
)
def test_exit_and_output_give_one_verdict(
    event: HookEvent,
    code: int,
    stdout: str,
    stderr: str,
    expected: tuple[str, str, str, str | None],
) -> None:
    assert read(event, code, stdout, stderr) == expected


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ("SessionStart", True),
        ("UserPromptSubmit", True),
        ("SubagentStart", True),
        ("PreToolUse", False),
        ("Stop", False),
        ("SessionEnd", False),
    ],
)
def test_plain_output_is_text_for_the_model_where_a_step_begins(
    event: HookEvent,
    told: bool,  # noqa: FBT001  # the table's last column
) -> None:
    verdict = judge(hook(event), HookRun(0, " plain\n"))
    assert verdict.texts == (("plain",) if told else ())
    assert not verdict.messages


def test_every_field_of_an_answer_is_read() -> None:
    said = {
        "systemMessage": "for the user",
        "hookSpecificOutput": {
            "hookEventName": "PreToolUse",
            "permissionDecision": "ask",
            "permissionDecisionReason": "sure?",
            "updatedInput": {"a": [1]},
            "additionalContext": "for the model",
        },
    }
    assert judge(hook("PreToolUse"), HookRun(0, json.dumps(said))) == Verdict(
        choice="ask",
        reason="sure?",
        updated_input={"a": [1]},
        texts=("for the model",),
        messages=("for the user",),
    )


@pytest.mark.parametrize(
    "said",
    [
        '{"systemMessage": 1}',
        '{"hookSpecificOutput": []}',
        '{"hookSpecificOutput": {}}',
        specific("PreToolUse", updatedInput=[1]),
        specific("PreToolUse", additionalContext={}),
        specific("PreToolUse", permissionDecision={}),
        "{" * 100_000,
    ],
)
def test_an_answer_that_means_nothing_decides_nothing(said: str) -> None:
    verdict = judge(hook("PreToolUse"), HookRun(0, said))
    assert (verdict.outcome, verdict.choice) == ("failed", "none")
    assert verdict.detail
    assert verdict.messages


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (HookRun(1), "failed"),
        (HookRun(0, "{"), "failed"),
        (HookRun(0, "{}", cut=True), "failed"),
        (HookRun(problem="no such file"), "failed"),
        (HookRun(0, DENY, timed_out=True), "timed-out"),
    ],
)
@pytest.mark.parametrize("on_failure", ["continue", "block"])
def test_a_failing_gate_is_open_or_closed_as_its_setting_says(
    run: HookRun, outcome: str, on_failure: Literal["continue", "block"]
) -> None:
    verdict = judge(hook("PreToolUse", on_failure), run)
    assert verdict.outcome == outcome
    assert verdict.choice == ("deny" if on_failure == "block" else "none")


def test_a_cancelled_hook_says_nothing_whatever_it_printed() -> None:
    """Cancelled comes before timed out, and that before the exit."""
    run = HookRun(2, DENY, "no", cancelled=True, timed_out=True)
    assert judge(hook("PreToolUse", "block"), run) == Verdict("cancelled")
    late = HookRun(2, DENY, "no", timed_out=True)
    assert judge(hook("PreToolUse"), late).choice == "none"


@pytest.mark.parametrize(
    ("run", "rewakes", "expected"),
    [
        (HookRun(0), False, Verdict()),
        (HookRun(0, "plain\n"), False, Verdict(texts=("plain",))),
        (HookRun(0, DENY), False, Verdict()),
        (HookRun(1, DENY), False, Verdict()),
        (
            HookRun(0, specific("PreToolUse", additionalContext="more")),
            True,
            Verdict(texts=("more",)),
        ),
        (
            HookRun(0, '{"systemMessage": "m", "continue": false}'),
            False,
            Verdict(messages=("m",)),
        ),
        (HookRun(2, "out", "err\n"), True, Verdict(wake="err")),
        (HookRun(2, "out\n"), True, Verdict(wake="out")),
        (HookRun(2), True, Verdict(wake="A PreToolUse hook asks you to look again.")),
        (
            HookRun(2, "out", "err"),
            False,
            Verdict(
                "failed",
                messages=("The PreToolUse hook failed: exit 2: err",),
                detail="exit 2",
            ),
        ),
        (HookRun(2, DENY, cancelled=True), True, Verdict("cancelled")),
    ],
)
def test_a_detached_hook_has_words_and_no_decision(
    run: HookRun,
    rewakes: bool,  # noqa: FBT001  # a column of the table
    expected: Verdict,
) -> None:
    one = Hook("PreToolUse", "x", Matcher(None), detached=True, rewakes=rewakes)
    assert set_aside(one, run) == expected


@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (HookRun(2, "", "late", timed_out=True), "timed-out"),
        (HookRun(problem="no such file"), "failed"),
        (HookRun(1, "plain"), "failed"),
        (HookRun(0, "{"), "failed"),
    ],
)
def test_a_detached_hook_that_failed_wakes_nobody(run: HookRun, outcome: str) -> None:
    one = Hook("PreToolUse", "x", Matcher(None), detached=True, rewakes=True)
    verdict = set_aside(one, run)
    assert (verdict.outcome, verdict.wake, verdict.texts) == (outcome, None, ())
    assert verdict.messages


def test_verdicts_are_merged_in_the_order_of_the_settings() -> None:
    """deny > ask > allow; reasons of the strongest; the last changed input counts."""
    verdicts = [
        Verdict(choice="allow", reason="fine", updated_input={"n": 1}, texts=("a",)),
        Verdict(choice="deny", reason="first", messages=("m",)),
        Verdict(choice="ask", reason="sure?", updated_input={"n": 2}, texts=("b",)),
        Verdict(choice="deny", reason="second", stop="halt"),
        Verdict(stop="later"),
    ]
    whole = merge(verdicts)
    assert (whole.choice, whole.reason) == ("deny", "first\nsecond")
    assert (whole.stop, whole.updated_input) == ("halt", {"n": 2})
    assert (whole.texts, whole.messages) == (("a", "b"), ("m",))
    assert merge(verdicts[:1] + verdicts[2:3]).choice == "ask"
    assert merge(verdicts[:1]).choice == "allow"
    assert merge([]) == Verdict()
