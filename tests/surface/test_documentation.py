"""The code in the documentation runs, as a reader would run it.

A fence says what becomes of its block: `python` runs it as a program in an empty
folder, with warnings as errors; `python test` hands it to pytest as a test module, with
the settings that `docs/testing.md` tells readers to write; `python no-run` only
compiles it.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^```(?P<info>python[^\n]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL
)
SETTINGS = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A guard against a block that hangs, far above what any needs.
LONGEST = 120


class Block(NamedTuple):
    where: str
    how: str
    code: str


def blocks() -> list[Block]:
    found: list[Block] = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text("utf-8")
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            where = f"{path.relative_to(ROOT)}:{line}"
            how = match["info"].removeprefix("python").strip()
            found.append(Block(where, how, match["code"]))
    return found


BLOCKS = blocks()


def settings() -> str:
    """Take pytest's settings from the guide to testing."""
    found = SETTINGS.findall((ROOT / "docs" / "testing.md").read_text("utf-8"))
    assert len(found) == 1, "docs/testing.md shows the settings of pytest once"
    text: str = found[0]
    return text


def run(block: Block, folder: Path, *arguments: str) -> None:
    # Blank lines in front, so that a traceback shows the line of the document.
    lines_before = int(block.where.rpartition(":")[2])
    (folder / "test_block.py").write_text("\n" * lines_before + block.code, "utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments, "test_block.py"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    assert done.returncode == 0, f"{block.where}\n{done.stdout}"


@pytest.mark.parametrize("block", BLOCKS, ids=[block.where for block in BLOCKS])
def test_block_works(block: Block, tmp_path: Path) -> None:
    match block.how:
        case "":
            run(block, tmp_path)
        case "test":
            (tmp_path / "pyproject.toml").write_text(settings(), "utf-8")
            run(block, tmp_path, "-m", "pytest", "-q")
        case "no-run":
            compile(block.code, block.where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case _:
            pytest.fail(f"{block.where}: `python {block.how}` is no kind of block")
