"""The faults that users have met elsewhere: their ids, and where each is tested.

Tests name the faults that they show to be absent with `@pytest.mark.case`. From these
marks `python -m tests.conformance.reported` writes the table in `tests/README.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.conformance.manifest import ROOT, all_tests

__all__ = ["ABSENT", "CASES", "README", "main", "places_of", "rewritten"]

README: Final = ROOT / "tests" / "README.md"
_BEGIN: Final = "<!-- written by python -m tests.conformance.reported -->\n"
_END: Final = "<!-- until here -->\n"

# Family -> what its faults have in common, and their numbers.
_FAMILIES: Final = {
    "PAIR": ("calls and their results", "01 03 04 06 07 08 09 10 11"),
    "TOOL": ("tools that fail", "01 02 03 04"),
    "PART": ("answers that were cut", "01 02 03 05 06 07 08 09"),
    "CAN": ("stops and their races", "01 03 04 05 06 07 08 09 10 11 12 13 14"),
    "INB": ("input that waits", "01 02 03 05 06 07 08 09 10"),
    "SUB": ("children and forks", "01 03 04 06 07 08 09 10"),
    "LIFE": ("lifecycle and idleness", "01 03 04 05 06 07"),
    "CONC": ("tasks, threads, signals and pools", "01 02 03 04 06 07"),
    "EVT": ("events and their readers", "01 02 03 04"),
    "COMP": ("compaction", "02 03"),
    "SSE": ("the bytes of a stream", "01 02 03 04 06"),
    "PROV": ("what providers mean", "01 02 03 04 05 06 07 08"),
    "PROC": ("processes", "01 02 03 04 06"),
    "HOOK": ("hooks", "01 02"),
    "STORE": ("storage, crash and resume", "01 03 04 05 06 07 08 09 10 11 12"),
    "ACP": ("the ACP server", "01 02 03 04 05 06 08 09 10 11"),
    "MCP": ("the MCP client", "01 02 03"),
    "WEB": ("the web client", "01 02 03 04"),
}

# Families whose cases may be without a test, and why. It leaves with the last of them.
ABSENT: Final = {
    "ACP": "not yet: there is no ACP server",
    "MCP": "not yet: there is no MCP client",
    "WEB": "not yet: there is no web bridge",
}


def _cases() -> Iterator[str]:
    for family, (_, numbers) in _FAMILIES.items():
        for number in numbers.split():
            yield f"{family}-{number}"


CASES: Final = tuple(_cases())


def places_of() -> dict[str, list[str]]:
    """Map each case to the tests whose marks name it."""
    found: dict[str, list[str]] = {}
    for item in all_tests():
        for case in item.cases:
            found.setdefault(case, []).append(item.node.removeprefix("tests/"))
    return found


def rewritten(text: str) -> str:
    """The page with its table taken from the marks."""
    marked = places_of()
    lines: list[str] = []
    for family, (title, numbers) in _FAMILIES.items():
        lines += [f"\n### {family}: {title}\n", "| case | where |", "|---|---|"]
        for number in numbers.split():
            case = f"{family}-{number}"
            nodes = " ".join(f"`{node}`" for node in marked.get(case, ()))
            lines.append(f"| {case} | {nodes or ABSENT.get(family, '')} |")
    table = "\n".join(lines) + "\n\n"
    pattern = re.compile(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", re.DOTALL)
    return pattern.sub(lambda _: f"{_BEGIN}{table}{_END}", text)


def main(page: Path = README) -> None:
    page.write_text(rewritten(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
