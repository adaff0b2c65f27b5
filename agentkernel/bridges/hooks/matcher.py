"""Which hooks an event concerns: the grammar of matchers, and of `if` conditions.

Pure. A matcher is held against the event's subject (a tool's name, a session's
source). Claude Code reads it as names or as an expression, Codex always as an
expression. `if` is a permission rule, `Tool` or `Tool(pattern)`, about one call.
"""

from __future__ import annotations

import fnmatch
import json
import re
from typing import Final, Literal, TypeAlias, final

import agentkernel as ak

__all__ = ["Dialect", "Matcher", "condition_holds"]

# Whose settings and protocol a hook is written for.
Dialect: TypeAlias = Literal["claude", "codex"]

# A matcher of these characters lists exact names; any other is an expression.
_NAMES: Final = re.compile(r"[A-Za-z0-9_\-, |]*")
_RULE: Final = re.compile(r"(?P<tool>[^()\s]+)\s*(?:\((?P<pattern>.*)\))?", re.DOTALL)
# The argument that a pattern is about, the first that a call has.
_SUBJECTS: Final = (
    "command",
    "file_path",
    "path",
    "notebook_path",
    "url",
    "query",
    "pattern",
)


@final
class Matcher:
    """A matcher as the settings wrote it; equal to another of the same text.

    Nothing, `""` and `"*"` fit every subject. Letters, digits, `_`, `-`, spaces, `,`
    and `|` alone list exact names. Anything else is a regular expression that is
    looked for anywhere in the subject; for Codex, names are expressions too.
    """

    __slots__ = ("_names", "_regex", "dialect", "text")

    def __init__(self, text: str | None, dialect: Dialect = "claude") -> None:
        """Compile it.

        Raises:
          ValueError: if it is meant as an expression and is none, or as names and has
            none.

        """
        self.text: str | None = text
        self.dialect: Dialect = dialect
        self._names: frozenset[str] | None = None
        self._regex: re.Pattern[str] | None = None
        if text is None or text.strip() in {"", "*"}:
            return
        if dialect == "claude" and _NAMES.fullmatch(text):
            parts = (part.strip() for part in re.split(r"[,|]", text))
            self._names = frozenset(part for part in parts if part)
            if not self._names:
                raise ValueError(f"{text!r} names nothing, so nothing would fit it")
            return
        try:
            self._regex = re.compile(text)
        except (re.error, RecursionError, OverflowError) as error:
            shown = f"{text:.100}"
            raise ValueError(f"{shown!r} is no regular expression: {error}") from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Matcher):
            return False
        return (self.text, self.dialect) == (other.text, other.dialect)

    def __hash__(self) -> int:
        return hash((self.text, self.dialect))

    def __repr__(self) -> str:
        return f"Matcher({self.text!r}, {self.dialect!r})"

    def fits(self, subject: str | None) -> bool:
        """Whether an event of this subject is meant; one without fits every matcher."""
        if subject is None:
            return True
        if self._names is not None:
            return subject in self._names
        return self._regex is None or self._regex.search(subject) is not None


def condition_holds(condition: str, name: str, arguments: ak.JsonObject) -> bool:
    """Whether an `if` lets its hook run for a call; one that cannot be read does.

    The pattern is a glob for the whole text of the call's main argument; `x:*` is
    an old way to write `x*`.
    """
    rule = _RULE.fullmatch(condition.strip())
    if rule is None:
        return True
    if not fnmatch.fnmatchcase(name, rule["tool"]):
        return False
    pattern = rule["pattern"]
    if pattern is None:
        return True
    if pattern.endswith(":*"):
        pattern = f"{pattern[:-2]}*"
    return fnmatch.fnmatchcase(_subject(arguments), pattern)


def _subject(arguments: ak.JsonObject) -> str:
    for key in _SUBJECTS:
        value = arguments.get(key)
        if isinstance(value, str):
            return value
    return json.dumps(arguments)
