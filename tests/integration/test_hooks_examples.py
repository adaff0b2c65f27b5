"""The examples of approvals and hooks run, offline, and show what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        (
            "approvals.py",
            [
                "may write_note run with {'name': 'b'}? yes, always",
                "a second client is told: allowed",
                "write_note: c is written",
                "delete_note: The call was denied: notes are kept",
            ],
        ),
        (
            "hooks.py",
            [
                "to the model: Clean up.",
                "to the model: The project folder is …/hooks",
                "run_command: ran ls",
                "run_command: The call was denied: this project removes nothing",
                "to the model: Say thank you first.",
                "  for you: it was polite in the end",
            ],
        ),
    ],
)
def test_example_runs(name: str, shows: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    lines = iter(done.stdout.splitlines())
    missing = [line for line in shows if line not in lines]
    assert not missing, done.stdout
