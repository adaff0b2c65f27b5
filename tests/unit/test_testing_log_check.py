"""`check_log` finds each kind of broken log, and says where and what is broken."""

from __future__ import annotations

import pytest

import agentkernel as ak
from agentkernel.testing import check_log

HELLO = ak.UserMessage("m1", (ak.TextBlock("hello"),))
MORE = ak.UserMessage("m2", (ak.TextBlock("more"),))
CALL = ak.ToolCall("c1", "look", {})
OUTPUT = ak.ToolResult("c1", "look", (ak.TextBlock("seen"),))

HEADER = ak.SessionHeader(1)
ARRIVED = ak.InboxSpliced("next_turn", inserted=(HELLO,))
NOTICE = ak.UserMessage("m1", (ak.TextBlock("it has ended"),), kind="notice")
CLAIMED = ak.InboxSpliced("next_turn", removed=("m1",), outcome="claimed")
START, STEP = ak.TurnStarted(1), ak.StepStarted(1, 1)
ENTERED = ak.MessageEntered(HELLO)
CONFIGURED = ak.RequestConfigured("", (), "m")
CHUNK = ak.ChunkStreamed(1, 1, 1, ak.TextChunk("I look"))
REPLIED = ak.AssistantReplied(1, 1, ak.AssistantMessage((ak.TextBlock("I look"), CALL)))
CALLED = ak.ToolCalled(1, 1, "c1", "look", {})
RETURNED = ak.ToolReturned(1, 1, "c1", OUTPUT)
STEP_END, END = ak.StepEnded(1, 1), ak.TurnEnded(1, ak.Ending("completed"))

WHOLE: list[ak.Fact] = [
    HEADER, ARRIVED, START, CLAIMED, STEP, ENTERED, CONFIGURED, CHUNK,
    REPLIED, CALLED, RETURNED, STEP_END, END,
]  # fmt: skip


def without(*facts: ak.Fact) -> list[ak.Fact]:
    return [fact for fact in WHOLE if not any(fact is left for left in facts)]


def behind(place: ak.Fact, *facts: ak.Fact) -> list[ak.Fact]:
    at = next(i for i, fact in enumerate(WHOLE) if fact is place) + 1
    return [*WHOLE[:at], *facts, *WHOLE[at:]]


def swapped(place: ak.Fact, other: ak.Fact) -> list[ak.Fact]:
    pairs = {id(place): other, id(other): place}
    return [pairs.get(id(fact), fact) for fact in WHOLE]


def instead(place: ak.Fact, other: ak.Fact) -> list[ak.Fact]:
    return [other if fact is place else fact for fact in WHOLE]


def spliced(outcome: str, *ids: str) -> ak.InboxSpliced:
    return ak.InboxSpliced("next_turn", removed=ids, outcome=outcome)  # type: ignore[arg-type]  # any of the outcomes  # pyright: ignore[reportArgumentType]


def reply(text: str, *, interrupted: bool = False) -> ak.AssistantReplied:
    message = ak.AssistantMessage((ak.TextBlock(text),), interrupted=interrupted)
    return ak.AssistantReplied(1, 1, message, interrupted=interrupted)


ABORTED = ak.TurnEnded(1, ak.Ending("aborted"))
ASKED = ak.ApprovalAsked("q", "c1", "look", {}, "a test")
RETRY = ak.RetryScheduled(1, 1, 1, ak.ToolFailure("x", "y"), 0.0)

BROKEN: dict[str, tuple[list[ak.Fact], str]] = {
    "no header": (WHOLE[1:], "event 1 .*begins with"),
    "a second header": (behind(START, HEADER), "event 4 .*one session/header"),
    "a turn without end": (without(END), "the end, .*every turn ends"),
    "a turn that ends twice": ([*WHOLE, END], "event 14 .*ends once"),
    "a turn number left out": (instead(START, ak.TurnStarted(2)), "numbered from 1"),
    "turns that overlap": (behind(START, ak.TurnStarted(2)), "do not overlap"),
    "a step without end": (without(STEP_END), "steps end before their turn"),
    "steps that overlap": (behind(STEP, ak.StepStarted(1, 2)), "do not overlap"),
    "a step number left out": (instead(STEP, ak.StepStarted(1, 2)), "numbered from 1"),
    "a call without result": (without(RETURNED), "step/end.*every call has its result"),
    "two results": (behind(RETURNED, RETURNED), "exactly one result.*has one already"),
    "a result of no call": (
        behind(REPLIED, ak.ToolReturned(1, 1, "c9", OUTPUT)),
        "c9 is no call",
    ),
    "a result before its message": (swapped(REPLIED, RETURNED), "is no call"),
    "a call that runs twice": (behind(CALLED, CALLED), "runs once"),
    "a call announced after its result": (
        swapped(CALLED, RETURNED),
        "between a call and its result",
    ),
    "a result that says something else": (
        instead(RETURNED, ak.ToolReturned(1, 1, "c1", ak.ToolResult("c2", "look", ()))),
        "say the same",
    ),
    "a bad call that runs": (
        instead(
            REPLIED,
            ak.AssistantReplied(
                1,
                1,
                ak.AssistantMessage(
                    (
                        ak.TextBlock("I look"),
                        ak.ToolCall("c1", "look", {}, problem="not JSON"),
                    )
                ),
            ),
        ),
        "with a problem never runs",
    ),
    "two answers": (behind(RETURNED, reply("I look")), "one answer"),
    "an answer that nobody saw": (
        instead(REPLIED, reply("I looked")),
        "what was streamed in its attempt",
    ),
    "an interrupted answer with a call": (
        instead(
            REPLIED,
            ak.AssistantReplied(
                1,
                1,
                ak.AssistantMessage((ak.TextBlock("I look"), CALL), interrupted=True),
                interrupted=True,
            ),
        ),
        "carries no calls",
    ),
    "an interrupted answer of nothing": (
        [HEADER, START, STEP, reply("", interrupted=True), STEP_END, ABORTED],
        "shows something",
    ),
    "shown text that is dropped": (
        [HEADER, START, STEP, CHUNK, STEP_END, ABORTED],
        "kept as an answer: 'I look'",
    ),
    "text of a failed attempt": (behind(CHUNK, RETRY), "streamed in its attempt"),
    "a chunk of a closed attempt": (
        [HEADER, START, STEP, RETRY, CHUNK, STEP_END, END],
        "belong to the open attempt",
    ),
    "a chunk outside its step": ([*WHOLE, CHUNK], "stands inside it"),
    "an aborted ending that says why": (
        instead(END, ak.TurnEnded(1, ak.Ending("aborted", message="bored"))),
        "says nothing more",
    ),
    "a message that enters twice": (behind(ENTERED, ENTERED), "m1 was entered"),
    "a message that enters unclaimed": (without(CLAIMED), "m1 was pending"),
    "a claim that is forgotten": (without(ENTERED), "turn/end.*claimed any more"),
    "an id that comes again": ([*WHOLE, ARRIVED], "accepted once: m1 was entered"),
    "a claim of nothing": (without(ARRIVED), "first message of next_turn"),
    "a claim past the front": (
        [
            HEADER,
            ARRIVED,
            ak.InboxSpliced("next_turn", 1, inserted=(MORE,)),
            START,
            ak.InboxSpliced("next_turn", removed=("m2",), outcome="claimed"),
        ],
        "first message of next_turn",
    ),
    "a claim outside a turn": (swapped(START, CLAIMED), "inside a turn"),
    "a discard of what entered": (
        behind(END, spliced("discarded", "m1")),
        "was entered",
    ),
    "a rejection of what is pending": (
        behind(ARRIVED, spliced("rejected", "m1")),
        "is rejected was claimed",
    ),
    "a rejection of a notice": (
        [
            HEADER,
            ak.InboxSpliced("next_turn", inserted=(NOTICE,)),
            START,
            CLAIMED,
            spliced("rejected", "m1"),
            ak.TurnEnded(1, ak.Ending("blocked")),
        ],
        "a notice is not rejected: m1",
    ),
    "an edit that loses a message": (
        behind(
            ARRIVED, ak.InboxSpliced("next_turn", removed=("m1",), inserted=(MORE,))
        ),
        "loses no message",
    ),
    "a return to the wrong queue": (
        behind(
            CLAIMED,
            ak.InboxSpliced("next_step", inserted=(HELLO,), outcome="returned"),
        ),
        "the queue that it came from",
    ),
    "an insertion beyond the end": (
        instead(ARRIVED, ak.InboxSpliced("next_turn", 1, inserted=(HELLO,))),
        "at its end: at 1 of 0",
    ),
    "a request that did not change": (
        behind(CONFIGURED, ak.RequestConfigured("", (), "m")),
        "written on change",
    ),
    "a question left open": (behind(CALLED, ASKED), "approval is closed: q"),
    "a question closed twice": (
        behind(
            CALLED,
            ASKED,
            ak.ApprovalDecided("q", "denied"),
            ak.ApprovalDecided("q", "denied"),
        ),
        "closed once",
    ),
}


def test_a_whole_log_passes_and_is_reported() -> None:
    """The base that every broken log below differs from in one place."""
    report = check_log(WHOLE)
    assert report.turns == {1: ak.Ending("completed")}
    assert report.messages == {"m1": "entered"}
    assert report.entered == {1: ("m1",)}


def test_every_prefix_of_a_whole_log_passes_as_a_prefix() -> None:
    """A log that is still being written has something open, and that is no fault."""
    for cut in range(len(WHOLE)):
        check_log(WHOLE[:cut], whole=False)
    assert check_log(WHOLE[:3], whole=False).messages == {"m1": "pending"}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_log_is_refused_with_the_place_and_the_rule(name: str) -> None:
    """Each rule has a log that breaks it and nothing before it."""
    facts, complaint = BROKEN[name]
    with pytest.raises(AssertionError, match=f"(?s){complaint}"):
        check_log(facts)


def test_numbers_are_contiguous_from_one() -> None:
    """A store that loses or repeats an event is found by its numbers."""
    events = [ak.SessionEvent(n, 0.0, fact) for n, fact in enumerate(WHOLE, start=1)]
    check_log(events)
    with pytest.raises(AssertionError, match=r"event 5 .*expected 4"):
        check_log(events[:3] + events[4:])
    with pytest.raises(AssertionError, match=r"event 2 .*expected 1"):
        check_log(events[1:])
