"""Views of a log: history, pending input, and what became of each message."""

from __future__ import annotations

import itertools
from typing import cast

import pytest

import agentkernel as ak
from agentkernel._session.events import EndingKind
from agentkernel._session.fold import Fold, add_usage
from tests.race.parts import invalidity, texts

NOTE = "The previous turn was stopped before it had finished."


def user(name: str) -> ak.UserMessage:
    return ak.UserMessage(name, (ak.TextBlock(name),))


def said(*ids: str) -> ak.AssistantMessage:
    return ak.AssistantMessage(tuple(ak.ToolCall(i, "t", {}) for i in ids))


def result(call_id: str) -> ak.ToolReturned:
    message = ak.ToolResult(call_id, "t", (ak.TextBlock(call_id),))
    return ak.ToolReturned(1, 1, call_id, message)


@pytest.mark.clause("T2c")
@pytest.mark.case("PAIR-08", "PAIR-04", "SUB-07")
@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_results_stand_in_call_order_behind_their_message(
    order: tuple[str, ...],
) -> None:
    """In whichever order they came, and whatever entered meanwhile."""
    fold = Fold.over([ak.TurnStarted(1), ak.StepStarted(1, 1)])
    fold.apply(ak.MessageEntered(user("u")))
    fold.apply(ak.AssistantReplied(1, 1, said("a", "b", "c")))
    for number, call_id in enumerate(order):
        fold.apply(ak.MessageEntered(user(f"s{number}")))
        fold.apply(result(call_id))
    assert texts(fold.history.view()) == ["u", "", "a|b|c", "s0", "s1", "s2"]
    assert invalidity(fold.history.view()) is None


@pytest.mark.clause("T3c")
def test_a_second_result_of_a_call_changes_nothing() -> None:
    """Each call has one: the first."""
    fold = Fold.over([ak.TurnStarted(1), ak.StepStarted(1, 1)])
    fold.apply(ak.AssistantReplied(1, 1, said("a")))
    fold.apply(result("a"))
    before = tuple(fold.history.view())
    fold.apply(result("a"))
    fold.apply(result("never called"))
    assert tuple(fold.history.view()) == before


def test_a_view_never_changes_whatever_happens_to_the_history() -> None:
    """A request that is on its way keeps its messages, and costs no copy."""
    fold = Fold.over([ak.TurnStarted(1), ak.StepStarted(1, 1)])
    fold.apply(ak.MessageEntered(user("u")))
    fold.apply(ak.AssistantReplied(1, 1, said("a", "b")))
    fold.apply(ak.MessageEntered(user("late")))
    view = fold.history.view()
    before = tuple(view)
    fold.apply(result("b"))
    fold.apply(result("a"))
    fold.apply(ak.MessageEntered(user("later")))
    assert tuple(view) == before == view[:]
    assert len(view) == 3
    assert view[-1] == view[2] == user("late")
    assert view == before
    with pytest.raises(IndexError):
        _ = view[3]
    with pytest.raises(TypeError):
        hash(view)


@pytest.mark.clause("T4c")
@pytest.mark.parametrize(
    ("endings", "expected"),
    [
        (["aborted"], ["u1", NOTE]),
        (["aborted", "aborted"], ["u1", NOTE, "u2"]),
        (["aborted", "completed", "aborted"], ["u1", NOTE, "u2", "u3", NOTE]),
        (["aborted", "error", "aborted"], ["u1", NOTE, "u2", "u3", NOTE]),
        (["disposed", "interrupted", "completed"], ["u1", "u2", "u3"]),
        (["-aborted"], []),
        (["aborted", "-aborted", "aborted"], ["u1", NOTE, "u3"]),
        (["-aborted", "aborted"], ["u2", NOTE]),
    ],
)
def test_one_note_stands_for_a_run_of_stopped_turns(
    endings: list[str], expected: list[str]
) -> None:
    """A minus marks a turn that nothing had entered."""
    fold = Fold()
    for number, ending in enumerate(endings, 1):
        fold.apply(ak.TurnStarted(number))
        if not ending.startswith("-"):
            fold.apply(ak.StepStarted(number, 1))
            fold.apply(ak.MessageEntered(user(f"u{number}")))
        kind = cast("EndingKind", ending.removeprefix("-"))
        fold.apply(ak.TurnEnded(number, ak.Ending(kind)))
    assert texts(fold.history.view()) == expected
    silent = Fold.over([ak.SessionHeader(1, options={"stop_note": False})])
    silent.apply(ak.TurnStarted(1))
    silent.apply(ak.MessageEntered(user("u1")))
    silent.apply(ak.TurnEnded(1, ak.Ending("aborted")))
    assert texts(silent.history.view()) == ["u1"]


@pytest.mark.clause("T4b")
def test_a_message_that_says_nothing_is_not_shown() -> None:
    """Blank text alone is nothing; a thought or a call is something."""
    fold = Fold.over([ak.TurnStarted(1)])
    for content in ((), (ak.TextBlock("\n"),), (ak.TextBlock(""), ak.TextBlock(" "))):
        fold.apply(ak.AssistantReplied(1, 1, ak.AssistantMessage(content)))
    assert len(fold.history.view()) == 0
    sealed = ak.AssistantMessage((ak.ReasoningBlock("", data="opaque"),))
    fold.apply(ak.AssistantReplied(1, 1, sealed))
    assert tuple(fold.history.view()) == (sealed,)


@pytest.mark.clause("I2c")
def test_the_inbox_is_a_fold_of_the_log() -> None:
    """Arrival, move, replacement, claim and every outcome, from facts alone."""
    a, b, c = user("a"), user("b"), user("c")
    fold = Fold.over(
        [
            ak.InboxSpliced("next_turn", 0, inserted=(a,)),
            ak.InboxSpliced("next_turn", 1, inserted=(b,)),
            ak.InboxSpliced("next_turn", 0, ("b",), (b,)),
            ak.InboxSpliced("next_step", 0, inserted=(c,)),
        ]
    )
    assert fold.inbox.pending_ids == ("c", "b", "a")
    new = ak.UserMessage("a", (ak.TextBlock("A"),))
    fold.apply(ak.InboxSpliced("next_turn", 1, ("a",), (new,)))
    assert [m.text for m in fold.inbox.next_turn] == ["b", "A"]
    assert fold.messages["a"].body == a
    fold.apply(ak.TurnStarted(1))
    fold.apply(ak.InboxSpliced("next_turn", removed=("b",), outcome="claimed"))
    assert fold.messages["b"].state == "claimed"
    fold.apply(ak.InboxSpliced("next_turn", inserted=(b,), outcome="returned"))
    assert (fold.messages["b"].state, fold.messages["b"].turn) == ("pending", None)
    place = fold.inbox.find("b")
    assert place == ("next_turn", 0)
    fold.apply(ak.InboxSpliced("next_step", removed=("c",), outcome="discarded"))
    assert fold.messages["c"].state == "discarded"
    assert fold.inbox.find("c") is None


@pytest.mark.clause("I1d")
def test_passive_input_alone_is_no_work() -> None:
    """It rides along, and waits as long as nothing else comes."""
    passive = ak.UserMessage("p", (), passive=True)
    fold = Fold.over([ak.InboxSpliced("next_step", 0, inserted=(passive,))])
    seen = [(fold.inbox.has_work, fold.inbox.owes_step)]
    for queue in ("next_turn", "next_step"):
        fold.apply(ak.InboxSpliced(queue, 0, inserted=(user(queue),)))
        seen.append((fold.inbox.has_work, fold.inbox.owes_step))
    assert seen == [(False, False), (True, False), (True, True)]


@pytest.mark.case("LIFE-07")
def test_usage_adds_what_is_known() -> None:
    """Unknown is None, never zero; an attempt without usage takes nothing away."""
    assert add_usage(None, None) is None
    known = ak.Usage(input_tokens=1)
    assert add_usage(known, None) == add_usage(None, known) == known
    assert add_usage(known, ak.Usage(2, 3)) == ak.Usage(3, 3)
    assert ak.Usage().output_tokens is None
