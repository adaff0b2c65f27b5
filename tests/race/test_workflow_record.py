"""Records of workflows: durable in time, closed after a crash, and good for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import msgspec
import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.workflow import Flow, run_workflow, workflow_ending
from agentkernel.bridges.workflow.record import BEGUN, DONE
from agentkernel.bridges.workflow.trace import Trace
from agentkernel.testing import check_log
from tests.race.flows import OPTIONS, Echo, copied, endings, notes, one, opened
from tests.race.parts import stored


class Onlooker(Echo):
    """An echo that looks at what is durable when it is asked."""

    store: ak.SessionStore

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[tuple[str, ak.JsonObject]]] = []
        self.sessions: list[str] = []

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk]]:
        self.seen.append(await notes(self.store, "w"))
        self.sessions.append(request.session_id)
        async with super().stream(request) as chunks:
            yield chunks


@pytest.mark.clause("T3b")
async def test_a_record_names_an_agent_before_that_agent_does_anything() -> None:
    """A crash while it works leaves its beginning, so that a resume can look at it.

    The record used to be written when the first agent had ended: until then a crash
    left a header alone, and the agent's session belonged to nobody.
    """
    model = Onlooker()

    async def work(flow: Flow) -> None:
        flow.phase("first")
        await flow.agent("a")

    async with opened(model) as kernel:
        model.store = kernel.store
        await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    [seen] = model.seen
    names = [name for name, _ in seen]
    assert names == ["workflow/started", "workflow/phase", "workflow/agent-started"]
    assert [seen[-1][1]["child"]] == model.sessions


async def test_a_record_says_that_it_is_one_before_its_function_runs() -> None:
    """Work beside agents is an effect too: the crash behind it leaves a record."""
    seen: list[str] = []

    async with opened(Echo()) as kernel:

        async def work(_flow: Flow) -> None:
            seen.extend(name for name, _ in await notes(kernel.store, "w"))

        await run_workflow(kernel, work, session_id="w", options=OPTIONS)
    assert seen == ["workflow/started"]


class Rater(Echo):
    """An echo that gives its answer by the tool for it, in its first step."""

    async def _chunks(self, text: str) -> AsyncIterator[ak.Chunk]:
        if text.startswith("rate"):
            yield ak.ToolCallChunk("answer", '{"rating": 5}')
            yield ak.FinishChunk("tool-calls")
            return
        if text.startswith("state"):
            yield ak.TextChunk('{"rating": 3}')
            yield ak.FinishChunk("stop")
            return
        async for chunk in super()._chunks(text):
            yield chunk


class Rating(msgspec.Struct):
    rating: int


async def mixed(flow: Flow) -> list[ak.JsonValue]:
    """One agent that gives a text, two that give an answer, by tool and as text."""
    return [
        await flow.agent("say"),
        await flow.agent("rate", schema=Rating),
        await flow.agent("state", schema=dict),
    ]


@pytest.mark.clause("D5a")
async def test_an_agent_that_ended_before_its_record_said_so_is_not_run_again() -> None:
    """Its own session has the result: text, answer and tokens come from there."""
    first = ak.MemoryStore()
    async with opened(Rater(), first) as kernel:
        whole = await run_workflow(kernel, mixed, session_id="w", options=OPTIONS)
        events = await stored(kernel.store, "w")
        record = await notes(kernel.store, "w")
    reports = [body["report"] for name, body in record if name == DONE]
    for cut in range(1, len(events) + 1):
        begun = sum(
            isinstance(e.data, ak.Extension) and e.data.name == BEGUN
            for e in events[:cut]
        )
        model = Rater()
        async with opened(model, await copied(first, {"w": cut})) as kernel:
            again = await run_workflow(kernel, mixed, session_id="w", options=OPTIONS)
            assert again.value == whole.value
            assert again.started == 3 - begun
            found = await notes(kernel.store, "w")
        made = [body["report"] for name, body in found if name == DONE]
        assert made[:begun] == reports[:begun]


async def test_only_the_turn_of_the_task_itself_is_its_result() -> None:
    """Somebody else had the agent do something before: that answer is not the result."""
    first = ak.MemoryStore()

    async def work(flow: Flow) -> ak.JsonValue:
        return await flow.agent("task")

    async def run(store: ak.SessionStore, model: Echo) -> ak.JsonValue:
        async with opened(model, store) as kernel:

            def greet(payload: ak.SessionStarted) -> None:
                if payload.agent.parent is not None:
                    payload.agent.followup("greet")

            kernel.on(ak.SessionStarted, greet)
            done = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
            return done.value

    assert await run(first, Echo()) == "TASK"
    async with first:
        record = await stored(first, "w")
        [child] = [
            e.data.child
            for e in record
            if isinstance(e.data, ak.SubagentDescribed) and e.data.ending
        ]
        events = await stored(first, child)
    begun = next(
        e.seq
        for e in record
        if isinstance(e.data, ak.Extension) and e.data.name == BEGUN
    )
    asked: list[list[str]] = []
    for cut in range(1, len(events) + 1):
        model = Echo()
        assert await run(await copied(first, {"w": begun, child: cut}), model) == "TASK"
        asked.append(model.asked)
    assert asked[-1] == []
    assert asked.count(["greet", "task"]) == len(asked) - 1


@pytest.mark.parametrize("verb", ["inject", "followup"])
async def test_what_every_agent_is_told_does_not_make_a_record_something_else(
    verb: str,
) -> None:
    """A listener of the whole kernel sends to the record's agent as well.

    A record used to be refused for holding more than its header, or for a turn.
    """
    async with opened(Echo()) as kernel:

        def greet(payload: ak.SessionStarted) -> None:
            getattr(payload.agent, verb)("Today is Monday.")

        kernel.on(ak.SessionStarted, greet)
        for started in (1, 0):
            done = await run_workflow(kernel, one, session_id="w", options=OPTIONS)
            assert (done.value, done.started) == ("A", started)


async def test_a_record_that_a_crash_left_without_its_first_note_is_used() -> None:
    """The header was durable, and what a listener had sent; the note was not."""
    first = ak.MemoryStore()
    async with opened(Echo(), first) as kernel:
        kernel.on(ak.SessionStarted, lambda p: p.agent.inject("Today is Monday."))
        await run_workflow(kernel, one, session_id="w", options=OPTIONS)
    for cut in (1, 2):
        async with opened(Echo(), await copied(first, {"w": cut})) as kernel:
            done = await run_workflow(kernel, one, session_id="w", options=OPTIONS)
            assert done.value == "A"


@pytest.mark.parametrize("known", [True, False])
async def test_of_two_runs_with_one_record_one_is_told_that_it_is_busy(
    known: bool,  # noqa: FBT001  # pytest hands it in
) -> None:
    """Whether the record is there already or both are about to make it."""
    told: list[str] = []
    async with opened(Echo()) as kernel:
        if known:
            await run_workflow(kernel, one, session_id="w", options=OPTIONS)

        async def run() -> None:
            try:
                done = await run_workflow(kernel, one, session_id="w", options=OPTIONS)
                told.append(str(done.value))
            except ak.StorageError as error:
                told.append(type(error).__name__)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(run)
    assert sorted(told) == ["A", "SessionBusyError"]


@pytest.mark.clause("D5a")
async def test_a_resume_says_of_what_a_crash_cut_off_that_it_was_interrupted() -> None:
    """Runs and agents that were open are closed once, by whoever goes on with them."""
    first = ak.MemoryStore()
    async with opened(Echo(), first) as kernel:
        await run_workflow(kernel, one, session_id="w", options=OPTIONS)
    async with first:
        record = await stored(first, "w")
        child = next(
            e.data.child for e in record if isinstance(e.data, ak.SubagentDescribed)
        )
        begun = next(
            e.seq
            for e in record
            if isinstance(e.data, ak.Extension) and e.data.name == BEGUN
        )
    store = await copied(first, {"w": begun, child: 5})
    async with store:
        assert workflow_ending(await stored(store, "w")) == "interrupted"
    ran = ["child completed", "agent completed", "run completed"]
    cut_off = ["child interrupted", "agent interrupted", "run interrupted"]
    for _ in range(2):
        async with opened(Echo(), store) as kernel:
            await run_workflow(kernel, one, session_id="w", options=OPTIONS)
            found = await endings(kernel.store)
            check_log(await stored(kernel.store, "w"))
            assert found[:3] == cut_off
            assert found[3:6] == ran
            assert set(found[6:]) <= {"run completed"}
            assert workflow_ending(await stored(kernel.store, "w")) == "completed"


async def test_an_agent_that_ended_well_is_not_called_interrupted() -> None:
    """Its session says how it ended, though nobody came to write that down."""
    first = ak.MemoryStore()
    async with opened(Echo(), first) as kernel:
        await run_workflow(kernel, one, session_id="w", options=OPTIONS)
    async with first:
        record = await stored(first, "w")
        begun = next(
            e.seq
            for e in record
            if isinstance(e.data, ak.Extension) and e.data.name == BEGUN
        )
    async with opened(Echo(), await copied(first, {"w": begun})) as kernel:
        done = await run_workflow(kernel, one, session_id="w", options=OPTIONS)
        assert done.started == 0
        assert await endings(kernel.store) == [
            "child completed",
            "run interrupted",
            "agent completed",
            "run completed",
        ]


async def test_a_session_that_is_no_record_has_no_ending_of_a_workflow() -> None:
    """A listing can ask it of every session."""
    async with opened(Echo()) as kernel:
        async with kernel.open("s", model="m"):
            pass
        assert workflow_ending(await stored(kernel.store, "s")) is None


@pytest.mark.clause("D5a")
@pytest.mark.parametrize("prompt", ["say", "rate", "state"])
@pytest.mark.parametrize("end", ["completed", "disposed"])
async def test_turns_behind_the_task_take_nothing_from_an_agent_that_had_ended(
    prompt: str, end: Literal["completed", "disposed"]
) -> None:
    """News of a job, or somebody's message, may come before the agent has gone.

    The crash came then: an agent with a schema used to be run again, and of any agent
    the record said that it was cut off, and then that it had completed.
    """
    first = ak.MemoryStore()
    schema = None if prompt == "say" else Rating

    async def work(flow: Flow) -> ak.JsonValue:
        return await flow.agent(prompt, schema=schema)

    async with opened(Rater(), first) as kernel:
        whole = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
        record = await stored(kernel.store, "w")
        begun = next(
            (e.seq, str(e.data.body["child"]))
            for e in record
            if isinstance(e.data, ak.Extension)
            and e.data.name == BEGUN
            and isinstance(e.data.body, dict)
        )
    left = await copied(first, {"w": begun[0]})
    async with left:
        claim = await left.claim(begun[1], token="gone", create=False)  # noqa: S106  # the name of a claim
        events = await stored(left, begun[1])
        number = events[-1].seq
        words = ak.UserMessage("more", (ak.TextBlock("more"),))
        answer = ak.AssistantMessage((ak.TextBlock("other"),))
        behind: list[ak.Fact] = [
            ak.TurnStarted(2),
            ak.MessageEntered(words),
            ak.AssistantReplied(2, 1, answer),
            ak.TurnEnded(2, ak.Ending(end)),
        ]
        made = [
            ak.SessionEvent(number + n, 0.0, fact) for n, fact in enumerate(behind, 1)
        ]
        await left.write([ak.Append(claim, made)])
        await left.release(claim)
    async with opened(Rater(), left) as kernel:
        again = await run_workflow(kernel, work, session_id="w", options=OPTIONS)
        assert (again.value, again.started) == (whole.value, 0)
        agents = [e for e in await endings(kernel.store) if e.startswith("agent")]
        assert agents == ["agent completed"]


async def test_an_agent_whose_other_turn_alone_completed_is_closed_and_run_again() -> (
    None
):
    """What it said to somebody else is no result, and how its own turn ended is told."""
    facts: list[ak.Fact] = [
        ak.SessionHeader(1),
        ak.TurnStarted(1),
        ak.MessageEntered(ak.UserMessage("i", (ak.TextBlock("greet"),))),
        ak.TurnEnded(1, ak.Ending("completed")),
        ak.TurnStarted(2),
        ak.MessageEntered(ak.UserMessage("j", (ak.TextBlock("a"),))),
        ak.TurnEnded(2, ak.Ending("error", "MODEL_ERROR", "overloaded")),
    ]
    events = [ak.SessionEvent(n, 0.0, fact) for n, fact in enumerate(facts, 1)]
    first = ak.MemoryStore()
    async with opened(Echo(), first) as kernel:
        await run_workflow(kernel, one, session_id="w", options=OPTIONS)
        record = await notes(kernel.store, "w")
        child = next(str(body["child"]) for name, body in record if name == BEGUN)
        at = next(
            e.seq
            for e in await stored(kernel.store, "w")
            if isinstance(e.data, ak.Extension) and e.data.name == BEGUN
        )
    left = await copied(first, {"w": at, child: 0})
    async with left:
        claim = await left.claim(child, token="gone", create=True)  # noqa: S106  # the name of a claim
        await left.write([ak.Append(claim, events)])
        await left.release(claim)
    async with opened(Echo(), left) as kernel:
        done = await run_workflow(kernel, one, session_id="w", options=OPTIONS)
        assert (done.value, done.started) == ("A", 1)
        agents = [e for e in await endings(kernel.store) if e.startswith("agent")]
        assert agents == ["agent error", "agent completed"]


def test_what_a_fork_has_copied_is_not_its_own_result() -> None:
    """An agent that begins with the record's history may find its very task there."""
    answer = ak.AssistantMessage((ak.TextBlock("theirs"),))
    facts: list[ak.Fact] = [
        ak.SessionHeader(1, lineage=ak.Lineage(forked_from="w", forked_at=5)),
        ak.TurnStarted(1),
        ak.MessageEntered(ak.UserMessage("i", (ak.TextBlock("task"),))),
        ak.AssistantReplied(1, 1, answer),
        ak.TurnEnded(1, ak.Ending("completed")),
    ]
    events = [ak.SessionEvent(n, 0.0, fact) for n, fact in enumerate(facts, 1)]
    report = Trace("task", events).report("c", None, unfinished="interrupted")
    assert (report.ending, report.text, report.ok) == ("interrupted", "", False)
