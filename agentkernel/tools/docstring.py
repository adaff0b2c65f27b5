"""Reads the parts of a Google-style docstring that a model is told about."""

from __future__ import annotations

import re

__all__ = ["parse_docstring"]

_SECTION = re.compile(r"(Args|Arguments|Parameters|[A-Z][A-Za-z]+):\s*$")
_ARGUMENTS = {"Args", "Arguments", "Parameters"}
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")
# Sections of a docstring that are for programmers; other headings are prose.
_OTHERS = {
    "Attributes",
    "Cancellation",
    "Example",
    "Examples",
    "Note",
    "Notes",
    "Raises",
    "Return",
    "Returns",
    "Yield",
    "Yields",
}


def parse_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Split a docstring (without its indentation) into prose and argument remarks.

    Returns:
      What stands before the first section, and the remark on each argument, each
      with its lines joined.

    """
    prose: list[str] = []
    remarks: dict[str, str] = {}
    section: str | None = None
    indent: int | None = None
    current = ""
    for line in text.splitlines():
        heading = _SECTION.match(line)
        if heading and heading[1] in _ARGUMENTS | _OTHERS:
            section, indent = heading[1], None
        elif section is None:
            prose.append(line)
        elif section in _ARGUMENTS and line.strip():
            depth = len(line) - len(line.lstrip())
            if depth == 0:  # prose again: the section is over
                section = "prose"
                continue
            indent = depth if indent is None else indent
            entry = _ENTRY.match(line.strip())
            if depth == indent and entry:
                current, remarks[entry[1]] = entry[1], entry[2]
            elif current:
                remarks[current] = f"{remarks[current]} {line.strip()}".strip()
    return "\n".join(prose).strip(), remarks
