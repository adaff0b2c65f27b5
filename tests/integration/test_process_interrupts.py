"""Ctrl-C in the task that owns a process: it ends what it owns, and leaves as itself.

Trio raises Ctrl-C in the main task, so each story is a program of its own. It presses
the key on itself when its child says, through a named pipe, how far it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A story that waits its child out, instead of ending it, is noticed by this.
GUARD = 60

BEGIN = """
import os, signal, sys, threading
import trio
from agentkernel.tools.process import ProcessLimits, open_process_group, run_command

PIPE, PRESSES = sys.argv[1], int(sys.argv[2])
# It says that it is there, and at each SIGTERM that it was told to go, and stays.
STUBBORN = f'''
exec 3>{PIPE}
trap "echo told >&3" TERM
echo $$ > {PIPE}.pid
echo begun >&3
while :; do sleep 0.05; done
'''

def press():
    with open(PIPE) as told:
        for _ in range(PRESSES):
            told.readline()
            os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press, daemon=True).start()
"""

COMMAND = """
async def main():
    command = f"echo $$ > {PIPE}.pid; echo begun > {PIPE}; exec sleep 1000"
    await run_command(command, limits=ProcessLimits(grace=30))
"""

STUBBORN_COMMAND = """
async def main():
    await run_command(STUBBORN, limits=ProcessLimits(grace=0.5))
"""

STUBBORN_GROUP = """
async def main():
    async with open_process_group(STUBBORN, limits=ProcessLimits(grace=0.5)):
        await trio.sleep_forever()
"""

END = """
try:
    trio.run(main)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def interrupt(story: str, presses: int, tmp_path: Path) -> str:
    """Run a program that presses the key; give back what it printed."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + story + END, str(pipe), str(presses)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def is_live(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in {b"Z", b"X"}


@pytest.mark.case("PROC-01")
@pytest.mark.clause("C11b")
def test_an_interrupted_command_is_ended_and_not_waited_out(tmp_path: Path) -> None:
    """Its reader is shielded: nobody but the call itself can end that."""
    assert interrupt(COMMAND, 1, tmp_path) == "interrupted\n"
    assert not is_live(int((tmp_path / "pipe.pid").read_text()))


@pytest.mark.case("PROC-06")
@pytest.mark.clause("C11b")
@pytest.mark.parametrize("story", [STUBBORN_GROUP, STUBBORN_COMMAND])
def test_a_second_interrupt_while_a_family_is_ended_leaves_nobody_alive(
    story: str, tmp_path: Path
) -> None:
    """An impatient person presses twice: SIGKILL still comes after the grace."""
    assert interrupt(story, 2, tmp_path) == "interrupted\n"
    assert not is_live(int((tmp_path / "pipe.pid").read_text()))
