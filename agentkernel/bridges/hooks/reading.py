"""Reads settings of hooks from JSON, and refuses with the place of what is wrong."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal, cast, final

import agentkernel as ak

from .hook import (
    BLOCKING,
    CODEX_EVENTS,
    CODEX_FOREIGN,
    EVENTS,
    FOREIGN,
    SECONDS,
    Hook,
    HookEvent,
)
from .matcher import Dialect, Matcher

__all__ = ["HookSettingsError", "SettingsReader", "paired"]

_TOOL_EVENTS: Final = {
    *("PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"),
}
_PROMPT_SECONDS: Final = 30.0
_END_DEFAULT: Final = 1.5
# About thirty years.
_LONGEST: Final = 1e9
# Nobody waits longer than this for an agent's end.
_END_SECONDS: Final = 60.0
_EVENTS: Final = {"claude": EVENTS, "codex": CODEX_EVENTS}
_FOREIGN: Final = {"claude": FOREIGN, "codex": CODEX_FOREIGN}
_COMMON: Final = ("type", "command", "timeout", "statusMessage", "async")
_OURS: Final = ("onFailure", "on_failure")
_KNOWN: Final[dict[Dialect, frozenset[str]]] = {
    "claude": frozenset({*_COMMON, *_OURS, *("args", "shell", "if")})
    | {"once", "asyncRewake"},
    "codex": frozenset({*_COMMON, *_OURS, "timeoutSec", "commandWindows"}),
}


class HookSettingsError(ak.AgentKernelError):
    """If settings of hooks cannot be used.

    Attributes:
      where: the file, if there is one, and the path of the value in it.
      problem: what is wrong with it.

    """

    def __init__(self, where: str, problem: str) -> None:
        self.where = where
        self.problem = problem
        super().__init__(f"{where}: {problem}")


class Twice(dict[str, object]):
    """An object of JSON that has some keys more than once: what was meant is unknown."""

    keys_twice: frozenset[str] = frozenset()


def paired(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Make an object for `json.loads`, and remember what stood there twice."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    twice = Twice(made)
    names = [name for name, _ in pairs]
    twice.keys_twice = frozenset(name for name in made if names.count(name) > 1)
    return twice


@final
class SettingsReader:
    """Walks one file's JSON and knows where it is."""

    def __init__(self, source: str, dialect: Dialect) -> None:
        self.source = source
        self._dialect: Dialect = dialect
        self.ignored: list[str] = []

    def fail(self, where: str, problem: str) -> HookSettingsError:
        """Make the error of a place."""
        return HookSettingsError(
            f"{self.source}: {where}" if where else self.source, problem
        )

    def as_object(
        self, value: object, where: str, *, known: Collection[str] | None = None
    ) -> Mapping[str, object]:
        """Expect an object that has no key twice, of those that are known."""
        if not isinstance(value, Mapping):
            raise self.fail(where, f"must be an object, not {_kind(value)}")
        if isinstance(value, Twice):
            for key in sorted(value.keys_twice):
                if known is None or key in known:
                    place = f"{where}.{key}" if where else key
                    raise self.fail(place, "is there twice")
        return cast("Mapping[str, object]", value)

    def root(self, value: object) -> Mapping[str, object]:
        """Read the whole: what is not about hooks is left alone."""
        root = self.as_object(value, "", known=("hooks", "disableAllHooks"))
        for key in root:
            if key in _EVENTS[self._dialect]:
                raise self.fail(key, "events are named under 'hooks'")
        off = root.get("disableAllHooks", False)
        if not isinstance(off, bool):
            raise self.fail("disableAllHooks", f"must be true or false, not {off!r}")
        return root

    def items(self, value: object, where: str) -> Iterator[tuple[object, str]]:
        """Expect an array, and yield its items with their places."""
        if not isinstance(value, list | tuple):
            raise self.fail(where, f"must be an array, not {_kind(value)}")
        for number, item in enumerate(cast("Iterable[object]", value)):
            yield item, f"{where}[{number}]"

    def text(self, value: object, where: str) -> str:
        """Expect a text that is not empty."""
        if not isinstance(value, str) or not value.strip():
            raise self.fail(where, f"must be a text, not {_kind(value)}")
        return self._speakable(value, where)

    def _speakable(self, text: str, where: str) -> str:
        """Refuse what no process can be told."""
        if "\0" in text:
            raise self.fail(where, "holds a NUL character")
        return text

    def hooks(self, value: object) -> Iterator[Hook]:
        """Read the events."""
        for event, groups in self.as_object(value, "hooks").items():
            where = f"hooks.{event}"
            if event in _FOREIGN[self._dialect]:
                self.ignored.append(event)
                continue
            events = _EVENTS[self._dialect]
            if event not in events:
                known = ", ".join(events)
                raise self.fail(where, f"there is no such event; known: {known}")
            for group, place in self.items(groups, where):
                yield from self.group(event, group, place)

    def group(self, event: HookEvent, value: object, where: str) -> Iterator[Hook]:
        """Read a matcher and its hooks."""
        group = self.as_object(value, where)
        for key in group:
            if key not in {"matcher", "hooks"}:
                raise self.fail(f"{where}.{key}", "there is no such setting of a group")
        text = group.get("matcher")
        if text is not None and not isinstance(text, str):
            raise self.fail(f"{where}.matcher", f"must be a text, not {_kind(text)}")
        try:
            matcher = Matcher(text, self._dialect)
        except ValueError as error:
            raise self.fail(f"{where}.matcher", str(error)) from None
        if "hooks" not in group:
            raise self.fail(where, "has no hooks")
        for item, place in self.items(group["hooks"], f"{where}.hooks"):
            yield self.hook(event, matcher, self.as_object(item, place), place)

    def hook(
        self,
        event: HookEvent,
        matcher: Matcher,
        value: Mapping[str, object],
        where: str,
    ) -> Hook:
        """Read one hook."""
        kind = value.get("type")
        if kind != "command":
            raise self.fail(
                f"{where}.type", f"only 'command' hooks can be run, not {kind!r}"
            )
        for key in value:
            if key not in _KNOWN[self._dialect]:
                raise self.fail(f"{where}.{key}", "there is no such setting of a hook")
        args = value.get("args")
        condition = value.get("if")
        if condition is not None:
            condition = self.text(condition, f"{where}.if")
            if event not in _TOOL_EVENTS:
                raise self.fail(f"{where}.if", f"is for tool events, not for {event}")
        shell = value.get("shell")
        if shell is not None and shell != "bash":
            raise self.fail(f"{where}.shell", f"must be 'bash', not {shell!r}")
        rewakes = self._flag(value, "asyncRewake", where)
        detached = rewakes or self._flag(value, "async", where)
        on_failure = self._on_failure(event, value, where)
        if detached and on_failure == "block":
            raise self.fail(where, "nothing waits for it, so it cannot block")
        return Hook(
            event,
            self.text(value.get("command"), f"{where}.command"),
            matcher,
            None if args is None else self._args(args, f"{where}.args"),
            "bash" if shell else None,
            self._seconds(event, value, where, detached=detached),
            condition,
            on_failure,
            once=self._flag(value, "once", where),
            # An agent that ends waits for what it has still to say.
            detached=detached and event != "SessionEnd",
            rewakes=rewakes and event != "SessionEnd",
            dialect=self._dialect,
        )

    def _flag(self, value: Mapping[str, object], key: str, where: str) -> bool:
        flag = value.get(key, False)
        if not isinstance(flag, bool):
            raise self.fail(f"{where}.{key}", f"must be true or false, not {flag!r}")
        return flag

    def _args(self, value: object, where: str) -> tuple[str, ...]:
        words: list[str] = []
        for item, place in self.items(value, where):
            if not isinstance(item, str):
                raise self.fail(place, f"must be a text, not {_kind(item)}")
            words.append(self._speakable(item, place))
        return tuple(words)

    def _seconds(
        self,
        event: HookEvent,
        settings: Mapping[str, object],
        where: str,
        *,
        detached: bool,
    ) -> float:
        key = "timeoutSec" if "timeoutSec" in settings else "timeout"
        value, where = settings.get(key), f"{where}.{key}"
        if value is None and event == "SessionEnd":
            return _END_DEFAULT
        if value is None:
            hurried = event == "UserPromptSubmit" and self._dialect == "claude"
            return _PROMPT_SECONDS if hurried and not detached else SECONDS
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(where, f"must be a number of seconds, not {value!r}")
        if not 0 < value < _LONGEST:
            raise self.fail(
                where, f"must be more than 0 seconds, and less than {_LONGEST:g}"
            )
        return (
            min(float(value), _END_SECONDS) if event == "SessionEnd" else float(value)
        )

    def _on_failure(
        self, event: HookEvent, value: Mapping[str, object], where: str
    ) -> Literal["continue", "block"]:
        for key in ("onFailure", "on_failure"):
            choice = value.get(key, "continue")
            if choice == "block" and event in BLOCKING:
                return "block"
            if choice == "block":
                raise self.fail(f"{where}.{key}", f"{event} cannot block anything")
            if choice != "continue":
                raise self.fail(
                    f"{where}.{key}", f"must be 'continue' or 'block', not {choice!r}"
                )
        return "continue"


def _kind(value: object) -> str:
    """Name a value as JSON would."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "an array"
    return repr(value)
