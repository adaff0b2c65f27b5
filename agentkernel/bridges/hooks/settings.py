"""The settings of hooks: all hooks of one file or of several, in order.

The form is that of Claude Code's settings files, or of Codex's `hooks.json`: events,
matcher groups, command hooks. Events of those programs which have no place here are kept by name in
`HookSettings.ignored`; what would be run and cannot be (a hook of another type) is an
error, since a gate that is left out is open.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import msgspec

from .hook import Hook, HookEvent
from .matcher import Dialect
from .reading import HookSettingsError, SettingsReader, paired

__all__ = ["HookSettings", "load_settings"]


class HookSettings(msgspec.Struct, frozen=True):
    """All hooks, in the order of the settings.

    Attributes:
      hooks: of every event.
      ignored: events that the settings name and that never happen here.

    """

    hooks: tuple[Hook, ...] = ()
    ignored: tuple[str, ...] = ()

    def of(self, event: HookEvent) -> tuple[Hook, ...]:
        """List the hooks of an event, in order."""
        return tuple(hook for hook in self.hooks if hook.event == event)

    @classmethod
    def from_json(
        cls,
        value: str | bytes | Mapping[str, object],
        *,
        source: str = "settings",
        dialect: Dialect = "claude",
    ) -> HookSettings:
        """Read settings: JSON, or what was decoded from it.

        Keys beside `hooks` and `disableAllHooks` are left alone, but for names of
        events: they are about other things. Not a checkpoint.

        Args:
          value: an object with the key `hooks`.
          source: named in errors.
          dialect: `codex` for the form of its `hooks.json`.

        Raises:
          HookSettingsError: if something in it cannot be used.

        """
        if isinstance(value, str | bytes):
            try:
                value = cast(
                    "Mapping[str, object]", json.loads(value, object_pairs_hook=paired)
                )
            except (ValueError, RecursionError) as error:
                raise HookSettingsError(source, f"no JSON: {error}") from None
        reader = SettingsReader(source, dialect)
        root = reader.root(value)
        hooks = tuple(reader.hooks(root.get("hooks", {})))
        if root.get("disableAllHooks"):
            return cls()
        return cls(hooks, tuple(reader.ignored))

    def joined(self, other: HookSettings) -> HookSettings:
        """Put another file's hooks behind these: all of them run."""
        ignored = dict.fromkeys((*self.ignored, *other.ignored))
        return HookSettings((*self.hooks, *other.hooks), tuple(ignored))


def load_settings(*paths: str | Path, dialect: Dialect = "claude") -> HookSettings:
    """Read settings files in order; hooks of all of them run. A missing file is none.

    All are of one dialect; `HookSettings.joined` puts those of two together.

    It reads from the disk: call it before the event loop, or in a thread.

    Raises:
      HookSettingsError: if a file cannot be read or used.

    """
    settings = HookSettings()
    for path in paths:
        try:
            text = Path(path).read_bytes()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise HookSettingsError(str(path), str(error)) from None
        read = HookSettings.from_json(text, source=str(path), dialect=dialect)
        settings = settings.joined(read)
    return settings
