"""Which children of a log a crash has cut off, and what their own logs say of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import agentkernel as ak
from agentkernel._session.repair import last_ending, lost_children


def log(
    facts: Iterable[ak.Fact], *, copied: int | None = None
) -> list[ak.SessionEvent]:
    """Make the events of a session, the first `copied` ones being its original's."""
    lineage = ak.Lineage(forked_from="o" if copied else None, forked_at=copied)
    header = ak.SessionHeader(1, lineage=lineage)
    return [
        ak.SessionEvent(seq, 0.0, fact) for seq, fact in enumerate((header, *facts), 1)
    ]


def child(name: str, ending: str | None = None) -> ak.SubagentDescribed:
    kind = ak.Ending("completed") if ending == "completed" else None
    return ak.SubagentDescribed(name, "spawn", ending=kind)


@pytest.mark.clause("D5a")
@pytest.mark.case("SUB-03", "SUB-10")
def test_children_without_an_ending_are_lost_unless_they_are_an_originals() -> None:
    """A fork has copied a snapshot: those children live, and end, with the original."""
    facts = (child("a"), child("b"), child("c"), child("b", "completed"))
    assert [one.child for one in lost_children(log(facts))] == ["a", "c"]
    assert [one.child for one in lost_children(log(facts, copied=3))] == ["c"]
    assert not lost_children(log(facts, copied=5))


@pytest.mark.clause("D5a")
def test_the_ending_of_a_child_is_that_of_its_own_last_turn() -> None:
    """A turn that is open was interrupted; what a fork has copied says nothing."""
    done = (ak.TurnStarted(1), ak.TurnEnded(1, ak.Ending("completed")))
    assert last_ending(log(done)).kind == "completed"
    assert last_ending(log((*done, ak.TurnStarted(2)))).kind == "interrupted"
    assert last_ending(log(done, copied=3)).kind == "interrupted"
    assert last_ending([]).kind == "interrupted"


@pytest.mark.clause("D5a")
async def test_a_child_whose_session_cannot_be_found_was_interrupted() -> None:
    """One in another program has none here; its parent is resumed all the same."""
    store = ak.MemoryStore()
    async with ak.open_kernel(store) as kernel:
        async with kernel.open("s") as agent:
            agent.session.append(ak.SubagentDescribed("elsewhere", "remote"))
    async with ak.open_kernel(store) as kernel:
        async with kernel.open("s") as agent:
            last = agent.session.events[-1].data
    ending = ak.Ending("interrupted")
    assert last == ak.SubagentDescribed("elsewhere", "remote", ending=ending)
