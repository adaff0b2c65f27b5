"""Drives the command line as a child: over pipes, or in a pseudo-terminal.

Waiting is for output, never for a time. The limits here only end a test that would
hang for ever.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

ROOT = Path(__file__).parents[2]
LONGEST = 60

# Takes the terminal, if there is one, and becomes the command line.
PROGRAM = """
import fcntl, sys, termios
if sys.stdin.isatty():
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from agentkernel.cli import main
{extra}
sys.exit(main({arguments}))
"""


class Command:
    """The command line in a folder of its own, with a model that follows a script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = folder / "sessions.db"
        # In the environment of everything that is started: what is left can be found.
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            "NO_COLOR": "1",
            "AGENTKERNEL_STORE": str(self.store),
            "CLI_TEST_MARK": self.mark,
        }

    def script(
        self,
        *answers: Sequence[object],
        default: Sequence[object] = ("ok",),
        delay: float = 0.0,
    ) -> str:
        """Write a script; give what `--model` takes."""
        path = self.folder / f"script-{uuid.uuid4().hex[:8]}.json"
        path.write_text(
            json.dumps({"answers": answers, "default": default, "delay": delay})
        )
        return f"scripted:{path}"

    def program(self, extra: str = "", arguments: str = "") -> list[str]:
        """Make the words that start it, with code of the test's own before it."""
        text = PROGRAM.format(extra=extra, arguments=arguments)
        return [sys.executable, "-X", "faulthandler", "-c", text]

    async def run(
        self, *arguments: str, extra: str = "", call: str = "", stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run it over pipes to its end."""
        with trio.fail_after(LONGEST):
            return await trio.run_process(
                [*self.program(extra, call), *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=stdin,
                capture_stdout=True,
                capture_stderr=True,
                check=False,
            )

    @asynccontextmanager
    async def start(
        self, *arguments: str, extra: str = "", call: str = ""
    ) -> AsyncGenerator[trio.Process]:
        """Start it over pipes; kill it at the end if it is still there."""
        process = await trio.lowlevel.open_process(
            [*self.program(extra, call), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            with trio.fail_after(LONGEST):
                yield process
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    @asynccontextmanager
    async def terminal(
        self, *arguments: str, extra: str = "", call: str = ""
    ) -> AsyncGenerator[Terminal]:
        """Start it in a terminal; kill it at the end if it is still there."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        process = await trio.lowlevel.open_process(
            [*self.program(extra, call), *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        terminal = Terminal(ours, process)
        try:
            with trio.fail_after(LONGEST):
                yield terminal
        except trio.TooSlowError as error:
            error.add_note(f"the terminal showed:\n{terminal.plain}")
            raise
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            terminal.hang_up()

    def left_over(self) -> list[int]:
        """Find the processes that carry the mark and still live."""
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                environment = (entry / "environ").read_bytes()
                if self.mark.encode() in environment and state not in "ZX":
                    found.append(int(entry.name))
        return found


class Terminal:
    """A pseudo-terminal with the command line in it."""

    def __init__(self, descriptor: int, process: trio.Process) -> None:
        self._descriptor = descriptor
        self.process = process
        self.raw = ""
        # Where the next `wait_for` begins to look, in the plain output.
        self.position = 0

    @property
    def plain(self) -> str:
        """What was printed, without control sequences."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\r", "", self.raw)

    async def wait_for(self, text: str) -> None:
        """Wait until the output holds this text, behind what was waited for before."""
        while (found := self.plain.find(text, self.position)) < 0:
            if not await self._read():
                raise AssertionError(f"{text!r} never came:\n{self.plain}")
        self.position = found + len(text)

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def say(self, line: str) -> None:
        """Type a line and press Enter."""
        self.press(f"{line}\r")

    def attributes(self) -> list[int | list[bytes | int]]:
        """The terminal's own settings."""
        return termios.tcgetattr(self._descriptor)

    def cook(self) -> None:
        """Set the terminal as a shell does while its job is suspended."""
        mode = self.attributes()
        assert isinstance(mode[3], int)
        mode[3] |= termios.ICANON | termios.ECHO
        termios.tcsetattr(self._descriptor, termios.TCSANOW, mode)

    async def finish(self) -> int:
        """Read to the end, and give the exit code."""
        while await self._read():
            pass
        return await self.process.wait()

    def hang_up(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    async def _read(self) -> bool:
        await trio.lowlevel.wait_readable(self._descriptor)
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:  # every holder of the other side has gone
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)
