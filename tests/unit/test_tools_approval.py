"""Approval policies as values: which rule decides, and what a grant covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from agentkernel.tools import Action, FunctionTool, Policy, Rule
from tests.race.rig import BodyTool, returns_done


def action(policy: Policy, name: str, **arguments: str) -> str:
    return policy.decide(name, arguments).action


def test_the_first_rule_that_fits_decides_and_the_default_is_last() -> None:
    """Order is the whole of the precedence: no rule is weighed against another."""
    policy = Policy(
        (
            Rule("deny", "write_file", "path", "*.lock"),
            Rule("allow", "write_*"),
            Rule("deny", "write_file"),
        ),
        default="ask",
    )
    assert action(policy, "write_file", path="a.lock") == "deny"
    assert action(policy, "write_file", path="a.txt") == "allow"
    assert action(policy, "read_file", path="a.txt") == "ask"
    assert Policy().decide("x", {}).reason == "no rule is about this call of 'x'"


@pytest.mark.parametrize(
    ("rule", "fitting", "others"),
    [
        (Rule("allow", argument="a"), ["x"], []),
        (Rule("allow", argument="a", pattern="src/*"), ["src/x", "src/../y"], ["x"]),
        (
            Rule("allow", argument="a", pattern="src/*", syntax="path"),
            ["src/x", "./src/x/y", "src/a/../b"],
            ["src/../y", "x", "/src/x", "src"],
        ),
        (
            Rule("deny", argument="a", pattern="/etc/*", syntax="path"),
            ["/etc/x", "//etc/x", "///etc//x", "//../etc/x", "/./etc/x", "/a/../etc/x"],
            ["/etcetera/x", "etc/x", "//a/etc/x"],
        ),
        (
            Rule("allow", argument="a", pattern="[ab]+", syntax="regex"),
            ["abba"],
            ["abc", "xab", "ab\n"],
        ),
        (
            Rule("allow", argument="a", pattern="git status*", syntax="command"),
            ["git status", "git status -s src"],
            [
                "git status; rm -r x",
                "git status && rm x",
                "git status | sh",
                "git status $(rm x)",
                "git status `rm x`",
                "git status > x",
                "git status\nrm x",
                "git status *",
                "git status [a-z]x",
                "git status ?",
                "git status ~root",
                "git status --git-dir=~root",
                "git status \0",
                "git status 'x",
                "git push",
                "",
            ],
        ),
        (
            Rule("allow", argument="a", pattern="git diff*", syntax="command"),
            ["git diff HEAD~1", "git diff HEAD^~2 -- 'a b'", 'git diff "#1!"'],
            [" git diff", "/bin/git diff", "'git' diff", "A=1 git diff"],
        ),
    ],
)
def test_a_pattern_fits_what_its_syntax_says(
    rule: Rule, fitting: list[str], others: list[str]
) -> None:
    """A rule that fits more than it seems to is a hole."""
    assert [text for text in fitting if not rule.fits("t", {"a": text})] == []
    assert [text for text in others if rule.fits("t", {"a": text})] == []


REFUSING: list[tuple[Rule, list[str], list[str]]] = [
    (
        Rule("deny", argument="a", pattern="rm *", syntax="command"),
        [
            "rm -r x",
            "rm -r x; true",
            "true && rm -r x",
            "rm -r $HOME",
            "rm -r *",
            "true\nrm -r x",
            "  rm -r x",
            "rm\t-r x",
            "'rm' -r x",
            'r"m" -r x',
            "/bin/rm -r x",
            "A=1 rm -r x",
            "! rm -r x",
            "rm 'x",
        ],
        ["ls", "git rm x", "rmdir x", "", "''", "git commit -m 'rm it'"],
    ),
    (
        Rule("deny", argument="a", pattern="rm.*", syntax="regex"),
        ["rm x", "rm x\ntrue"],
        ["ls", "ls\nrm"],
    ),
    (
        Rule("deny", argument="a", pattern="/etc/*", syntax="path"),
        ["/etc/x", "../../etc/x", "a/../../x", ".."],
        ["x", "a/../x", "..x", "/home/x"],
    ),
]


@pytest.mark.parametrize("action", ["deny", "ask"])
@pytest.mark.parametrize(("rule", "fitting", "others"), REFUSING)
def test_a_rule_that_asks_or_denies_errs_on_the_safe_side(
    action: Action, rule: Rule, fitting: list[str], others: list[str]
) -> None:
    """What it is against must not get past it by being written in another way."""
    rule = msgspec.structs.replace(rule, action=action)
    assert [text for text in fitting if not rule.fits("t", {"a": text})] == []
    assert [text for text in others if rule.fits("t", {"a": text})] == []
    policy = Policy((rule,), default="allow")
    assert {policy.decide("t", {"a": text}).action for text in fitting} == {action}


@pytest.mark.parametrize(
    ("text", "sure"),
    [("git push x", True), ("git push x; rm y", False), ("ls | wc", False)],
)
def test_a_yes_for_the_session_covers_nothing_that_is_in_doubt(
    text: str, *, sure: bool
) -> None:
    """The person said yes to pushing, and not to whatever cannot be told from it."""
    rule = Rule("ask", "*", "a", "git push*", syntax="command", scope="session")
    policy = Policy((rule,), default="deny")
    granted = {policy.decide("t", {"a": "git push"}).grant}
    decision = policy.decide("t", {"a": text}, granted=granted)
    assert decision.action == ("allow" if sure else "ask")
    if not sure:
        assert (decision.scope, decision.grant) == ("once", "")
        assert "in doubt" in decision.reason


def test_a_rule_about_an_argument_does_not_fit_a_call_without_it() -> None:
    """And an argument that is no text is compared as its JSON."""
    rule = Rule("allow", "t", "n", "[[]1,2]")
    assert not rule.fits("t", {})
    assert rule.fits("t", {"n": (1, 2)})
    assert not rule.fits("u", {"n": (1, 2)})


def test_a_yes_for_the_session_covers_this_rule_and_this_tool_only() -> None:
    """The grant names both; a changed rule asks again."""
    rule = Rule("ask", "write_*", "path", "src/*", scope="session")
    policy = Policy((rule,), default="deny")
    asked = policy.decide("write_file", {"path": "src/a"})
    assert (asked.action, asked.scope) == ("ask", "session")
    granted = {asked.grant}
    later = policy.decide("write_file", {"path": "src/b"}, granted=granted)
    assert later.action == "allow"
    assert "this session" in later.reason
    assert policy.decide("write_all", {"path": "src/b"}, granted=granted).action == (
        "ask"
    )
    assert policy.decide("write_file", {"path": "b"}, granted=granted).action == "deny"
    changed = Policy((msgspec.structs.replace(rule, pattern="*"),))
    assert changed.decide("write_file", {"path": "b"}, granted=granted).action == "ask"


def test_a_yes_for_once_leaves_nothing_to_remember() -> None:
    """There is no grant that could be kept by mistake."""
    decision = Policy((Rule("ask", reason="why"),)).decide("t", {})
    assert (decision.action, decision.grant, decision.reason) == ("ask", "", "why")


def test_a_policy_is_data_that_a_file_can_hold() -> None:
    """Round trip, and mistakes are refused when it is read."""
    policy = Policy((Rule("ask", "t", "a", "x*", scope="session"),), default="deny")
    text = msgspec.json.encode(policy)
    assert msgspec.json.decode(text, type=Policy) == policy
    for bad in (
        b'{"default": "perhaps"}',
        b'{"rules": [{"action": "allow", "pattern": "x"}]}',
        b"""{"rules": [{"action": "allow", "argument": "a", "pattern": "(",
        "syntax": "regex"}]}""",
        b'{"rules": [{"action": "allow", "tol": "x"}]}',
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(bad, type=Policy)


def test_a_policy_of_tools_asks_about_those_that_want_it() -> None:
    """The rest is allowed, by exact name; unknown tools get the default.

    A tool that is a class of somebody's own says nothing, or says it by an attribute.
    """

    def look() -> None: ...
    def change() -> None: ...

    marked = BodyTool("marked", returns_done)
    vars(marked)["needs_approval"] = True
    policy = Policy.of_tools(
        [
            FunctionTool(look),
            FunctionTool(change, needs_approval=True),
            BodyTool("plain", returns_done),
            marked,
        ],
        rules=(Rule("deny", "look", "path", "/*"),),
    )
    assert action(policy, "plain") == "allow"
    assert action(policy, "marked") == "ask"
    assert action(policy, "look") == "allow"
    assert action(policy, "look", path="/etc") == "deny"
    assert action(policy, "change") == "ask"
    assert action(policy, "looks") == "ask"


def wrong(word: object) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # it fits no type, that is the point
    return cast("Any", word)  # type: ignore[explicit-any]  # likewise


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: Rule(wrong("Deny"), "rm"), ValueError),
        (lambda: Rule(wrong(None), "rm"), ValueError),
        (lambda: Rule("deny", "rm", "a", "x", syntax=wrong("glb")), ValueError),
        (lambda: Rule("ask", "rm", scope=wrong("always")), ValueError),
        (lambda: Rule("deny", wrong(5)), TypeError),
        (lambda: Rule("deny", "rm", "a", wrong(b"x")), TypeError),
        (lambda: Policy(default=wrong("block")), ValueError),
        (lambda: Policy.of_tools((), default=wrong("block")), ValueError),
    ],
)
def test_a_word_that_is_none_is_refused_when_it_is_written(
    make: Callable[[], object], error: type[Exception]
) -> None:
    """A deny that is misspelled must not be met as a permission when a call comes."""
    with pytest.raises(error):
        make()
