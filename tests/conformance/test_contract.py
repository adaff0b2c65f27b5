"""Every clause of the contract has its tests, and every mark its clause."""

from __future__ import annotations

import re
from collections import Counter

from tests.conformance.manifest import CONTRACT, all_tests, marked, rewritten, rows
from tests.conformance.requirements import CLAUSES, DEFERRED

TEXT = CONTRACT.read_text("utf-8")
ROWS = rows(TEXT)


def test_contract_lists_every_clause_once_and_in_order() -> None:
    assert [row.clause for row in ROWS] == list(CLAUSES)
    assert max(Counter(CLAUSES).values()) == 1


def test_every_test_that_the_contract_names_exists() -> None:
    nodes = {item.node for item in all_tests()}
    missing = {row.clause: set(row.tests) - nodes for row in ROWS}
    missing = {clause: names for clause, names in missing.items() if names}
    assert not missing


def test_every_mark_names_a_clause_that_lists_its_test() -> None:
    """A mark on an unknown clause proves nothing that anybody asked for."""
    assert marked().keys() <= set(CLAUSES)
    assert rewritten(TEXT) == TEXT, "run: python -m tests.conformance.manifest"


def test_every_clause_without_a_test_is_deferred() -> None:
    untested = {row.clause for row in ROWS if not row.tests}
    assert untested <= DEFERRED


def test_deferred_clauses_exist() -> None:
    assert set(CLAUSES) >= DEFERRED


def test_reported_faults_are_named_by_their_ids() -> None:
    strange = {
        item.node: item.cases
        for item in all_tests()
        if not all(re.fullmatch(r"[A-Z]+-\d{2,3}", case) for case in item.cases)
    }
    assert not strange


def test_no_two_tests_of_a_module_share_a_name() -> None:
    """The later of two would replace the earlier, which then never runs."""
    counts = Counter(item.node for item in all_tests())
    assert [node for node, count in counts.items() if count > 1] == []
