"""A log that was cut anywhere, as a crash cuts it, is made whole once."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st

import agentkernel as ak
from agentkernel._session.fold import Fold
from agentkernel._session.repair import repair_facts
from agentkernel.testing import ScriptedModel, check_log, check_messages
from tests.property.logs import Story, stories

OWNER = "gone"
QUICK = settings(max_examples=40)


def text_of(facts: list[ak.Fact]) -> str:
    """What a reader was shown of the answer that the cut left open."""
    shown = ""
    for fact in facts:
        if isinstance(fact, ak.ChunkStreamed) and isinstance(fact.chunk, ak.TextChunk):
            shown += fact.chunk.text
        elif isinstance(
            fact, ak.AssistantReplied | ak.RetryScheduled | ak.StepEnded | ak.TurnEnded
        ):
            shown = ""
    return shown


@pytest.mark.clause("D5a", "I2b", "T3c", "T5b")
@pytest.mark.case("PAIR-11", "INB-08")
@QUICK
@given(stories())
def test_every_prefix_is_repaired_once(story: Story) -> None:
    """For each cut: the repaired log is whole, nothing is lost, and it stays so."""
    facts = story.facts
    for cut in range(len(facts) + 1):
        prefix = facts[:cut]
        fold = Fold.over(prefix)
        accepted = set(fold.messages)
        added = repair_facts(fold)
        report = check_log([*prefix, *added])
        assert set(report.messages) == accepted
        assert "claimed" not in report.messages.values()
        repaired = Fold.over([*prefix, *added])
        assert not repair_facts(repaired)
        check_messages(repaired.history.view())
        shown = text_of(prefix)
        if shown.strip():
            kept = [f for f in added if isinstance(f, ak.AssistantReplied)]
            assert [(f.message.text, f.interrupted) for f in kept] == [(shown, True)]
            assert not kept[0].message.calls
        started = {f.call_id for f in prefix if isinstance(f, ak.ToolCalled)}
        for fact in added:
            if isinstance(fact, ak.ToolReturned):
                assert fact.error is not None
                began = fact.error.code == "TOOL_OUTCOME_UNKNOWN"
                assert began is (fact.call_id in started)


@pytest.mark.clause("D5a", "I3a")
@pytest.mark.case("PAIR-11")
@QUICK
@given(stories(), st.data())
def test_a_cut_session_is_resumed_and_gone_on_with(
    story: Story, data: st.DataObject
) -> None:
    """Resumed three times it was repaired once, runs nothing, and takes a message."""
    cut = data.draw(st.integers(1, len(story.events)))
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(_resume, story.events[:cut], clock=clock)


async def _resume(events: tuple[ak.SessionEvent, ...]) -> None:
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim("s", token=OWNER, create=True)
        await store.write([ak.Append(claim, events)])
    lengths: list[int] = []
    for _ in range(3):
        model = ScriptedModel(default=["again"])
        async with ak.open_kernel(
            store, clock=trio.current_time, strict=True
        ) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.resume("s")).agent
            lengths.append(agent.session.last_seq)
            await trio.testing.wait_all_tasks_blocked()
            assert agent.status == "idle"
            assert not model.requests
    assert lengths[0] == lengths[1] == lengths[2]
    stored = await store.read("s", limit=100_000)
    assert tuple(stored[: len(events)]) == events, "what was there is unchanged"
    async with ak.open_kernel(store, clock=trio.current_time, strict=True) as kernel:
        model = ScriptedModel(default=["again"])
        kernel.models.register("scripted", model)
        agent = (await kernel.resume("s")).agent
        async with agent.ask("go on") as reply:
            pass
        assert reply.outcome.kind == "completed"
        for request in model.requests:
            check_messages(request.messages)
        fork = (await kernel.fork(agent, "f")).agent
        assert not fork.inbox.next_turn
        async with fork.ask("and you") as reply:
            pass
        assert reply.outcome.kind == "completed"
        check_messages(model.requests[-1].messages)
        await fork.session.flush()
    check_log(await store.read("s", limit=100_000))
    check_log(await store.read("f", limit=100_000))


@pytest.mark.clause("I3a")
@QUICK
@given(stories(), st.data())
def test_a_fork_from_anywhere_is_whole_and_inherits_no_input(
    story: Story, data: st.DataObject
) -> None:
    """Whatever was open in the original is closed in the fork, and stays there."""
    at = data.draw(st.integers(1, len(story.events)))
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(_fork, story.events, at, clock=clock)


async def _fork(events: tuple[ak.SessionEvent, ...], at: int) -> None:
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim("s", token=OWNER, create=True)
        await store.write([ak.Append(claim, events)])
        async with ak.open_kernel(store, clock=trio.current_time) as kernel:
            model = ScriptedModel(default=["forked"])
            kernel.models.register("scripted", model)
            agent = (await kernel.fork("s", "f", at=at)).agent
            assert not agent.inbox.next_turn
            assert not agent.inbox.next_step
            async with agent.ask("go on") as reply:
                pass
            assert reply.outcome.kind == "completed"
            check_messages(model.requests[-1].messages)
        check_log(await store.read("f", limit=100_000))
        assert tuple(await store.read("s", limit=100_000)) == events
