"""Plays the demo: runs the command line in a pseudo-terminal and checks what it did.

Started by `scripts/demo`, in the environment that script made. Needs nothing but the
standard library. It ends with status 0 only if everything that it announces has
happened, as told by the session's own log.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STATE = ROOT / ".demo"
COMMAND = str(Path(sys.executable).with_name("agentkernel"))
STORE = ["--store", str(STATE / "sessions.db")]
# A short prompt: the toy loses its way in a long one.
SYSTEM = ["--system", "You are a helpful assistant. Answer in plain English."]
AT_WORK = [*STORE, *SYSTEM, "--model", "local", "--session", "demo"]

ESC = b"\x1b"
CTRL_C = b"\x03"
# A toy seldom finds an end: its answers are often cut by their greatest length.
FINE = {"completed", "max-tokens"}
READ = "Read README.md and tell me what this project is."
STORY = "Tell me a long story about a whale."
HELLO = "Say hello."

REAL = (
    "export OPENAI_API_KEY=...",
    "agentkernel chat --model openai:gpt-5-mini",
)


class Failed(Exception):
    """If something that the demo promises did not happen."""


class Terminal:
    """A program in a pseudo-terminal; what it prints is shown as it comes.

    If the demo itself is on a terminal, the keys pressed there reach the program.
    """

    def __init__(self, argv: list[str]) -> None:
        self.seen = ""
        self.keys = 0
        self._closed = False
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            try:
                os.execv(argv[0], argv)  # noqa: S606  # no shell is wanted
            finally:
                os._exit(127)

    def wait_for(self, pattern: str, seconds: float, since: int = 0) -> int:
        """Wait until the output behind `since` matches; give the end of the match."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.plain[since:], re.DOTALL)):
            if self._closed:
                raise Failed(f"the program ended before it showed {pattern!r}")
            if time.monotonic() > deadline:
                raise Failed(f"{pattern!r} did not appear within {seconds:.0f} s")
            self.pump(0.1)
        return since + found.end()

    @property
    def plain(self) -> str:
        """What was printed, without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]|\r", "", self.seen)

    def pump(self, seconds: float) -> None:
        """Carry what is there between the two terminals, for at most this long."""
        ends: list[int] = [self._fd]
        if sys.stdin.isatty():
            ends.append(sys.stdin.fileno())
        ready, _, _ = select.select(ends, [], [], seconds)
        if self._fd in ready:
            try:
                output = os.read(self._fd, 4096)
            except OSError:  # the other side of a pseudo-terminal has gone
                output = b""
            self._closed = not output
            before = len(self.plain)
            self.seen += output.decode("utf-8", "replace")
            if not sys.stdout.isatty():
                output = self.plain[before:].encode()
            sys.stdout.buffer.write(output)
            sys.stdout.buffer.flush()
        if len(ready) > (self._fd in ready):
            self.keys += 1
            os.write(self._fd, os.read(sys.stdin.fileno(), 1024))

    def press(self, keys: bytes) -> None:
        """Press keys, as a person would."""
        os.write(self._fd, keys)

    def finish(self, seconds: float) -> int:
        """Wait until the program has ended; give its status."""
        deadline = time.monotonic() + seconds
        while not self._closed:
            if time.monotonic() > deadline:
                raise Failed(f"the program did not end within {seconds:.0f} s")
            self.pump(0.1)
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return os.waitstatus_to_exitcode(status)

    def leave(self) -> None:
        """Press Ctrl-C until the program ends: the first may still meet a turn."""
        for _ in range(3):
            self.press(CTRL_C)
            with contextlib.suppress(Failed):
                self.finish(10)
                return
        raise Failed("the program did not leave on Ctrl-C")

    def close(self) -> None:
        """Let go of the program, whatever it is doing."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)


@contextlib.contextmanager
def open_terminal(*argv: str) -> Iterator[Terminal]:
    print(f"\n$ agentkernel {' '.join(map(_quote, argv))}", flush=True)
    terminal = Terminal([COMMAND, *argv])
    before = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    try:
        if before is not None:
            tty.setcbreak(sys.stdin)
        yield terminal
    finally:
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        terminal.close()


def _quote(word: str) -> str:
    return f'"{word}"' if " " in word else word.replace(f"{ROOT}/", "")


def say(text: str) -> None:
    print(f"\n\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)


def check(holds: object, what: str) -> None:
    if not holds:
        raise Failed(what)
    print(f"  ok: {what}", flush=True)


def export() -> list[dict]:
    """Read the session's log as the command line exports it."""
    done = subprocess.run(  # noqa: S603  # the arguments are ours
        [COMMAND, "sessions", *STORE, "export", "demo"],
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode:
        raise Failed(f"the session cannot be exported: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.strip()]


def facts(events: list[dict], kind: str) -> list[dict]:
    return [event["data"] for event in events if event["type"] == kind]


def how_it_ended(events: list[dict]) -> str:
    endings = [end["reason"]["kind"] for end in facts(events, "turn/end")]
    return endings[-1] if endings else "not at all"


def ask_for_a_file() -> None:
    say("1. The agent is asked something that it can only know from a file here.")
    with open_terminal("run", READ, *AT_WORK) as terminal:
        terminal.finish(120)
    events = export()
    check(how_it_ended(events) in FINE, "the turn ended well")
    calls, results = facts(events, "tool/call"), facts(events, "tool/result")
    messages = facts(events, "assistant/message")
    check(calls and results and len(messages) > 1, "a tool ran, and the model went on")
    call, result = calls[0], results[0]
    text = "".join(b.get("text", "") for b in result["message"]["content"])
    print(
        f"\nThe log says: tool {call['name']} ran with {json.dumps(call['arguments'])}"
    )
    print(f"and gave {len(text.encode())} bytes, beginning {text.splitlines()[0]!r}.")
    first_line = (ROOT / "README.md").read_text("utf-8").splitlines()[0]
    check(first_line in text, "these are the bytes of README.md")
    asked, answered = [m["usage"]["input_tokens"] for m in messages[:2]]
    print(
        f"The engine read {asked} tokens in the first request, {answered} in the next."
    )
    check(answered > asked + 50, "the bytes of the tool were in the next request")
    pieces = len(facts(events, "assistant/chunk"))
    check(pieces > 1, f"the answer came in {pieces} pieces, live")


def stop_in_mid_sentence() -> None:
    say("2. A long answer, stopped by Esc in mid-sentence.")
    if sys.stdin.isatty():
        print("Press Esc when you have read enough; otherwise it is pressed for you.")
    with open_terminal("chat", *AT_WORK) as terminal:
        terminal.wait_for(r".", 60)
        typed = len(terminal.plain)
        terminal.press(STORY.encode() + b"\r")
        told = terminal.wait_for(re.escape(STORY), 30, typed)
        terminal.wait_for(r"\w.{60,}", 60, told)
        # A person has some lines of time; the answer must not end before that.
        while sys.stdin.isatty() and not terminal.keys:
            if len(terminal.plain) > told + 500:
                break
            terminal.pump(0.1)
        if not terminal.keys:
            terminal.press(ESC)
        terminal.wait_for(r"(?i)stopped|aborted", 30, told)
        terminal.leave()
    events = export()
    check(how_it_ended(events) == "aborted", "the log says that the turn was aborted")
    kept = facts(events, "assistant/message")[-1]
    words = "".join(b.get("text", "") for b in kept["message"]["content"])
    check(kept.get("interrupted"), "what had been said is kept, marked as interrupted")
    print(f"  its last words: {words[-60:]!r}")


def resume() -> None:
    say("3. Another process finds the session again and goes on with it.")
    before = export()
    with open_terminal("run", HELLO, *AT_WORK) as terminal:
        terminal.finish(120)
    after = export()
    check(how_it_ended(after) in FINE, "the turn ended well")
    check(
        [e["seq"] for e in after[: len(before)]] == [e["seq"] for e in before],
        f"the {len(before)} events of before are still there",
    )
    turns = [e["turn"] for e in facts(after, "turn/end")]
    check(turns == [1, 2, 3], "the new turn is the third of the same session")


def main() -> int:
    shutil.rmtree(STATE, ignore_errors=True)
    STATE.mkdir(mode=0o700)
    os.chdir(ROOT)
    print("The model of this demo is a toy: 135 million parameters, on one core. It is")
    print(
        "here so that nothing needs a key. It streams and stops like any other model,"
    )
    print("and the tools are real, but do not mind what it says.")
    try:
        ask_for_a_file()
        stop_in_mid_sentence()
        resume()
    except Failed as failure:
        print(f"\ndemo: failed: {failure}", file=sys.stderr)
        return 1
    say("All of it happened. With a real provider it is two lines:")
    for line in REAL:
        print(f"    {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
