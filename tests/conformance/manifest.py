"""Reads both sides of the contract: the table, and the marks in the tests.

`python -m tests.conformance.manifest` writes the table's column of tests from the
marks. Nothing is imported or run to find the tests: their source is read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conformance.requirements import DEFERRED

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "docs" / "contract.md"
ROW = re.compile(
    r"^\| (?P<id>[A-Z]\d+[a-z]?) \| (?P<claim>.+?) \| ?(?P<tests>.*?) ?\|$",
    re.MULTILINE,
)


class Row(NamedTuple):
    clause: str
    claim: str
    tests: tuple[str, ...]


class Item(NamedTuple):
    """A test function, or a class that pytest collects, with the ids it names."""

    node: str
    clauses: tuple[str, ...]
    cases: tuple[str, ...]


def rows(text: str) -> list[Row]:
    return [
        Row(
            match["id"], match["claim"], tuple(re.findall(r"`([^`]+)`", match["tests"]))
        )
        for match in ROW.finditer(text)
    ]


def all_tests() -> Iterator[Item]:
    """Yield every test of the suite."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        marks = [
            mark
            for node in tree.body
            if isinstance(node, ast.Assign) and is_named(node.targets, "pytestmark")
            for mark in elements(node.value)
        ]
        yield from items_in(tree.body, path.relative_to(ROOT).as_posix(), marks)


def items_in(
    body: list[ast.stmt], prefix: str, inherited: list[ast.expr]
) -> Iterator[Item]:
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name.startswith("test"):
                    yield item_of(f"{prefix}::{name}", inherited + node.decorator_list)
            case ast.ClassDef(name=name) if name.startswith("Test"):
                marks = inherited + node.decorator_list
                yield from items_in(node.body, f"{prefix}::{name}", marks)
            # A state machine: `TestInbox = InboxMachine.TestCase`.
            case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("Test"):
                yield item_of(f"{prefix}::{name}", inherited)
            case _:
                pass


def item_of(node: str, marks: list[ast.expr]) -> Item:
    return Item(node, named(marks, "clause", node), named(marks, "case", node))


def named(marks: list[ast.expr], mark: str, node: str) -> tuple[str, ...]:
    """Collect the arguments of every `pytest.mark.<mark>(...)`."""
    ids: list[str] = []
    for call in marks:
        if not isinstance(call, ast.Call):
            continue
        if ast.unparse(call.func) != f"pytest.mark.{mark}":
            continue
        for argument in call.args:
            if not (
                isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            ):
                message = f"{node}: the arguments of the mark {mark} are plain strings"
                raise TypeError(message)
            ids.append(argument.value)
    return tuple(ids)


def is_named(targets: list[ast.expr], name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in targets)


def elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.List | ast.Tuple) else [node]


def marked() -> dict[str, list[str]]:
    """Map each clause to the tests whose marks name it."""
    by_clause: dict[str, list[str]] = {}
    for item in all_tests():
        for clause in item.clauses:
            by_clause.setdefault(clause, []).append(item.node)
    return by_clause


def rewritten(text: str) -> str:
    """The contract with its column of tests taken from the marks."""
    by_clause = marked()

    def row(match: re.Match[str]) -> str:
        names = " ".join(f"`{name}`" for name in by_clause.get(match["id"], []))
        return f"| {match['id']} | {match['claim']} | {names + ' ' if names else ''}|"

    return ROW.sub(row, text)


def main() -> None:
    CONTRACT.write_text(rewritten(CONTRACT.read_text("utf-8")), "utf-8")
    ready = sorted(DEFERRED & marked().keys())
    print(f"{len(ready)} open clauses have tests:", *ready)  # noqa: T201 - a program


if __name__ == "__main__":
    main()
