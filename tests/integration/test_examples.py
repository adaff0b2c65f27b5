"""Every example runs by itself, offline, with warnings as errors, and says something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# A guard against one that hangs, far above what any needs.
LONGEST = 120
# What the reader of an example is to see at the end.
LAST = {
    "jobs": "> Good, the build is done.",
    "remote_subagent": "It can speak.",
    "subagents": "sessions in the store: 4",
    "workflow": "All is fine. (1 agent was run)",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_example_runs(example: Path, tmp_path: Path) -> None:
    """A reader's first run: from an empty folder, as a program."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert lines[-1] == LAST.get(example.stem, lines[-1])
    assert not done.stderr
