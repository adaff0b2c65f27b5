"""Plants the faults, one at a time, and says which test noticed each of them.

`python -m tests.mutants [--no-rest] [NAME...]`: only the faults whose name contains
one of the names; all without. Ends with 1 if a fault survives its own tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.mutants.planted import copy_project, load, try_fault

__all__ = ["main"]


def main() -> int:
    parser = argparse.ArgumentParser("scripts/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--no-rest", action="store_true", help="only the tests that a fault names"
    )
    given = parser.parse_args()
    names: list[str] = given.names
    chosen = [f for f in load() if not names or any(n in f.name for n in names)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        copy_project(copy)
        for number, fault in enumerate(chosen, start=1):
            verdict = try_fault(fault, copy, rest=not given.no_rest)
            missed += verdict.kind != "caught"
            by = f" by {verdict.by}" if verdict.by else ""
            say(
                f"{number}/{len(chosen)} {fault.clause} {fault.name}: {verdict.kind}{by}"
            )
    say(f"{len(chosen) - missed} of {len(chosen)} faults are caught by their own tests")
    return 1 if missed else 0


def say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program


if __name__ == "__main__":
    sys.exit(main())
