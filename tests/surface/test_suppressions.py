"""A check that is switched off says which one, and why."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("agentkernel", "benchmarks", "examples", "tests")

START = re.compile(r"#\s*(?:type:\s*ignore|noqa|pyright:\s*ignore)\b", re.IGNORECASE)
WITH_CODE = re.compile(
    r"#\s*(?:(?:type|pyright):\s*ignore\[[\w-]+(?:,\s*[\w-]+)*\]"
    r"|noqa:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*)"
)
FEWEST_LETTERS_OF_A_REASON = 8


def complaint(comment: str) -> str | None:
    """Say what is wrong with a comment, if it switches a check off."""
    if not START.search(comment):
        return None
    rest = WITH_CODE.sub("", comment)
    if START.search(rest):
        return "names no code"
    if sum(map(str.isalpha, rest)) < FEWEST_LETTERS_OF_A_REASON:
        return "gives no reason"
    return None


def comments(path: Path) -> Iterator[tuple[int, str]]:
    with io.StringIO(path.read_text("utf-8")) as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def test_every_suppression_has_a_code_and_a_reason() -> None:
    complaints = [
        f"{path.relative_to(ROOT)}:{line}: {comment} {why}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, comment in comments(path)
        if (why := complaint(comment)) is not None
    ]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("comment", "why"),
    [
        ("# a remark on noqa", None),
        ("# type: ignore", "names no code"),
        ("# noqa", "names no code"),
        ("# pyright: ignore", "names no code"),
        ("# noqa: BLE001", "gives no reason"),
        ("# type: ignore[misc]  # why not", "gives no reason"),
        ("# noqa: BLE001, TRY400 - the boundary of a turn", None),
        ("# type: ignore[misc]  # pyright: ignore[reportAny]", "gives no reason"),
        (
            "# type: ignore[misc]  # pyright: ignore[reportAny]  # the port is loose",
            None,
        ),
    ],
)
def test_complaint_tells_good_from_bad(comment: str, why: str | None) -> None:
    assert complaint(comment) == why
