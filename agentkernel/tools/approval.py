"""Approval policies: what may run, what a person is asked about, what is denied.

Pure values: a policy is data that a file can hold, and `decide` is a function of it,
a call and what the person has granted in this session. It does not ask anybody; that
is done where the kernel asks for approval.

The first rule that fits decides, in the order in which they stand; if none fits, the
policy's default does. So specific rules stand first, and a rule that must hold whatever
else is allowed stands at the very top.

Where it cannot be told what an argument would do, every rule errs on the safe side: one
that allows does not fit, one that asks or denies does. A yes for a whole session covers
what the rule fits without a doubt.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
import shlex
from collections.abc import Callable, Collection, Iterable
from glob import escape
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from agentkernel import JsonObject, JsonValue, Tool

__all__ = ["Action", "Decision", "Policy", "Rule", "Syntax"]

Action: TypeAlias = Literal["allow", "ask", "deny"]
Syntax: TypeAlias = Literal["glob", "regex", "path", "command"]
_Scope: TypeAlias = Literal["once", "session"]
# Whether a rule is about a call; None if that cannot be told.
_Fit: TypeAlias = bool | None

# What joins, nests, expands or redirects commands in a shell. A tilde expands at the
# start of a word and behind `=` and `:`, and not in `HEAD~1`.
_SHELL = re.compile(r"[;&|<>`$(){}*?\[\n\r\0\\]|(?<![\w^@~])~")
# What may stand in front of the name of a command.
_PREFIX = re.compile(r"\s*(?:!|\w+\+?=)")


class Rule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What to do about some calls.

    Making one, in Python or from a file, refuses what it does not know: a word that is
    misspelled is an error there, and no permission later.

    Attributes:
      action: `allow`, `ask` or `deny`.
      tool: a shell pattern for the tool's name.
      argument: the argument that `pattern` is held against. A call without it is not
        fitted; what is not text is compared as its JSON.
      pattern: None fits anything.
      syntax: how to read `pattern`. `glob`: a shell pattern for the whole text, in
        which `*` also fits slashes and ends of lines. `regex`: an expression that fits
        the whole text; in one that asks or denies, `.` also fits ends of lines.
        `path`: a glob for the path after `.`, `..` and doubled slashes are resolved;
        a path that leads upwards (`../x`) is in doubt. It does not know about symbolic
        links, nor where a relative path starts: begin a rule that denies with `*`.
        `command`: a glob for one plain command; a text with anything that joins, nests,
        expands (`*`, `?`, `[`, `~` as well) or redirects commands is in doubt, so that
        allowing `git status*` does not allow what stands behind a semicolon, and
        denying `rm *` denies it. What a command starts in its turn (`env rm`) is not
        seen: to be sure, allow what is known and ask about the rest.
      scope: of an answer to `ask`: `once`, or `session` if a yes holds for every
        later call that this rule fits.
      reason: shown to who is asked, and to the model if the call is denied.

    """

    action: Action
    tool: str = "*"
    argument: str | None = None
    pattern: str | None = None
    syntax: Syntax = "glob"
    scope: Literal["once", "session"] = "once"
    reason: str = ""

    def __post_init__(self) -> None:
        _require(self.action, Action, "the action of a rule")
        _require(self.syntax, Syntax, "the syntax of a rule")
        _require(self.scope, _Scope, "the scope of a rule")
        for text in (self.tool, self.argument or "", self.pattern or "", self.reason):
            _require_text(text)
        if self.pattern is not None and self.argument is None:
            raise ValueError("a rule with a pattern names the argument it is for")
        if self.pattern is not None and self.syntax == "regex":
            try:
                re.compile(self.pattern)
            except re.error as exc:
                raise ValueError(f"{self.pattern!r}: {exc}") from None

    def fits(self, name: str, arguments: JsonObject) -> bool:
        """Whether the rule is about this call.

        In doubt it is, unless it allows.
        """
        return _holds(self, _fit(self, name, arguments))


class Decision(msgspec.Struct, frozen=True):
    """What a policy says about one call.

    Attributes:
      action: `allow`, `ask` or `deny`.
      reason: why, in words for a person.
      scope: how long an answer to `ask` holds.
      grant: what to remember after a yes with scope `session`, and to hand to
        `decide` from then on; empty if there is nothing to remember.

    """

    action: Action
    reason: str
    scope: Literal["once", "session"] = "once"
    grant: str = ""


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules in order, and what to do if none fits.

    Attributes:
      rules: the first that fits decides.
      default: for calls that no rule fits.

    """

    rules: tuple[Rule, ...] = ()
    default: Action = "ask"

    def __post_init__(self) -> None:
        _require(self.default, Action, "the default of a policy")

    @classmethod
    def of_tools(
        cls,
        tools: Iterable[Tool],
        *,
        rules: tuple[Rule, ...] = (),
        default: Action = "ask",
    ) -> Policy:
        """Make a policy of what tools say: ask about the marked ones, allow the others.

        The mark is an attribute `needs_approval` that is true; a tool may do without.

        Args:
          tools: those that are offered; a name that is none of them gets `default`.
          rules: they stand before what the tools say about themselves.
          default: also what is done about tools that are marked.

        """
        allowed = tuple(
            Rule("allow", escape(tool.spec.name), reason="it needs no approval")
            for tool in tools
            if not getattr(tool, "needs_approval", False)
        )
        return cls((*rules, *allowed), default)

    def decide(
        self, name: str, arguments: JsonObject, *, granted: Collection[str] = ()
    ) -> Decision:
        """Decide about one call. Not a checkpoint.

        Args:
          name: of the tool.
          arguments: as they will be run.
          granted: the `grant` of every decision that a person has said yes to in
            this session.

        """
        for number, rule in enumerate(self.rules, 1):
            fit = _fit(rule, name, arguments)
            if _holds(rule, fit):
                return _decide(rule, f"rule {number}", name, granted if fit else None)
        return Decision(self.default, f"no rule is about this call of {name!r}")


def _decide(
    rule: Rule, which: str, name: str, granted: Collection[str] | None
) -> Decision:
    """Say what a rule says about a call; `granted` is None for one in doubt."""
    reason = rule.reason or f"{which} says {rule.action} for {name!r}"
    if granted is None:
        doubt = "in doubt: it cannot be told what this call would do"
        return Decision(rule.action, f"{reason} ({doubt})")
    if rule.action != "ask" or rule.scope == "once":
        return Decision(rule.action, reason)
    # The whole rule and the tool: a grant for one tool is none for another, and a
    # rule that was changed is asked about again.
    grant = f"{name} {msgspec.json.encode(rule).decode()}"
    if grant in granted:
        return Decision(
            "allow", f"allowed for this session: {reason}", "session", grant
        )
    return Decision("ask", reason, "session", grant)


def _holds(rule: Rule, fit: _Fit) -> bool:
    return rule.action != "allow" if fit is None else fit


def _fit(rule: Rule, name: str, arguments: JsonObject) -> _Fit:
    """Hold a rule against a call."""
    if not fnmatch.fnmatchcase(name, rule.tool):
        return False
    if rule.argument is None:
        return True
    if rule.argument not in arguments:
        return False
    if rule.pattern is None:
        return True
    return _FITS[rule.syntax](_to_text(arguments[rule.argument]), rule.pattern)


def _fit_expression(text: str, pattern: str) -> _Fit:
    if re.fullmatch(pattern, text):
        return True
    return None if re.fullmatch(pattern, text, re.DOTALL) else False


def _fit_path(text: str, pattern: str) -> _Fit:
    path = _resolve(text)
    if fnmatch.fnmatchcase(path, pattern):
        return True
    return None if path == ".." or path.startswith("../") else False


def _fit_command(text: str, pattern: str) -> _Fit:
    if _SHELL.search(text):
        return None
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if fnmatch.fnmatchcase(text, pattern):
        return True
    if _PREFIX.match(text):
        return None
    # The same command may be written in another way: `  rm`, `'rm'`, `/bin/rm`.
    first = posixpath.basename(words[0]) if words else ""
    spellings = (" ".join(words), " ".join((first, *words[1:])))
    found = any(fnmatch.fnmatchcase(spelling, pattern) for spelling in spellings)
    return None if found else False


_FITS: Final[dict[Syntax, Callable[[str, str], _Fit]]] = {
    "glob": fnmatch.fnmatchcase,
    "regex": _fit_expression,
    "path": _fit_path,
    "command": _fit_command,
}


def _resolve(path: str) -> str:
    """Resolve `.`, `..` and doubled slashes by the words of a path alone."""
    # Two slashes in front are a place of their own for POSIX, and the root for Linux.
    return re.sub("^//", "/", posixpath.normpath(path))


def _to_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _require(value: object, kind: object, what: str) -> None:
    """Refuse a word that is none of its kind.

    Raises:
      ValueError: if it is not.

    """
    known = get_args(kind)
    if value not in known:
        raise ValueError(f"{what} is one of {', '.join(known)}; not {value!r}")


def _require_text(value: object) -> None:
    """Refuse what is no text.

    Raises:
      TypeError: if it is not.

    """
    if not isinstance(value, str):
        raise TypeError(f"a rule is made of texts, and {value!r} is none")
