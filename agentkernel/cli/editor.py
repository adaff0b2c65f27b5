"""What is typed: bytes become keys, keys become a line. Pure, and only that.

The keyboard knows no key-up and no time, so a lone Esc looks like the beginning of an
arrow key. `KeyDecoder` says when it is in such a state; its caller waits for a moment
and then calls `expire`.
"""

from __future__ import annotations

import codecs
import re
from typing import Final, Literal, final

import msgspec

from .plain import plain

__all__ = ["Key", "KeyDecoder", "Line"]


class Key(msgspec.Struct, frozen=True):
    """One key, or a run of characters that were typed or pasted."""

    kind: Literal["text", "enter", "escape", "backspace", "kill", "word", "end", "stop"]
    text: str = ""


_PASTE_BEGIN: Final = "\x1b[200~"
_PASTE_END: Final = "\x1b[201~"
_IGNORED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)")
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_CONTROLS: Final = {
    "\r": Key("enter"),
    "\n": Key("enter"),
    "\x1b": Key("escape"),
    "\x7f": Key("backspace"),
    "\b": Key("backspace"),
    "\x15": Key("kill"),
    "\x17": Key("word"),
    "\x04": Key("end"),
    "\x03": Key("stop"),
}
_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")


@final
class KeyDecoder:
    """Reads a terminal's bytes as keys."""

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def waits(self) -> bool:
        """Whether what has come may be a lone Esc, or a sequence without its end."""
        return bool(self._held) and not self._held.startswith(_PASTE_BEGIN)

    def feed(self, data: bytes) -> list[Key]:
        """Take bytes and give the keys that are complete."""
        self._held += self._text.decode(data)
        keys: list[Key] = []
        while self._held:
            key, used = self._next()
            if not used:
                break
            self._held = self._held[used:]
            if key is not None:
                keys.append(key)
        return keys

    def expire(self) -> list[Key]:
        """Take what waits for what it looks like: Esc was pressed."""
        self._held = ""
        return [Key("escape")]

    def _next(self) -> tuple[Key | None, int]:
        """Find the first key and its length; no length if it is not complete."""
        held = self._held
        if held.startswith(_PASTE_BEGIN):
            end = held.find(_PASTE_END)
            if end < 0:
                return None, 0
            pasted = held[len(_PASTE_BEGIN) : end].replace("\r\n", "\n")
            text = plain(pasted.replace("\r", "\n").replace("\t", " "))
            return Key("text", text), end + len(_PASTE_END)
        ignored = _IGNORED.match(held)
        if ignored or _UNFINISHED.match(held):
            return None, ignored.end() if ignored else 0
        found = _CONTROL.search(held)
        end = found.start() if found else len(held)
        if not end:
            return _CONTROLS.get(held[0]), 1
        return Key("text", plain(held[:end])), end


@final
class Line:
    """The line that is being typed. Editing happens at its end alone."""

    def __init__(self) -> None:
        self.text: str = ""

    def press(self, key: Key) -> None:
        """Let a key change the line; a key that does not concern it is ignored."""
        match key.kind:
            case "text":
                self.text += key.text
            case "backspace":
                self.text = self.text[:-1]
            case "kill":
                self.text = ""
            case "word":
                self.text = re.sub(r"\S*\s*\Z", "", self.text)
            case _:
                return

    def take(self) -> str:
        """Give the line and begin a new one."""
        text, self.text = self.text, ""
        return text
