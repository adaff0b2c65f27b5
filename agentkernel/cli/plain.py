"""Text of models, tools and files, made fit for a terminal: nothing in it commands.

What a model or a tool says may hold escape sequences that move the cursor, rename the
window, fill the clipboard or hide a command in an approval question. `Plain` lets
through what a person can see, line feeds and tabs, and nothing else. Pure functions.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final, final

__all__ = ["Plain", "escape_json", "fit", "one_line", "plain", "width"]

# A complete control sequence: the part of an escape that is worth hiding whole.
_SEQUENCE: Final = re.compile(r"(?:\x1b\[|\x9b)[0-?]{0,32}[ -/]{0,4}[@-~]")
# One that the next piece of text may complete.
_UNFINISHED: Final = re.compile(r"(?:\x1b|(?:\x1b\[|\x9b)[0-?]{0,32}[ -/]{0,4})\Z")
# Controls but tab and line feed; marks that turn the direction of text around;
# separators that some terminals take for a line feed; halves of surrogate pairs.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029"
    "\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


@final
class Plain:
    """Cleans text that comes in pieces; a sequence may be spread over several."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Take a piece and give what can be shown of it. Not a checkpoint."""
        text = _SEQUENCE.sub("", self._held + text)
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished.group() if unfinished else ""
        return _FORBIDDEN.sub("", text[: len(text) - len(self._held)])

    def end(self) -> str:
        """Give the rest, if the text ended within a sequence. Not a checkpoint."""
        rest, self._held = self._held, ""
        return _FORBIDDEN.sub("", rest)


def plain(text: str) -> str:
    """Clean a whole text."""
    return _FORBIDDEN.sub("", _SEQUENCE.sub("", text))


def one_line(text: str, most: int = 160) -> str:
    """Clean a text and make one line of it, of at most `most` characters."""
    line = " ".join(plain(text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[:most]}…"


def escape_json(line: str) -> str:
    """Write a line of JSON so that it is the same JSON and shows no control."""
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found.group()):04x}", line)


def width(text: str) -> int:
    """Count the columns that a clean line takes."""
    return sum(_columns(character) for character in text)


def fit(text: str, columns: int) -> str:
    """Cut a line at its front so that its end fits into so many columns."""
    kept = 0
    for index in range(len(text) - 1, -1, -1):
        kept += _columns(text[index])
        if kept > columns:
            return text[index + 1 :]
    return text


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
