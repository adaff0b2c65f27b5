"""Two protocols side by side: matchers, settings, exit codes and output, as tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentkernel.bridges.hooks import (
    Dialect,
    Hook,
    HookEvent,
    HookRun,
    HookSettings,
    HookSettingsError,
    Matcher,
    load_settings,
)
from agentkernel.bridges.hooks.judge import judge

BASH = {"shell": "bash"}
DIALECTS: tuple[Dialect, Dialect] = ("claude", "codex")


@pytest.mark.parametrize(
    ("matcher", "subject", "claude", "codex"),
    [
        (None, "Bash", True, True),
        ("", "Bash", True, True),
        ("*", "Bash", True, True),
        ("Bash", "Bash", True, True),
        ("Bash", "BashOutput", False, True),
        ("bash", "Bash", False, False),
        ("Edit|Write", "MultiEdit", False, True),
        ("Edit|Write", "Write", True, True),
        ("Edit, Write", "Write", True, False),
        ("^Bash$", "Bash", True, True),
        ("^Bash$", "BashOutput", False, False),
        ("mcp__a__.*", "mcp__a__read", True, True),
        ("mcp__a", "mcp__a__read", False, True),
        ("startup|resume", "resume", True, True),
        ("startup|resume", "fork", False, False),
        ("Bash", None, True, True),
    ],
)
def test_a_matcher_is_names_or_an_expression_and_for_codex_always_an_expression(
    matcher: str | None,
    subject: str | None,
    claude: bool,  # noqa: FBT001  # a column of the table
    codex: bool,  # noqa: FBT001  # a column of the table
) -> None:
    fits = tuple(Matcher(matcher, each).fits(subject) for each in DIALECTS)
    assert fits == (claude, codex)


def test_matchers_of_two_dialects_are_two() -> None:
    assert Matcher("a") == Matcher("a", "claude") != Matcher("a", "codex")
    assert len({Matcher("a"), Matcher("a", "codex"), Matcher("a", "codex")}) == 2


def out(**said: object) -> str:
    return json.dumps(said)


def specific(event: str, **fields: object) -> str:
    return out(hookSpecificOutput={"hookEventName": event, **fields})


NOTHING = ("success", "none", "", None)
FAILED = ("failed", "none", "", None)
NO = ("blocked", "deny", "no", None)
NO_REASON = ("blocked", "deny", "a hook refused it without a reason", None)
BLOCK = out(decision="block", reason="no")
BARE = out(decision="block")
DENY = specific("PreToolUse", permissionDecision="deny", permissionDecisionReason="no")
ANSWER = specific("PermissionRequest", decision={"behavior": "deny", "message": "no"})

ROWS: list[tuple[HookEvent, int, str, str, object, object]] = [
    # Exit 2: the reason is standard error's, and Codex wants one.
    ("PreToolUse", 2, "", "no", NO, NO),
    ("PreToolUse", 2, "", " \n", NO_REASON, FAILED),
    ("PreToolUse", 2, DENY, "other", NO, ("blocked", "deny", "other", None)),
    ("PreToolUse", 2, "{", "no", NO, NO),
    ("PreToolUse", 2, specific("Stop"), "no", NO, NO),
    ("PreToolUse", 2, DENY, "", NO, FAILED),
    ("UserPromptSubmit", 2, "", "no", NO, NO),
    ("PostToolUse", 2, "", "no", NO, NO),
    ("PermissionRequest", 2, "", "no", FAILED, NO),
    ("PermissionRequest", 2, "", "", FAILED, FAILED),
    ("SessionStart", 2, "", "no", FAILED, FAILED),
    ("SubagentStart", 2, "", "no", FAILED, FAILED),
    ("Interrupt", 2, "", "no", FAILED, FAILED),
    ("StopFailure", 2, "", "no", FAILED, FAILED),
    ("Stop", 2, "", "no", NO, NO),
    ("Stop", 2, "", "", NO_REASON, FAILED),
    ("SubagentStop", 2, "", "no", NO, NO),
    ("SubagentStop", 2, "", "", NO_REASON, FAILED),
    # Exit 0: objects, and plain text where it is welcome.
    ("Stop", 0, "", "", NOTHING, NOTHING),
    ("Stop", 0, "{}", "", NOTHING, NOTHING),
    ("Stop", 0, "plain", "", NOTHING, FAILED),
    ("SubagentStop", 0, "plain", "", NOTHING, FAILED),
    ("Interrupt", 0, "plain", "", NOTHING, FAILED),
    ("Interrupt", 0, out(systemMessage="m"), "", NOTHING, NOTHING),
    ("Interrupt", 0, out(**{"continue": True}), "", FAILED, FAILED),
    ("Interrupt", 0, out(stopReason=None), "", FAILED, FAILED),
    ("Interrupt", 0, out(suppressOutput=False), "", FAILED, FAILED),
    ("Interrupt", 0, BLOCK, "", FAILED, FAILED),
    ("PreToolUse", 0, "plain", "", NOTHING, NOTHING),
    ("PreToolUse", 0, "[1]", "", NOTHING, FAILED),
    ("PreToolUse", 0, "{", "", FAILED, FAILED),
    ("PreToolUse", 0, specific("Stop"), "", FAILED, FAILED),
    ("PreToolUse", 0, DENY, "", NO, NO),
    ("PreToolUse", 0, BLOCK, "", NO, NO),
    ("PreToolUse", 0, BARE, "", NO_REASON, FAILED),
    ("UserPromptSubmit", 0, BARE, "", NO_REASON, FAILED),
    ("PostToolUse", 0, BLOCK, "", NO, NO),
    ("PermissionRequest", 0, ANSWER, "", NO, NO),
    ("Stop", 0, BLOCK, "", NO, NO),
    ("Stop", 0, BARE, "", NO_REASON, FAILED),
    (
        "Stop",
        0,
        out(**{"continue": False, "stopReason": "halt"}),
        "",
        ("blocked", "none", "", "halt"),
        ("blocked", "none", "", "halt"),
    ),
    ("Stop", 0, '{"decision": "block", "reason": 1}', "", FAILED, FAILED),
    # Any other exit: an object counts for Claude Code, and nothing for Codex.
    ("PreToolUse", 1, DENY, "", NO, FAILED),
    ("PreToolUse", 1, "", "no", FAILED, FAILED),
    ("PreToolUse", 1, "{", "", FAILED, FAILED),
    ("PreToolUse", 127, "", "not found", FAILED, FAILED),
    ("PreToolUse", 127, DENY, "", NO, FAILED),
    ("PreToolUse", -9, "", "", FAILED, FAILED),
    ("Stop", 1, BLOCK, "", NO, FAILED),
    ("Stop", 1, "", "no", FAILED, FAILED),
]


@pytest.mark.parametrize(("event", "code", "stdout", "stderr", "claude", "codex"), ROWS)
def test_exits_and_output_mean_what_the_dialect_says(
    event: HookEvent,
    code: int,
    stdout: str,
    stderr: str,
    claude: object,
    codex: object,
) -> None:
    read: list[object] = []
    for each in DIALECTS:
        hook = Hook(event, "x", Matcher(None, each), dialect=each)
        verdict = judge(hook, HookRun(code, stdout, stderr))
        read.append((verdict.outcome, verdict.choice, verdict.reason, verdict.stop))
    assert read == [claude, codex]


@pytest.mark.parametrize("event", ["SessionStart", "UserPromptSubmit", "SubagentStart"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_plain_text_is_for_the_model_where_a_step_begins(
    event: HookEvent, dialect: Dialect
) -> None:
    hook = Hook(event, "x", Matcher(None, dialect), dialect=dialect)
    assert judge(hook, HookRun(0, "text\n")).texts == ("text",)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("run", "outcome"),
    [
        (HookRun(2, BLOCK, "no", cancelled=True, timed_out=True), "cancelled"),
        (HookRun(2, BLOCK, "no", timed_out=True), "timed-out"),
        (HookRun(problem="no such file"), "failed"),
        (HookRun(0, BLOCK, cut=True), "failed"),
    ],
)
def test_cancelled_outweighs_timed_out_and_that_any_exit(
    dialect: Dialect, run: HookRun, outcome: str
) -> None:
    hook = Hook("Stop", "x", Matcher(None, dialect), dialect=dialect)
    verdict = judge(hook, run)
    assert (verdict.outcome, verdict.choice) == (outcome, "none")


def hooks_json(event: str = "PreToolUse", /, **hook: object) -> dict[str, object]:
    whole = {"type": "command", "command": "check", **hook}
    return {"hooks": {event: [{"matcher": "^Bash$", "hooks": [whole]}]}}


def test_a_hooks_file_of_codex_is_read_in_its_own_form(tmp_path: Path) -> None:
    """Its keys, its limits, its matchers; files of both dialects run together."""
    (tmp_path / "hooks.json").write_text(
        json.dumps(
            {
                "description": "checks",
                "hooks": {
                    "PreToolUse": [
                        {
                            "matcher": "Bash",
                            "hooks": [
                                {
                                    "type": "command",
                                    "command": "one",
                                    "timeoutSec": 7,
                                    "statusMessage": "…",
                                    "commandWindows": "one.bat",
                                }
                            ],
                        }
                    ],
                    "UserPromptSubmit": [
                        {"hooks": [{"type": "command", "command": "two"}]}
                    ],
                    "Stop": [
                        {
                            "hooks": [
                                {
                                    "type": "command",
                                    "command": "three",
                                    "async": True,
                                    "timeout": 5,
                                }
                            ]
                        }
                    ],
                    "PreCompact": [{"hooks": [{"type": "command", "command": "four"}]}],
                },
            }
        )
    )
    read = load_settings(tmp_path / "hooks.json", dialect="codex")
    every = Matcher(None, "codex")
    assert read.hooks == (
        Hook(
            "PreToolUse",
            "one",
            Matcher("Bash", "codex"),
            max_seconds=7.0,
            dialect="codex",
        ),
        Hook("UserPromptSubmit", "two", every, dialect="codex"),
        Hook("Stop", "three", every, max_seconds=5.0, detached=True, dialect="codex"),
    )
    assert read.ignored == ("PreCompact",)
    both = HookSettings.from_json(hooks_json()).joined(read)
    assert [hook.dialect for hook in both.of("PreToolUse")] == ["claude", "codex"]


UNKNOWN: list[tuple[dict[str, object], str]] = [
    (hooks_json("PostToolUseFailure"), "no such event"),
    (hooks_json("Notification"), "no such event"),
    (hooks_json(args=["x"]), "no such setting"),
    (hooks_json(**BASH), "no such setting"),
    (hooks_json(once=True), "no such setting"),
    (hooks_json(asyncRewake=True), "no such setting"),
    (hooks_json(**{"if": "Bash"}), "no such setting"),
    (hooks_json(type="prompt"), "only 'command' hooks"),
    (
        {"hooks": {"Stop": [{"matcher": "a(", "hooks": []}]}},
        "no regular expression",
    ),
]


@pytest.mark.parametrize(("value", "problem"), UNKNOWN)
def test_what_codex_does_not_know_is_refused(
    value: dict[str, object], problem: str
) -> None:
    with pytest.raises(HookSettingsError, match=problem):
        HookSettings.from_json(value, dialect="codex")


@pytest.mark.parametrize("key", ["timeoutSec", "commandWindows"])
def test_what_only_codex_knows_is_refused_elsewhere(key: str) -> None:
    with pytest.raises(HookSettingsError, match="no such setting"):
        HookSettings.from_json(hooks_json(**{key: 1}))


def test_one_command_of_two_dialects_is_two_hooks() -> None:
    one, two = (Hook("Stop", "x", Matcher(None, d), dialect=d) for d in DIALECTS)
    assert one.identity != two.identity
