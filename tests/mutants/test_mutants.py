"""The planted faults: they still fit the code, and each is noticed."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conformance.requirements import CLAUSES
from tests.mutants.planted import ROOT, Fault, copy_project, load, try_fault

FAULTS = load()


def test_every_planted_fault_still_fits_the_code() -> None:
    """Its lines are there exactly once, and what they become is a program."""
    for fault in FAULTS:
        changed = fault.applied((ROOT / fault.file).read_text("utf-8"))
        ast.parse(changed, fault.name)


def test_every_planted_fault_names_a_clause_and_tests_that_exist() -> None:
    """There are more than thirty, of every part of the kernel and of each store."""
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) > 30
    for fault in FAULTS:
        assert fault.clause in CLAUSES, fault.name
        assert fault.nodes(), fault.name
    files = {fault.file for fault in FAULTS}
    for part in ("_loop/driver", "_loop/turn", "_loop/verbs", "_loop/inbox"):
        assert f"agentkernel/{part}.py" in files
    for part in ("_session/fold", "_session/repair", "_session/writer"):
        assert f"agentkernel/{part}.py" in files
    for part in ("memory", "jsonl", "sqlite"):
        assert f"agentkernel/stores/{part}.py" in files


def made(*edits: tuple[str, str], test: str = "test_time_is_virtual") -> Fault:
    file = "agentkernel/testing/schedules.py"
    return Fault("made here", "C1a", file, edits, (test,))


def test_the_lines_of_a_fault_must_be_there_exactly_once() -> None:
    """At any indentation if they are given without one, else at exactly theirs."""
    text = "def f():\n    a\n    if b:\n        a\n    c\n"
    assert made(("c", "d")).applied(text) == text.replace("    c", "    d")
    assert made(("    a", "    d")).applied(text) == text.replace("    a", "    d", 1)
    for lines in ("a", "f()", "x"):
        with pytest.raises(LookupError):
            made((lines, "d")).applied(text)
    with pytest.raises(LookupError):
        made(test="test_that_nobody_wrote").nodes()


@pytest.mark.long
def test_a_fault_is_tried_and_taken_out_again(tmp_path: Path) -> None:
    """What changes nothing survives; what breaks its test is caught by it."""
    copy = tmp_path / "copy"
    copy_project(copy)
    before = (copy / made().file).read_bytes()
    harmless = made(("Not a checkpoint.", "No checkpoint."))
    broken = made(("runs.outcomes[seed] = outcome", "runs.outcomes[seed] = None"))
    assert try_fault(harmless, copy, rest=False).kind == "survived"
    verdict = try_fault(broken, copy, rest=False)
    assert verdict.kind == "caught"
    assert verdict.by.endswith("test_time_is_virtual")
    assert (copy / made().file).read_bytes() == before


@pytest.mark.long
def test_every_planted_fault_is_noticed_by_its_own_tests(tmp_path: Path) -> None:
    """One at a time, in a copy: a fault that survives shows that a test is missing."""
    copy = tmp_path / "copy"
    copy_project(copy)
    verdicts = [try_fault(fault, copy, rest=False) for fault in FAULTS]
    assert [v.fault.name for v in verdicts if v.kind != "caught"] == []
