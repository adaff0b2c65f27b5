"""A stop while the model answers: what was seen is kept, once, and nothing else."""

from __future__ import annotations

import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from tests.race.rig import BodyTool, endings, facts, returns_done, said


@pytest.mark.clause("T4a", "T4c")
@pytest.mark.case("PART-01", "PART-07")
async def test_text_that_was_streamed_before_a_stop_is_kept_as_it_was_seen(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """Cancel and send back to back: partial answer, note, new message, in this order."""
    handle = await kernel.create("partial", model="scripted")
    agent = handle.agent
    seen: list[str] = []
    agent.on(
        ak.Appended,
        lambda p: (
            seen.append(p.event.data.chunk.text)
            if isinstance(p.event.data, ak.ChunkStreamed)
            and isinstance(p.event.data.chunk, ak.TextChunk)
            else None
        ),
    )
    model.add(["one ", "two ", Gate(), "three"])
    agent.followup("count")
    await wait_all_tasks_blocked()
    agent.cancel()
    agent.followup("go on")
    await agent.when_idle()
    (first, _) = facts(agent, ak.AssistantReplied)
    assert first.message.interrupted
    assert first.message.text == "one two " == "".join(seen[:2])
    assert said(model.requests[1].messages) == [
        "user: count",
        "assistant: one two ",
        "note",
        "user: go on",
    ]
    note = model.requests[1].messages[2]
    assert isinstance(note, ak.Note)
    for word in ("user", "parent", "cancel"):
        assert word not in note.text
    check_log(agent.session.events)
    await handle.dispose()
    again = (await kernel.resume("partial", model="scripted")).agent
    again.followup("more")
    await again.when_idle()
    assert said(model.requests[2].messages)[:4] == said(model.requests[1].messages)
    assert model.requests[2].messages[2] == note


@pytest.mark.clause("T4a", "T4b", "T5a")
@pytest.mark.case("PART-02")
async def test_stop_before_the_first_piece_and_failures_leave_no_empty_message(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A strict provider refuses an empty answer for ever: none is ever made."""
    model.add([Gate()], [ak.ModelError("down")], [ak.ModelError("down")], ["at last"])
    agent.followup("a")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    for text in ("b", "c", "d"):
        agent.followup(text)
        await agent.when_idle()
    assert [k for _, k in endings(agent)] == ["aborted", "error", "error", "completed"]
    for request in model.requests:
        for message in request.messages:
            assert not isinstance(message, ak.AssistantMessage) or message.content
    assert len(facts(agent, ak.AssistantReplied)) == 1
    check_log(agent.session.events)


@pytest.mark.clause("T4a", "T4b", "T3c")
@pytest.mark.case("PART-03")
async def test_blank_text_before_a_stop_is_no_answer(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A newline alone shows nothing; in front of a call, the call is kept and answered."""
    model.add(["\n\n", Gate()], ["\n\n", call("t")])

    async def waits(_: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.sleep_forever()
        raise AssertionError

    agent.tools.add(BodyTool("t", waits))
    agent.followup("a")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert facts(agent, ak.AssistantReplied) == []
    agent.followup("b")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    agent.followup("c")
    await agent.when_idle()
    messages = model.requests[-1].messages
    assert [line for line in said(messages) if line.startswith(("assi", "res"))] == [
        "assistant: \n\n<t>",
        "result: t",
    ]
    check_log(agent.session.events)


@pytest.mark.clause("T4a")
async def test_call_that_was_streamed_before_a_stop_is_not_kept(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The message was not formed yet: it keeps its text and carries no calls."""
    model.add(["let me see", call("t"), Gate()])
    agent.tools.add(BodyTool("t", returns_done))
    agent.followup("a")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    (reply,) = facts(agent, ak.AssistantReplied)
    assert reply.message == ak.AssistantMessage(
        (ak.TextBlock("let me see"),), interrupted=True
    )
    assert facts(agent, ak.ToolReturned) == []
    check_log(agent.session.events)


@pytest.mark.clause("T4a", "C3c")
@pytest.mark.case("PART-06")
async def test_stop_around_the_end_of_an_answer_records_it_exactly_once() -> None:
    """After n checkpoints, and from the n-th event: complete or interrupted, not both."""
    seen: list[str] = []
    for n in range(60):
        model = ScriptedModel(["one ", "two"])
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            count = 0

            def at_event(_: ak.Appended) -> None:
                nonlocal count
                count += 1
                if n >= 30 and count == n - 30:  # noqa: B023  # used within its round
                    agent.cancel()  # noqa: B023  # used within its round

            agent.on(ak.Appended, at_event)
            agent.followup("go")
            for _ in range(n if n < 30 else 0):
                await trio.lowlevel.checkpoint()
            if n < 30:
                agent.cancel()
            await agent.when_idle()
            check_log(agent.session.events)
            replies = facts(agent, ak.AssistantReplied)
            assert len(replies) <= 1
            chunks = "".join(
                c.chunk.text
                for c in facts(agent, ak.ChunkStreamed)
                if isinstance(c.chunk, ak.TextChunk)
            )
            if replies:
                message = replies[0].message
                assert message.text == chunks
                seen.append("interrupted" if message.interrupted else "complete")
            else:
                assert not chunks
                seen.append("none")
    assert set(seen) == {"none", "interrupted", "complete"}


@pytest.mark.clause("T5b", "T5a")
@pytest.mark.case("PART-08")
async def test_retry_after_partial_output_glues_nothing_together(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The failed attempt is closed by `llm/retry`; its usage counts, its call does not."""
    usage = ak.UsageChunk(ak.Usage(input_tokens=10))
    model.add(
        ["Hel", call("t"), usage, ak.ModelError("cut", retryable=True)],
        ["Hello", ak.UsageChunk(ak.Usage(input_tokens=10, output_tokens=2))],
    )

    async def retry(payload: ak.RequestError, following: object) -> ak.Retry:
        assert payload.delivered
        return ak.Retry(0)

    agent.on(ak.RequestError, retry)
    agent.followup("go")
    await agent.when_idle()
    (reply,) = facts(agent, ak.AssistantReplied)
    assert reply.message == ak.AssistantMessage((ak.TextBlock("Hello"),))
    assert len(facts(agent, ak.RetryScheduled)) == 1
    assert facts(agent, ak.ToolReturned) == []
    (step,) = facts(agent, ak.StepEnded)
    assert step.usage == ak.Usage(input_tokens=20, output_tokens=2)
    check_log(agent.session.events)


@pytest.mark.clause("T5c", "C3b")
@pytest.mark.case("CAN-07")
@pytest.mark.parametrize("how", ["cancel", "dispose"])
async def test_wait_for_a_retry_ends_at_once(
    how: str, kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """A provider that asks for a day does not get it once the user has said stop."""
    handle = await kernel.create("retry", model="scripted")
    agent = handle.agent
    model.add([ak.ModelError("busy", retryable=True, retry_after=86400)])

    async def obey(payload: ak.RequestError, following: object) -> ak.Retry:
        return ak.Retry(payload.error.retry_after or 0)

    agent.on(ak.RequestError, obey)
    agent.followup("go")
    await wait_all_tasks_blocked(0.01)
    assert [b.kind for b in agent.blockers()] == ["retry"]
    began = trio.current_time()
    if how == "cancel":
        agent.cancel()
        await agent.when_idle()
    else:
        await handle.dispose()
    assert trio.current_time() == began
    assert len(model.requests) == 1


@pytest.mark.clause("T3c", "T4c", "C11a")
@pytest.mark.case("PART-09", "PAIR-07")
async def test_result_stays_when_the_request_after_it_is_stopped(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The tool ran once, its result is in the history, and a note says what happened."""
    ran: list[int] = []

    async def books(_: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(1)
        return ak.ToolOutput.of("booked")

    agent.tools.add(BodyTool("t", books))
    model.add([call("t")], [Gate()])
    agent.followup("book")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    agent.followup("and?")
    await agent.when_idle()
    assert said(model.requests[2].messages) == [
        "user: book",
        "assistant: <t>",
        "result: t",
        "note",
        "user: and?",
    ]
    assert ran == [1]
    assert [f.message.text for f in facts(agent, ak.MessageEntered)] == ["book", "and?"]


@pytest.mark.clause("C11a", "T4a")
@pytest.mark.case("CAN-09")
async def test_what_a_model_yields_after_the_stop_is_published_to_nobody(
    agent: ak.Agent,
) -> None:
    """A stream with a full buffer and no checkpoint: nothing of it comes after the end."""

    class Buffered:
        closed = False

        @asynccontextmanager
        async def stream(
            self, request: ak.ModelRequest
        ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
            try:
                yield self._chunks()
            finally:
                self.closed = True

        async def _chunks(self) -> AsyncIterator[ak.Chunk]:
            yield ak.TextChunk("before")
            agent.cancel()
            for number in range(5):
                yield ak.ToolCallChunk(f"t{number}", "{}")
                yield ak.TextChunk("after")
            yield ak.FinishChunk("tool-calls")

    model = Buffered()
    agent.models.register("scripted", model)
    agent.followup("go")
    await agent.when_idle()
    (reply,) = facts(agent, ak.AssistantReplied)
    assert reply.message.text == "before"
    assert model.closed
    assert facts(agent, ak.ToolCalled) == []
    assert facts(agent, ak.ToolReturned) == []
    assert agent.session.events[-1].type == "turn/end"
    check_log(agent.session.events)


class _NurseryModel:
    """A generator with a nursery around its yields, as transports like to be."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.closed_in: list[trio.lowlevel.Task] = []
        self.opened_in: list[trio.lowlevel.Task] = []

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
        self.opened_in.append(trio.lowlevel.current_task())
        try:
            yield self._chunks()
        finally:
            self.closed_in.append(trio.lowlevel.current_task())

    async def _chunks(self) -> AsyncIterator[ak.Chunk]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            yield ak.TextChunk("one")  # noqa: ASYNC119  # that is what is tested
            if self.how == "error":
                raise ak.ModelError("broken")
            if self.how == "cancel":
                await trio.sleep_forever()
            yield ak.TextChunk("two")  # noqa: ASYNC119  # that is what is tested
            nursery.cancel_scope.cancel()
        yield ak.FinishChunk("stop")


@pytest.mark.clause("T2e", "C11b")
@pytest.mark.case("CONC-02")
@pytest.mark.parametrize("how", ["break", "error", "cancel"])
async def test_generator_with_a_nursery_is_closed_in_its_task_before_the_step_ends(
    how: str, agent: ak.Agent
) -> None:
    """However the reader leaves: no leftover for the collector, no crash of the run."""
    model = _NurseryModel(how)
    agent.models.register("scripted", model)
    if how == "break":
        # A stop without a checkpoint in between: the reader leaves by itself.
        agent.on(
            ak.Appended,
            lambda p: (
                agent.cancel() if isinstance(p.event.data, ak.ChunkStreamed) else None
            ),
        )
    agent.followup("go")
    await wait_all_tasks_blocked()
    if how == "cancel":
        agent.cancel()
    await agent.when_idle()
    gc.collect()
    assert model.closed_in == model.opened_in
    assert endings(agent) == [(1, "error" if how == "error" else "aborted")]
    check_log(agent.session.events)


@pytest.mark.clause("C10e", "C10a", "T2e")
@pytest.mark.case("CONC-03", "CAN-06")
@pytest.mark.parametrize("grouped", [False, True])
async def test_model_that_fails_while_it_is_stopped_does_not_change_the_ending(
    kernel: ak.Kernel, model: ScriptedModel, *, grouped: bool
) -> None:
    """Its fault is reported once; the turn ends aborted, and the agent goes on."""

    class Breaks:
        @asynccontextmanager
        async def stream(
            self, request: ak.ModelRequest
        ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
            try:
                yield self._chunks()
            except trio.Cancelled as cancelled:
                if grouped:
                    raise BaseExceptionGroup(
                        "both", [cancelled, RuntimeError("boom")]
                    ) from None
                raise RuntimeError("boom") from None

        async def _chunks(self) -> AsyncIterator[ak.Chunk]:
            yield ak.TextChunk("partial")
            await trio.sleep_forever()

    agent = (await kernel.create("breaks", model="breaks")).agent
    agent.models.register("breaks", Breaks())
    errors: list[str] = []
    agent.on(ak.ErrorReported, lambda p: errors.append(str(p.error)))
    agent.followup("go")
    await wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert errors == ["boom"]
    assert endings(agent) == [(1, "aborted")]
    (reply,) = facts(agent, ak.AssistantReplied)
    assert reply.message.text == "partial"
    check_log(agent.session.events)


@pytest.mark.clause("C10e")
async def test_fault_is_reported_when_the_stop_comes_after_it_and_before_the_ending(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The step closes after the failure, and an observer of that stops the turn."""
    model.add(["partial", ak.ModelError("broken")])
    errors: list[str] = []
    agent.on(ak.ErrorReported, lambda p: errors.append(str(p.error)))
    agent.on(
        ak.Appended,
        lambda p: agent.cancel() if isinstance(p.event.data, ak.StepEnded) else None,
    )
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    assert errors == ["broken"]


@pytest.mark.clause("C10a", "C10c")
@pytest.mark.case("CAN-06")
@pytest.mark.parametrize("where", ["before", "within", "sink"])
async def test_agent_is_idle_and_usable_after_whatever_failed(
    where: str, model: ScriptedModel
) -> None:
    """A fault before the first byte, in between, or of an observer of the turn's end."""
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("scripted", model)
        agent = (await kernel.create("s", model="scripted")).agent
        if where == "before":
            model.add([ValueError("odd")])
        elif where == "within":
            model.add(["text", ValueError("odd")])
        else:

            def raises(payload: ak.Appended) -> None:
                if isinstance(payload.event.data, ak.TurnEnded):
                    raise ValueError("odd")  # noqa: TRY004  # any error will do

            agent.on(ak.Appended, raises)
        agent.followup("a")
        await agent.when_idle()
        expected = "completed" if where == "sink" else "error"
        assert endings(agent) == [(1, expected)]
        agent.followup("b")
        await agent.when_idle()
        assert endings(agent)[-1] == (2, "completed")
        check_log(agent.session.events)


@pytest.mark.clause("T4a")
@pytest.mark.case("LIFE-07")
async def test_usage_that_was_known_before_a_stop_is_kept_and_the_rest_is_unknown(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Unknown is null, never zero; nothing known at all stays unknown."""
    known = ak.UsageChunk(ak.Usage(input_tokens=7))
    model.add(["a", known, Gate()], ["b", Gate()])
    for text in ("one", "two"):
        agent.followup(text)
        await wait_all_tasks_blocked()
        agent.cancel()
        await agent.when_idle()
    first, second = (f.usage for f in facts(agent, ak.StepEnded))
    assert first == ak.Usage(input_tokens=7, output_tokens=None)
    assert second is None


@pytest.mark.clause("T4c")
async def test_note_stands_once_for_a_run_of_stopped_turns_and_not_for_an_empty_one(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Nothing had entered, so there is nothing to explain."""
    model.add([Gate()], [Gate()], ["ok"])
    for text in ("a", "b"):
        agent.followup(text)
        await wait_all_tasks_blocked()
        agent.cancel()
        await agent.when_idle()
    agent.followup("c")
    agent.cancel()
    await agent.when_idle()
    agent.followup("d")
    await agent.when_idle()
    assert said(model.requests[-1].messages).count("note") == 1
