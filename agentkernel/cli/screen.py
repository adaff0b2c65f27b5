"""The terminal of a chat: what streams, and one line below it that is being typed.

There are no cursor acrobatics, so it works on any terminal and at any width. Text
streams to where the cursor is. As soon as something is typed, a line of its own
shows it, and what streams is held back until that line is sent or emptied: typing
pauses the display, never the agent.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final, final

import trio

from .approval import Answer, describe_answers, read_answer
from .console import Console
from .editor import Key, Line
from .plain import fit

__all__ = ["Screen"]

_ERASE: Final = "\r\x1b[K"


@final
class Screen:
    """The display and the input line of one terminal; used from the Trio thread.

    Attributes:
      prompting: whether the input line is shown while it is empty.
      holding: whether typing holds back what streams.

    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._line = Line()
        self.prompting: bool = False
        self.holding: bool = False
        # Whether what streamed last ends within a line.
        self._in_line = False
        # Whether the cursor stands in the input line.
        self._drawn = False
        self._changed = trio.Event()
        self._answers: trio.MemorySendChannel[str] | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is typed."""
        return not self._line.text

    def text(self, text: str) -> None:
        """Show text of the model. Not a checkpoint."""
        if text:
            self._erase()
            self._console.put(text)
            self._in_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Begin a new line, unless there is one. Not a checkpoint."""
        if self._in_line:
            self.text("\n")

    def notice(self, line: str) -> None:
        """Show a line about anything else. Not a checkpoint."""
        self._erase()
        self.end_line()
        shown = f"\x1b[2m{line}\x1b[0m" if self._console.colours else line
        self._console.put(f"{shown}\n")
        self.draw()

    def press(self, key: Key) -> None:
        """Let a key change the line; `draw` shows it. Not a checkpoint."""
        self._line.press(key)
        self._tell()

    def take(self) -> str:
        """Take the line that was typed, and leave it on the screen."""
        self.draw()
        text = self._line.take()
        if self._drawn:
            self._console.put("\n")
            self._drawn = False
        self._tell()
        return text

    def draw(self) -> None:
        """Show the input line if it is to be shown. Not a checkpoint."""
        if not (self.prompting or self._line.text or self._answers):
            self._erase()
            return
        if not self._drawn:
            self.end_line()
        mark = "? " if self._answers else "> "
        try:
            columns = os.get_terminal_size(sys.stdout.fileno()).columns or 80
        except OSError:
            columns = 80
        typed = fit(self._line.text.replace("\n", "⏎"), max(columns - 4, 8))
        self._console.put(f"{_ERASE}{mark}{typed}")
        self._drawn = True

    def set_state(self, *, prompting: bool, holding: bool) -> None:
        """Say what the input line is for now. Not a checkpoint."""
        self.prompting, self.holding = prompting, holding
        if prompting or self._drawn:
            self.draw()
        self._tell()

    async def free(self) -> None:
        """Wait until typing does not hold back what streams.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        await trio.lowlevel.checkpoint()
        while self.holding and self._line.text:
            await self._changed.wait()

    async def ask(self, question: str, /, *, may_last: bool) -> Answer:
        """Ask whether something may be done; what is typed next is the answer.

        A line that was begun before the question is finished first: it must not
        become an answer by chance. Always a checkpoint.

        Cancellation:
          The question is taken back unanswered.

        """
        await trio.lowlevel.checkpoint()
        while self._line.text:
            await self._changed.wait()
        self.notice(f"[allow {question}? {describe_answers(may_last=may_last)}]")
        self._answers, answers = trio.open_memory_channel[str](1)
        try:
            self.draw()
            while True:
                answer = read_answer(await answers.receive(), may_last=may_last)
                if answer is not None:
                    return answer
                keys = "y, n or a" if may_last else "y or n"
                self.notice(f"[please answer {keys}; Esc stops the turn]")
        finally:
            self._answers = None
            self._line.text = ""
            self.draw()
            self._tell()

    def answer(self, text: str) -> bool:
        """Hand a line to the question that stands; false if there is none."""
        if self._answers is None:
            return False
        # Of two lines in one burst the first is the answer.
        with suppress(trio.WouldBlock):
            self._answers.send_nowait(text)
        return True

    def _erase(self) -> None:
        if self._drawn:
            self._console.put(_ERASE)
            self._drawn = False

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
