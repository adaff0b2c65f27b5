"""One screen, one idea: how long a module and a function may be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Folder -> the most lines of a module, and of a function without its docstring.
LIMITS = {
    "agentkernel": (400, 60),
    "examples": (400, 60),
    "tests": (600, 100),
}

# What is longer, with its exact length: "path" for a module, "path::name" for a
# function. An entry may only go down, and leaves once it is within the limit.
EXCEPTIONS: dict[str, int] = {}


def modules(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def code_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines from `def` to the end, less those of the docstring."""
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    if ast.get_docstring(node, clean=False) is not None:
        first = node.body[0]
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def lengths(folder: str) -> Iterator[tuple[str, int, int]]:
    """Yield every module and function as (key, length, limit)."""
    module_limit, function_limit = LIMITS[folder]
    for name, text in modules(folder):
        yield name, text.count("\n"), module_limit
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name}::{node.name}", code_length(node), function_limit


@pytest.mark.parametrize("folder", LIMITS)
def test_what_is_long_is_listed_with_its_exact_length(folder: str) -> None:
    """A limit that hurts means that a noun is missing; a list only hides that."""
    complaints = [
        f"{key}: {length} lines, the limit is {limit}, the listed exception is {listed}"
        for key, length, limit in lengths(folder)
        if ((listed := EXCEPTIONS.get(key)) is None and length > limit)
        or (listed is not None and listed != length)
    ]
    assert not complaints, "\n".join(complaints)


def test_exceptions_name_what_exists_and_is_too_long() -> None:
    known = {
        key: (length, limit)
        for folder in LIMITS
        for key, length, limit in lengths(folder)
    }
    stale = [
        key for key in EXCEPTIONS if key not in known or known[key][0] <= known[key][1]
    ]
    assert not stale
