"""Settings of hooks: what is read, and how precisely the rest is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import agentkernel as ak
from agentkernel.bridges.hooks import (
    Hook,
    HookSettings,
    HookSettingsError,
    Matcher,
    load_settings,
)
from agentkernel.bridges.hooks.hook import EVENTS, FOREIGN
from agentkernel.bridges.hooks.matcher import condition_holds

ZSH = {"shell": "zsh"}
SHELLS = {"shell": ["bash"]}
NO_SHELL = {"shell": {"a": 1}}


def settings(event: str = "PreToolUse", /, **hook: object) -> dict[str, object]:
    whole = {"type": "command", "command": "check", **hook}
    return {"hooks": {event: [{"matcher": "a", "hooks": [whole]}]}}


@pytest.mark.parametrize(
    ("matcher", "subject", "fits"),
    [
        (None, "Bash", True),
        ("", "Bash", True),
        ("*", "Bash", True),
        ("Bash", "Bash", True),
        ("Bash", "BashOutput", False),
        ("bash", "Bash", False),
        ("Edit|Write", "Write", True),
        ("Edit, Write", "Write", True),
        ("Edit|Write", "MultiEdit", False),
        ("mcp__a__b", "mcp__a__b", True),
        ("mcp__a-1__b", "mcp__a-1__b", True),
        ("mcp__a__.*", "mcp__a__read", True),
        ("mcp__a__.*", "mcp__b__read", False),
        ("Note.*", "MyNotebook", True),
        ("^Note", "MyNotebook", False),
        ("a.c", "xabcx", True),
        ("Bash", None, True),
    ],
)
def test_a_matcher_lists_names_or_is_looked_for(
    matcher: str | None,
    subject: str | None,
    fits: bool,  # noqa: FBT001  # the table's last column
) -> None:
    assert Matcher(matcher).fits(subject) is fits


@pytest.mark.parametrize(
    ("condition", "name", "arguments", "holds"),
    [
        ("Bash", "Bash", {}, True),
        ("Bash", "Edit", {}, False),
        ("Bash(git *)", "Bash", {"command": "git push"}, True),
        ("Bash(git *)", "Bash", {"command": "rm -r ."}, False),
        ("Bash(git:*)", "Bash", {"command": "git"}, True),
        ("Edit(*.py)", "Edit", {"path": "a/b.py"}, True),
        ("Edit(*.py)", "Edit", {"path": "a/b.md"}, False),
        ("Any(*1*)", "Any", {"n": 1}, True),
        ("mcp__*", "mcp__a__b", {}, True),
        ("Bash(git", "Bash", {"command": "rm"}, True),
        ("not a rule", "Bash", {}, True),
    ],
)
def test_a_condition_is_a_permission_rule_and_fails_open(
    condition: str,
    name: str,
    arguments: ak.JsonObject,
    holds: bool,  # noqa: FBT001  # the table's last column
) -> None:
    """What cannot be read runs its hook: a gate that is not sure is asked."""
    assert condition_holds(condition, name, arguments) is holds


def test_settings_keep_the_order_of_the_file() -> None:
    value = {
        "permissions": {"allow": ["Read"]},
        "hooks": {
            "Stop": [{"hooks": [{"type": "command", "command": "one"}]}],
            "Notification": [{"hooks": [{"type": "http", "url": "…"}]}],
            "PreToolUse": [
                {
                    "matcher": "Bash|Write",
                    "hooks": [
                        {
                            "type": "command",
                            "command": "two",
                            "args": ["-x"],
                            "timeout": 5,
                            "if": "Bash(git *)",
                            "onFailure": "block",
                            "statusMessage": "…",
                            "async": False,
                        },
                        {"type": "command", "command": "three", "shell": "bash"},
                    ],
                }
            ],
            "UserPromptSubmit": [{"hooks": [{"type": "command", "command": "four"}]}],
            "SessionEnd": [
                {"hooks": [{"type": "command", "command": "five", "timeout": 90}]}
            ],
        },
    }
    read = HookSettings.from_json(json.dumps(value))
    tools = Matcher("Bash|Write")
    assert read.hooks == (
        Hook("Stop", "one", Matcher(None)),
        Hook("PreToolUse", "two", tools, ("-x",), None, 5.0, "Bash(git *)", "block"),
        Hook("PreToolUse", "three", tools, None, "bash"),
        Hook("UserPromptSubmit", "four", Matcher(None), max_seconds=30.0),
        Hook("SessionEnd", "five", Matcher(None), max_seconds=60.0),
    )
    assert read.ignored == ("Notification",)
    assert [hook.argv for hook in read.hooks[:3]] == [
        "one",
        ["two", "-x"],
        ["bash", "-c", "three"],
    ]
    assert [hook.command for hook in read.of("PreToolUse")] == ["two", "three"]


MATCHER = "f: hooks.Stop[0].matcher"


def matching(text: str) -> dict[str, object]:
    return {"hooks": {"Stop": [{"matcher": text, "hooks": []}]}}


REFUSED: list[tuple[str | bytes | dict[str, object], str, str]] = [
    ("{", "f", "no JSON"),
    ("[]", "f", "must be an object, not an array"),
    ({"hooks": []}, "f: hooks", "must be an object"),
    ({"hooks": {"PreTool": []}}, "f: hooks.PreTool", "no such event"),
    ({"hooks": {"Stop": {}}}, "f: hooks.Stop", "must be an array"),
    ({"hooks": {"Stop": ["x"]}}, "f: hooks.Stop[0]", "not 'x'"),
    ({"hooks": {"Stop": [{}]}}, "f: hooks.Stop[0]", "has no hooks"),
    (
        {"hooks": {"Stop": [{"matcher": "(", "hooks": []}]}},
        "f: hooks.Stop[0].matcher",
        "no regular expression",
    ),
    (
        {"hooks": {"Stop": [{"matcher": 1, "hooks": []}]}},
        "f: hooks.Stop[0].matcher",
        "must be a text, not 1",
    ),
    (settings(type="http"), "type", "not 'http'"),
    (settings(command=" "), "command", "must be a text"),
    (settings(args="x"), "args", "must be an array"),
    (settings(args=["x", 1]), "args[1]", "must be a text, not 1"),
    (settings(timeout="1"), "timeout", "seconds, not '1'"),
    (settings(timeout=True), "timeout", "seconds, not True"),
    (settings(timeout=0), "timeout", "more than 0"),
    (settings(**ZSH), "shell", "'bash', not 'zsh'"),
    (settings(**{"async": 1}), "async", "true or false, not 1"),
    (settings(asyncRewake="yes"), "asyncRewake", "true or false"),
    (settings(once=None), "once", "true or false"),
    (settings(**{"async": True, "onFailure": "block"}), "", "cannot block"),
    (settings(timeuot=1), "timeuot", "no such setting"),
    (settings("Stop", **{"if": "Bash"}), "if", "not for Stop"),
    (settings(on_failure="deny"), "on_failure", "'continue' or 'block'"),
    (settings("SessionEnd", onFailure="block"), "onFailure", "cannot block"),
    (settings(**SHELLS), "shell", "'bash', not ['bash']"),
    (settings(**NO_SHELL), "shell", "'bash', not {'a': 1}"),
    (settings(timeout=10**400), "timeout", "less than 1e+09"),
    (settings(timeout=float("nan")), "timeout", "more than 0"),
    (settings(command="a\0b"), "command", "NUL"),
    (settings(args=["a\0b"]), "args[0]", "NUL"),
    ('{"hooks":' + "[" * 200_000, "f", "no JSON"),
    (b'{"hooks": "\xff"}', "f", "no JSON"),
    (matching("(" * 3000), MATCHER, "no regular expression"),
    (matching("(a{99999999999999})"), MATCHER, "no regular expression"),
    (matching(" , "), MATCHER, "names nothing"),
    ({"disableAllHooks": "true"}, "f: disableAllHooks", "true or false, not 'true'"),
    ({"PreToolUse": []}, "f: PreToolUse", "under 'hooks'"),
    (
        {"hooks": {"Stop": [{"Matcher": "Bash", "hooks": []}]}},
        "f: hooks.Stop[0].Matcher",
        "no such setting of a group",
    ),
    ('{"hooks": {}, "hooks": {}}', "f: hooks", "twice"),
    ('{"hooks": {"Stop": [], "Stop": []}}', "f: hooks.Stop", "twice"),
    (
        '{"hooks": {"Stop": [{"hooks": [], "hooks": []}]}}',
        "f: hooks.Stop[0].hooks",
        "twice",
    ),
    (
        '{"hooks": {"Stop": [{"hooks": [{"command": "a", "command": "b"}]}]}}',
        "command",
        "twice",
    ),
]


@pytest.mark.parametrize(("value", "where", "problem"), REFUSED)
def test_what_cannot_be_used_is_refused_with_its_place(
    value: str | bytes | dict[str, object], where: str, problem: str
) -> None:
    with pytest.raises(HookSettingsError) as caught:
        HookSettings.from_json(value, source="f")
    assert problem in caught.value.problem
    if where.startswith("f"):
        assert caught.value.where == where
    else:
        place = f"[0].hooks[0].{where}" if where else "[0].hooks[0]"
        assert caught.value.where.endswith(place)
    assert str(caught.value).startswith("f: ")


@pytest.mark.parametrize(
    ("more", "detached", "rewakes", "seconds"),
    [
        ({}, False, False, 30.0),
        ({"async": False}, False, False, 30.0),
        ({"async": True}, True, False, 600.0),
        ({"async": True, "timeout": 5}, True, False, 5.0),
        ({"asyncRewake": True}, True, True, 600.0),
        ({"async": False, "asyncRewake": True}, True, True, 600.0),
    ],
)
def test_who_rewakes_is_detached_and_who_is_detached_has_time(
    more: dict[str, object],
    detached: bool,  # noqa: FBT001  # a column of the table
    rewakes: bool,  # noqa: FBT001  # a column of the table
    seconds: float,
) -> None:
    """A prompt waits for half a minute, and for nothing of what is detached."""
    value = settings("UserPromptSubmit", **more)
    (hook,) = HookSettings.from_json(value).hooks
    assert (hook.detached, hook.rewakes) == (detached, rewakes)
    assert hook.max_seconds == seconds


def test_a_hook_of_the_end_is_never_detached() -> None:
    value = settings("SessionEnd", asyncRewake=True, once=True)
    (hook,) = HookSettings.from_json(value).hooks
    assert (hook.detached, hook.rewakes, hook.once) == (False, False, True)
    assert hook.max_seconds == 1.5


def test_files_add_up_and_a_switch_turns_its_file_off(tmp_path: Path) -> None:
    """A missing file is none, and the hooks of every other one run."""
    for name, value in {
        "user": settings(command="u"),
        "project": settings("Stop", command="p"),
        "off": {"disableAllHooks": True, **settings(command="o")},
    }.items():
        (tmp_path / name).write_text(json.dumps(value))
    names = ("user", "absent", "project", "off")
    read = load_settings(*(tmp_path / name for name in names))
    assert [hook.command for hook in read.hooks] == ["u", "p"]
    (tmp_path / "user").write_text("no")
    with pytest.raises(HookSettingsError, match="user: no JSON"):
        load_settings(tmp_path / "user")


def test_what_is_about_other_things_may_stand_there_twice() -> None:
    text = '{"permissions": {"a": 1, "a": 2}, "permissions": {}, "hooks": {}}'
    assert HookSettings.from_json(text) == HookSettings()


def test_a_path_that_no_file_can_have_is_refused_as_settings() -> None:
    with pytest.raises(HookSettingsError):
        load_settings("a\0b")


def test_every_event_of_the_protocol_either_happens_or_is_ignored_by_name() -> None:
    """12 of 31 happen here, and one that is not of that protocol; docs say which."""
    assert len(EVENTS) == 13
    assert len(FOREIGN) == 19
    assert not FOREIGN & set(EVENTS)
    page = (Path(__file__).parents[2] / "docs" / "hooks.md").read_text()
    happens, _, never = page.partition("## Events that never happen here")
    assert all(f"`{event}`" in never for event in FOREIGN)
    assert all(f"`{event}`" in happens for event in EVENTS)
    value = {"hooks": {event: [{"hooks": [{"type": "http"}]}] for event in FOREIGN}}
    assert set(HookSettings.from_json(value).ignored) == FOREIGN
