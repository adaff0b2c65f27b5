"""Durable events, told to a person: text as it streams, the rest as short notices.

Pure but for the display it is given. Whatever an event holds is cleaned first.
"""

from __future__ import annotations

import json
from typing import Protocol, final

from agentkernel import (
    AssistantReplied,
    ChunkStreamed,
    Ending,
    JsonObject,
    RetryScheduled,
    SessionEvent,
    TextBlock,
    TextChunk,
    ToolCalled,
    ToolReturned,
    TurnEnded,
)

from .plain import Plain, one_line, plain

__all__ = ["Display", "Transcript", "describe_call", "describe_ending"]


class Display(Protocol):
    """What a transcript is told to."""

    def text(self, text: str, /) -> None:
        """Show text of the model: a piece of a line, or more."""

    def end_line(self) -> None:
        """Begin a new line, unless the text so far has ended one."""

    def notice(self, line: str, /) -> None:
        """Show a line about anything else."""


@final
class Transcript:
    """Tells one session's events, in order, to one display."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._plain = Plain()

    def tell(self, event: SessionEvent) -> None:
        """Tell one event. Not a checkpoint."""
        fact = event.data
        match fact:
            case ChunkStreamed(chunk=TextChunk(text=text)):
                self._display.text(self._plain.feed(text))
            case AssistantReplied() | TurnEnded():
                self._end_line()
                if isinstance(fact, TurnEnded) and fact.reason.kind != "completed":
                    self._display.notice(f"[{describe_ending(fact.reason)}]")
            case ToolCalled():
                self._display.notice(
                    f"[tool {describe_call(fact.name, fact.arguments)}]"
                )
            case ToolReturned():
                self._display.notice(f"[{_describe_result(fact)}]")
            case RetryScheduled():
                self._end_line()
                error = one_line(fact.error.message)
                self._display.notice(f"[{error}; trying again in {fact.delay:.1f} s]")
            case _:
                return

    def _end_line(self) -> None:
        self._display.text(self._plain.end())
        self._display.end_line()


def describe_call(name: str, arguments: JsonObject, most: int = 200) -> str:
    """Say on one line which tool is called with what."""
    words = ", ".join(f"{k}={_value(v, most)}" for k, v in arguments.items())
    return one_line(f"{name}({words})", most)


def _value(value: object, most: int) -> str:
    """Write a value short, so that a long one does not hide the next."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    cut = len(text) - most // 2
    return text if cut <= 0 else f"{text[: most // 2]}… ({cut} more characters)"


def _describe_result(fact: ToolReturned) -> str:
    text = "".join(b.text for b in fact.message.content if isinstance(b, TextBlock))
    if fact.error is not None:
        return f"{plain(fact.message.name)} failed: {one_line(fact.error.message)}"
    lines = text.count("\n") + (not text.endswith("\n")) if text else 0
    first = one_line(text.lstrip().partition("\n")[0], 60)
    return f"{plain(fact.message.name)} gave {lines} lines: {first}"


def describe_ending(ending: Ending) -> str:
    """Say how a turn ended, in words."""
    match ending.kind:
        case "aborted":
            return "stopped"
        case "error" | "blocked":
            said = f" {ending.message}" if ending.message else ""
            code = f" ({ending.code})" if ending.code else ""
            return one_line(f"{ending.kind}{code}:{said}", 400)
        case _:
            return f"ended: {ending.kind}"
