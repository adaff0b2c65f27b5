"""Bounds what a hook says: long texts go to a file, and a preview stays.

Sits behind the judgement: a verdict goes in, and the same verdict comes out with no
text longer than `MAX_CHARS`. Whoever embeds the hooks gives the folder and cleans it
up; without one a text is cut. Either way the text says so at its end.

Invariants. What is passed on is bounded, whatever the disk does. A file is new, and
private to its owner.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, final

import msgspec
import trio

from .verdict import Verdict

__all__ = ["MAX_CHARS", "PREVIEW_CHARS", "Spill"]

# The longest text that is passed on as it is, and what is shown of a longer one.
MAX_CHARS: Final = 10_000
PREVIEW_CHARS: Final = 2_000
# Its own, so that tools that block in threads hold back no verdict.
_WRITERS: Final = 4


@final
class Spill:
    """Where long texts go; made by `Hooks`, shared by everything that it runs."""

    def __init__(self, folder: str | Path | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._limiter: trio.CapacityLimiter = trio.CapacityLimiter(_WRITERS)

    async def fitted(self, verdict: Verdict) -> Verdict:  # noqa: ASYNC910  # waits only if it must
        """Shorten every text of a verdict that is too long.

        A checkpoint only if something is written to a file.

        Cancellation:
          Passes through before a file is begun; one that is begun is finished.

        """
        texts = _texts(verdict)
        long = {text for text in texts if len(text) > MAX_CHARS}
        if not long:
            return verdict  # noqa: ASYNC910  # waits only if it must
        short: dict[str, str] = {}
        for text in sorted(long, key=texts.index):
            short[text] = await self._shortened(text)
        return _replaced(verdict, lambda text: short.get(text, text))  # noqa: ASYNC910  # waits only if it must

    async def _shortened(self, text: str) -> str:
        """Write one text to a file if there is a folder; else cut it.

        A checkpoint only if there is a folder.

        Cancellation:
          Passes through before the file is begun.

        """
        if self._folder is None:
            return _cut(text)  # noqa: ASYNC910  # waits only if it must
        write = partial(_write, self._folder, text)
        try:
            path = await trio.to_thread.run_sync(write, limiter=self._limiter)
        except OSError as error:
            return f"{_cut(text)}\n[It could not be kept: {error.strerror}]"  # noqa: ASYNC910  # the thread was waited for
        whole = f"[... {len(text)} characters in all; they are in {path} ...]"
        return f"{text[:PREVIEW_CHARS]}\n{whole}"


def _texts(verdict: Verdict) -> list[str]:
    """List what a verdict says to anybody, as often as it says it."""
    one = (verdict.reason, verdict.stop, verdict.updated_output, verdict.wake)
    said = [text for text in one if text is not None]
    return [*said, *verdict.texts, *verdict.messages]


def _replaced(verdict: Verdict, change: Callable[[str], str]) -> Verdict:
    """Change every text of a verdict; its counterpart is `_texts`."""
    stop, output, wake = verdict.stop, verdict.updated_output, verdict.wake
    return msgspec.structs.replace(
        verdict,
        reason=change(verdict.reason),
        stop=None if stop is None else change(stop),
        updated_output=None if output is None else change(output),
        texts=tuple(change(text) for text in verdict.texts),
        messages=tuple(change(text) for text in verdict.messages),
        wake=None if wake is None else change(wake),
    )


def _cut(text: str) -> str:
    left = len(text) - MAX_CHARS
    return f"{text[:MAX_CHARS]}\n[... {left} characters left out ...]"


def _write(folder: Path, text: str) -> Path:
    """Write a text to a new file; half a surrogate pair becomes a question mark."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder.absolute() / f"hook-{secrets.token_hex(8)}.txt"
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(number, "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(text)
    return path
