"""The table of reported faults says where each is tested, and says it truly."""

from __future__ import annotations

from tests.conformance.reported import ABSENT, CASES, README, places_of, rewritten


def test_every_reported_fault_is_tested_or_there_is_a_reason_why_not() -> None:
    """A reason that has had its day is taken out."""
    tested = places_of().keys()
    assert len(set(CASES)) == len(CASES) == 117
    untested = {case.partition("-")[0] for case in CASES if case not in tested}
    assert untested == ABSENT.keys()


def test_every_mark_names_a_reported_fault() -> None:
    assert places_of().keys() <= set(CASES)


def test_the_table_of_reported_faults_is_the_one_that_the_marks_give() -> None:
    text = README.read_text("utf-8")
    assert all(f"| {case} |" in text for case in CASES)
    assert rewritten(text) == text, "run: python -m tests.conformance.reported"
