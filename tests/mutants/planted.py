"""The faults that are planted into a copy of the project, and how that is done.

`faults.toml` holds them. Each is an edit or two of whole lines, in one file, with the
clause that it breaks and the tests that must notice it.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from tests.conformance.manifest import all_tests

__all__ = ["FAULTS", "ROOT", "Fault", "Verdict", "copy_project", "load", "try_fault"]

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
# What a copy needs to run the tests.
_PARTS: tuple[str, ...] = (
    "agentkernel",
    "tests",
    "docs",
    "examples",
    "scripts",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
)
_LIMIT = 60
_MEMORY = 4 << 30
# The rest of the quick suite, for what the named tests did not notice.
_REST = tuple(
    f"tests/{suite}"
    for suite in ("race", "unit", "property", "conformance", "integration")
)


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One planted fault.

    Attributes:
      name: what goes wrong, in a few words.
      clause: the clause of the contract that it breaks.
      file: the file that is edited.
      edits: pairs of lines that are there exactly once, and what stands in their
        place.
      tests: names of test functions, wherever they are; one that fails is enough.

    """

    name: str
    clause: str
    file: str
    edits: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]

    def nodes(self) -> list[str]:
        """Find the tests: their node ids.

        Raises:
          LookupError: if there is no test of a name.

        """
        found = [node for name in self.tests for node in _nodes().get(name, ())]
        if {node.split("::")[-1] for node in found} != set(self.tests):
            raise LookupError(f"{self.name}: of {self.tests} there are {found}")
        return found

    def applied(self, text: str) -> str:
        """Give the text of the file with the fault in it.

        Raises:
          LookupError: if lines are not there, or more than once.

        """
        for lines, instead in self.edits:
            found = _places(text, lines)
            if len(found) != 1:
                raise LookupError(
                    f"{self.name}: {self.file} holds {len(found)} times:\n{lines}"
                )
            end = found[0] + len(lines)
            text = text[: found[0]] + instead + text[end:]
        return text


class Verdict(msgspec.Struct, frozen=True):
    """What became of a fault; `by` is the test that noticed it."""

    fault: Fault
    kind: Literal["caught", "caught elsewhere", "survived"]
    by: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    fault: list[Fault]


@cache
def _nodes() -> dict[str, list[str]]:
    """Map the name of each test function to its node ids."""
    nodes: dict[str, list[str]] = {}
    for item in all_tests():
        nodes.setdefault(item.node.split("::")[-1], []).append(item.node)
    return nodes


def load() -> list[Fault]:
    """Read the faults."""
    return msgspec.convert(tomllib.loads(FAULTS.read_text("utf-8")), _File).fault


def _places(text: str, lines: str) -> list[int]:
    """Find lines in a text; the last one need not be whole.

    Lines that do not begin with spaces are found at any indentation.
    """
    found: list[int] = []
    at = text.find(lines)
    while at >= 0:
        before = text[text.rfind("\n", 0, at) + 1 : at]
        if not before or (before.isspace() and not lines[0].isspace()):
            found.append(at)
        at = text.find(lines, at + 1)
    return found


def copy_project(target: Path) -> None:
    """Copy what the tests need into a new folder."""
    ignore = shutil.ignore_patterns("__pycache__", "mutants")
    for part in _PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=ignore)
        elif source.exists():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / part)


def try_fault(fault: Fault, copy: Path, *, rest: bool) -> Verdict:
    """Plant a fault in a copy, run its tests, and take it out again.

    Args:
      fault: the fault.
      copy: a copy of the project that nobody else uses.
      rest: whether to try the rest of the quick suite on one that its own tests
        did not notice.

    """
    path = copy / fault.file
    whole = path.read_text("utf-8")
    path.write_text(fault.applied(whole), "utf-8")
    try:
        by = _first_failure(copy, fault.nodes())
        if by is not None:
            return Verdict(fault, "caught", by)
        by = _first_failure(copy, _REST, limit=1200) if rest else None
        if by is not None:
            return Verdict(fault, "caught elsewhere", by)
        return Verdict(fault, "survived")
    finally:
        path.write_text(whole, "utf-8")


def _first_failure(
    copy: Path, tests: Sequence[str], *, limit: int = _LIMIT
) -> str | None:
    """Run tests until one fails; name it, None if none does."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    with subprocess.Popen(
        command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        # A fault may make a loop endless or let it eat memory, and whoever stops the
        # run may leave this process behind: the system bounds it in any case.
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (limit, limit))
        resource.prlimit(process.pid, resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"a hang of more than {limit} s"
    if process.returncode == 0:
        return None
    for line in output.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.split(" ", 1)[1].split(" - ")[0]
    if process.returncode < 0:
        return f"the end of its process by signal {-process.returncode}"
    raise RuntimeError(f"the tests did not run:\n{output}")
