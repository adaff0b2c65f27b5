"""The closing facts: complete, in order, and nothing when nothing is open."""

from __future__ import annotations

import pytest

import agentkernel as ak
from agentkernel._session.fold import Fold
from agentkernel._session.repair import (
    ABORTED,
    ABORTED_BEFORE_DISPATCH,
    TOOL_NOT_STARTED,
    TOOL_OUTCOME_UNKNOWN,
    closing_facts,
    discard_facts,
    merge_chunks,
    repair_facts,
    visible,
)


def user(name: str) -> ak.UserMessage:
    return ak.UserMessage(name, (ak.TextBlock(name),))


HEAD: list[ak.Fact] = [
    ak.SessionHeader(1),
    ak.InboxSpliced("next_turn", 0, inserted=(user("a"), user("b"))),
    ak.InboxSpliced("next_step", 0, inserted=(user("s"), user("t"))),
    ak.TurnStarted(1),
    ak.InboxSpliced("next_step", removed=("s", "t"), outcome="claimed"),
    ak.InboxSpliced("next_turn", removed=("a",), outcome="claimed"),
]
CALLS = ak.AssistantMessage(
    (ak.TextBlock("look"), ak.ToolCall("c1", "t", {}), ak.ToolCall("c2", "t", {}))
)


def repaired(log: list[ak.Fact]) -> list[ak.Fact]:
    fold = Fold.over(log)
    made = repair_facts(fold)
    assert repair_facts(Fold.over(log)) == made
    for fact in made:
        fold.apply(fact)
    assert repair_facts(fold) == []
    assert fold.open_turn is None
    assert fold.open_step is None
    assert not fold.open_calls
    assert not fold.inbox.claimed
    return made


@pytest.mark.clause("D5a", "I4b")
def test_claimed_input_goes_back_to_the_front_of_its_queue_in_order() -> None:
    """A crash between the claim and the step loses nothing and swaps nothing."""
    log = [*HEAD, ak.InboxSpliced("next_step", 0, inserted=(user("u"),))]
    made = repaired(log)
    assert made == [
        ak.InboxSpliced(
            "next_step", inserted=(user("s"), user("t")), outcome="returned"
        ),
        ak.InboxSpliced("next_turn", inserted=(user("a"),), outcome="returned"),
        ak.TurnEnded(1, ak.Ending("interrupted")),
    ]
    inbox = Fold.over([*log, *made]).inbox
    assert [m.id for m in inbox.next_step] == ["s", "t", "u"]
    assert [m.id for m in inbox.next_turn] == ["a", "b"]


@pytest.mark.clause("D5a")
def test_a_step_in_which_part_of_the_batch_had_entered_returns_the_rest() -> None:
    """Each message is in one place: entered, or pending again."""
    log = [*HEAD, ak.StepStarted(1, 1), ak.MessageEntered(user("s"))]
    fold = Fold.over([*log, *repaired(log)])
    assert [m.id for m in fold.inbox.next_step] == ["t"]
    assert [m.id for m in fold.inbox.next_turn] == ["a", "b"]
    assert fold.messages["s"].state == "entered"


@pytest.mark.clause("T3c", "D5a")
def test_open_calls_are_answered_by_whether_their_body_may_have_run() -> None:
    """In the order of the calls, before the end of the step and of the turn."""
    log = [
        *HEAD,
        ak.StepStarted(1, 1),
        ak.AssistantReplied(1, 1, CALLS),
        ak.ToolCalled(1, 1, "c2", "t", {}),
    ]
    made = repaired(log)
    results = [f for f in made if isinstance(f, ak.ToolReturned)]
    assert [(r.call_id, r.error) for r in results] == [
        ("c1", TOOL_NOT_STARTED),
        ("c2", TOOL_OUTCOME_UNKNOWN),
    ]
    assert [f.TYPE for f in made][:3] == ["tool/result", "tool/result", "step/end"]
    assert made[-1] == ak.TurnEnded(1, ak.Ending("interrupted"))


@pytest.mark.clause("T4a", "D5a")
def test_streamed_text_becomes_an_interrupted_message_and_blank_text_does_not() -> None:
    """What the user had read is kept; what nobody could see is not."""
    start = [*HEAD, ak.StepStarted(1, 1)]
    for text, kept in (("Hel", True), ("\n ", False)):
        log = [*start, ak.ChunkStreamed(1, 1, 1, ak.TextChunk(text))]
        replies = [f for f in repaired(log) if isinstance(f, ak.AssistantReplied)]
        assert [r.message.text for r in replies] == ([text] if kept else [])
        assert all(r.interrupted and r.message.interrupted for r in replies)


@pytest.mark.clause("T5b")
def test_chunks_of_a_closed_attempt_are_not_kept() -> None:
    """`llm/retry` has taken them back."""
    log = [
        *HEAD,
        ak.StepStarted(1, 1),
        ak.ChunkStreamed(1, 1, 1, ak.TextChunk("Hel")),
        ak.RetryScheduled(1, 1, 1, ak.ToolFailure("x", "y"), 1.0, usage=ak.Usage(3)),
    ]
    made = repaired(log)
    assert not [f for f in made if isinstance(f, ak.AssistantReplied)]
    (end,) = [f for f in made if isinstance(f, ak.StepEnded)]
    assert end.usage == ak.Usage(3)


def test_open_questions_and_hooks_are_closed_as_interrupted() -> None:
    """An answer that comes later finds a closed question."""
    log: list[ak.Fact] = [
        ak.SessionHeader(1),
        ak.ApprovalAsked("q", "c", "t", {}, "here"),
        ak.ApprovalAsked("p", "c", "t", {}, "here"),
        ak.ApprovalDecided("p", "denied"),
        ak.HookInvoked("h", "event", "cmd"),
    ]
    made = repaired(log)
    assert [f for f in made if isinstance(f, ak.ApprovalDecided)] == [
        ak.ApprovalDecided("q", "interrupted")
    ]
    (hook,) = [f for f in made if isinstance(f, ak.HookReturned)]
    assert (hook.hook_id, hook.outcome) == ("h", "failed")


def test_a_whole_log_needs_no_repair() -> None:
    """Parked input is not open work."""
    assert repaired(HEAD[:3]) == []


@pytest.mark.clause("T3c")
def test_a_live_turn_closes_its_calls_in_its_own_words_and_leaves_its_end() -> None:
    """`turn/end` is the turn's own act."""
    log = [*HEAD, ak.StepStarted(1, 1), ak.AssistantReplied(1, 1, CALLS)]
    made = closing_facts(
        Fold.over(log),
        started=ABORTED,
        unstarted=ABORTED_BEFORE_DISPATCH,
        usage=ak.Usage(output_tokens=2),
    )
    assert [f.TYPE for f in made] == ["tool/result", "tool/result", "step/end"]
    assert isinstance(made[-1], ak.StepEnded)
    assert made[-1].usage == ak.Usage(output_tokens=2)


@pytest.mark.clause("I3a")
def test_a_fork_discards_all_pending_and_claimed_input() -> None:
    """It was said to the original."""
    fold = Fold.over(HEAD)
    for fact in discard_facts(Fold.over(HEAD)):
        fold.apply(fact)
    assert not fold.inbox.pending_ids
    assert not fold.inbox.claimed
    assert {r.state for r in fold.messages.values()} == {"discarded"}


@pytest.mark.case("PART-05")
def test_only_a_complete_reasoning_block_is_sealed() -> None:
    """Half a seal would be refused for the rest of the session."""
    cut: list[ak.ReasoningChunk | ak.ReasoningEndChunk] = [
        ak.ReasoningChunk("a"),
        ak.ReasoningEndChunk(signature="s"),
        ak.ReasoningChunk("b"),
    ]
    assert merge_chunks(cut).content == (
        ak.ReasoningBlock("a", signature="s"),
        ak.ReasoningBlock("b"),
    )


def test_what_nobody_could_see_is_not_visible() -> None:
    """Blank text is not; reasoning and calls are."""
    assert not visible(ak.AssistantMessage(()))
    assert not visible(ak.AssistantMessage((ak.TextBlock(" \n"),)))
    assert visible(ak.AssistantMessage((ak.ReasoningBlock("hm"),)))
    assert visible(ak.AssistantMessage((ak.ToolCall("c", "t", {}),)))
