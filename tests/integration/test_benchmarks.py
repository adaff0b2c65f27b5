"""The benchmarks run; what they measure is nobody's to assert."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_row_of_the_benchmarks_is_printed_with_its_goal() -> None:
    """A program that nobody runs rots: all rows, on sizes too small to say anything.

    The goals stand in the program, so that its output can be read by itself.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "benchmarks.run", "--tiny"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    paragraphs = done.stdout.replace("\n    ", " ").splitlines()
    goals = [line.split(": ")[0] for line in paragraphs if "reach" in line]
    assert goals == [
        "turn of three text chunks",
        "turn with one tool call",
        "one more chunk, followed",
        "turn of three text chunks, durable on SQLite",
        "turn 20 of a session",
        "3 agents at once, a turn",
        "an idle agent after a turn",
        "the same, as pages",
        "cancel to idle",
        "import agentkernel",
        *(
            f"resume, 123 events, {store}, for each"
            for store in ("memory", "JSONL", "SQLite")
        ),
    ]


def test_the_shell_can_be_measured_where_the_kernel_is_not_installed() -> None:
    """Other frameworks run in environments of their own, beside the same shell."""
    program = (
        "import sys, trio, benchmarks.measure, benchmarks.shell;"
        "trio.run(benchmarks.shell.bare_turns, 1);"
        "print('agentkernel' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
