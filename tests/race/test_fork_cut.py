"""Forks that are cut while they copy: a resume finishes them, and shows no half."""

from __future__ import annotations

import pytest

import agentkernel as ak
from agentkernel.testing import FaultyStore, ScriptedModel, check_log
from tests.integration.test_long_sessions import facts
from tests.race.parts import plant, stored

TURNS = 60
WAITING = ak.UserMessage("waiting", (ak.TextBlock("not the fork's"),))


async def source() -> ak.MemoryStore:
    """Make a session of three pages, with input that waits at its end."""
    found = [*facts(TURNS), ak.InboxSpliced("next_turn", inserted=(WAITING,))]
    events = [ak.SessionEvent(n, float(n), fact) for n, fact in enumerate(found, 1)]
    return await plant(events, "source")


@pytest.mark.clause("I3a", "D5a")
@pytest.mark.parametrize("write", [2, 3, 4, 5])
async def test_a_fork_that_was_cut_is_finished_by_a_resume(write: int) -> None:
    """The copy comes in pages, then what closes it: any of these writes may fail.

    A resume that took the half for the whole would lose the rest of the history
    without a word, or run input that belongs to the original.
    """
    inner = await source()
    store = FaultyStore(inner)
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        store.fail("write", nth=write, times=1)
        with pytest.raises(ak.StorageError):
            await kernel.fork("source", "fork")
        store.mend()
        agent = (await kernel.resume("fork")).agent
        assert len(agent.session.messages) == 2 * TURNS
        assert agent.inbox.next_turn == ()
        assert agent.session.header.lineage.forked_from == "source"
        await agent.session.flush()
        found = await stored(inner, "fork")
        report = check_log(found)
        assert report.messages["waiting"] == "discarded"
        assert (await agent.outcome(agent.followup("mine").id)).kind == "completed"


async def test_a_resume_of_a_whole_fork_adds_nothing_to_it() -> None:
    """What was finished is left alone, however often it is opened."""
    inner = await source()
    async with ak.open_kernel(inner, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        handle = await kernel.fork("source", "fork", at=50)
        await handle.dispose()
        before = await stored(inner, "fork")
        await (await kernel.resume("fork")).dispose()
        assert await stored(inner, "fork") == before


@pytest.mark.clause("I3a", "D5a")
async def test_a_fork_inherits_no_input_wherever_its_last_write_is_torn() -> None:
    """A store of files may keep the beginning of a write; what follows is repaired."""
    steering = ak.UserMessage("steering", (ak.TextBlock("not the fork's either"),))
    entered = ak.UserMessage("entered", (ak.TextBlock("the fork's as well"),))
    open_turn: list[ak.Fact] = [
        *facts(1),
        ak.InboxSpliced("next_turn", inserted=(entered, WAITING)),
        ak.TurnStarted(2),
        ak.InboxSpliced("next_turn", removed=("entered",), outcome="claimed"),
        ak.StepStarted(2, 1),
        ak.MessageEntered(entered),
        ak.InboxSpliced("next_step", inserted=(steering,)),
        ak.ChunkStreamed(2, 1, 1, ak.TextChunk("half an ans")),
    ]
    events = [ak.SessionEvent(n, float(n), fact) for n, fact in enumerate(open_turn, 1)]
    inner = await plant(events, "source")
    async with ak.open_kernel(inner, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        await (await kernel.fork("source", "fork")).dispose()
    whole = await stored(inner, "fork")
    assert len(whole) - len(events) == 5
    for kept in range(len(events), len(whole) + 1):
        torn = await plant(whole[:kept], "fork")
        claim = await torn.claim("source", token="copy", create=True)  # noqa: S106  # no secret, a holder's name
        await torn.write([ak.Append(claim, events)])
        await torn.release(claim)
        async with ak.open_kernel(torn, strict=True) as kernel:
            kernel.models.register("m", ScriptedModel(default=["ok"]))
            agent = (await kernel.resume("fork")).agent
            assert (agent.inbox.next_turn, agent.inbox.next_step) == ((), ()), kept
            assert [
                m.id for m in agent.session.messages if isinstance(m, ak.UserMessage)
            ]
            await agent.session.flush()
            check_log(await stored(torn, "fork"))


async def test_a_resume_keeps_the_first_input_that_a_fork_was_given() -> None:
    """It stands where a fork's own clearing up would: it is none."""
    inner = await source()
    async with ak.open_kernel(inner, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        handle = await kernel.fork("source", "fork", at=50)
        note = handle.agent.inject("mine")
        await handle.dispose()
        assert (await stored(inner, "fork"))[-1].seq == 51
        agent = (await kernel.resume("fork")).agent
        assert [m.id for m in agent.inbox.next_step] == [note.id]
