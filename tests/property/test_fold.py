"""A session is its log: folding is one fact after the other, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import agentkernel as ak
from agentkernel._session.fold import Fold
from agentkernel.testing import check_log, check_messages
from tests.property.logs import Story, stories

QUICK = settings(max_examples=60)


def state(thing: object) -> object:
    """Everything that a fold holds, as values that compare by content."""
    if isinstance(thing, dict):
        items = cast("dict[object, object]", thing).items()
        return {key: state(value) for key, value in items}
    if isinstance(thing, list | tuple):
        return [state(value) for value in cast("list[object]", thing)]
    cls = type(thing)
    names: tuple[str, ...] = getattr(cls, "__slots__", ())
    if isinstance(thing, msgspec.Struct):
        if thing.__struct_config__.frozen:
            return thing
        names = thing.__struct_fields__
    elif not cls.__module__.startswith("agentkernel"):
        return thing
    return {name: state(getattr(thing, name)) for name in names}


def over(facts: Iterable[ak.Fact]) -> Fold:
    return Fold.over(facts)


@pytest.mark.clause("I2c")
@QUICK
@given(stories(), st.data())
def test_folding_goes_on_from_any_cut(story: Story, data: st.DataObject) -> None:
    """A resume folds what is stored and goes on: it must come to the same state."""
    facts = story.facts
    cut = data.draw(st.integers(0, len(facts)))
    fold = over(facts[:cut])
    before = state(fold)
    view = fold.history.view()
    shown = tuple(view)
    for fact in facts[cut:]:
        fold.apply(fact)
    assert state(fold) == state(over(facts))
    assert tuple(view) == shown, "a view that was handed out does not change"
    assert state(over(facts[:cut])) == before


@pytest.mark.clause("I2b")
@QUICK
@given(stories())
def test_every_log_and_every_prefix_keeps_the_rules(story: Story) -> None:
    """What a reader sees while a session is written is as valid as the whole."""
    # A question or a hook that nobody answered stays open until a resume closes it.
    for cut in range(len(story.events) + 1):
        check_log(story.events[:cut], whole=False)


@pytest.mark.clause("T4c")
@QUICK
@given(stories())
def test_the_request_that_went_out_is_the_one_that_the_log_gives(story: Story) -> None:
    """The log is the only truth: no request holds anything that it does not."""
    for seq, request in story.requests:
        fold = over(story.facts[:seq])
        assert tuple(request.messages) == tuple(fold.history.view())
        check_messages(request.messages)
        configured = (
            next(
                fact
                for fact in story.facts[seq - 1 :]
                if isinstance(fact, ak.RequestConfigured)
            )
            if fold.request is None
            else fold.request
        )
        assert (configured.system, configured.model) == (request.system, request.model)
        assert configured.tools == request.tools


def test_the_stories_show_what_can_happen() -> None:
    """The properties above are worth what their examples are: all kinds of facts."""
    seen: set[str] = set()

    @settings(max_examples=400, database=None, derandomize=True)
    @given(stories())
    def collect(story: Story) -> None:
        for fact in story.facts:
            seen.add(fact.TYPE)
            if isinstance(fact, ak.TurnEnded):
                seen.add(fact.reason.kind)
            if isinstance(fact, ak.InboxSpliced) and fact.outcome is not None:
                seen.add(fact.outcome)
            if isinstance(fact, ak.AssistantReplied) and fact.interrupted:
                seen.add("interrupted message")

    collect()
    missing = {
        "completed", "aborted", "disposed", "error", "max-tokens",
        "claimed", "discarded", "returned", "interrupted message",
        "llm/retry", "tool/call", "tool/result", "assistant/chunk",
        "approval/asked", "approval/decided", "hook/invoked", "hook/result",
    } - seen  # fmt: skip
    assert not missing
