"""Values that no type checker has seen: they harm neither the log nor the kernel.

Models, tools and listeners are anybody's, and many are not type-checked. What they
give reaches the log, which has to be readable for ever, or is refused where it came in.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Literal, cast

import pytest
import trio
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import ScriptedModel, call, check_log
from tests.race.parts import Probe, facts, listen, opened


class SilentError(Exception):
    """Cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class ForgetfulError(ak.ModelError):
    """Never calls the constructor of its base."""

    def __init__(self) -> None:
        pass


class Streams:
    """A model that streams whatever it was given."""

    def __init__(self, *chunks: object) -> None:
        self._chunks = chunks

    @asynccontextmanager
    async def stream(
        self, _request: ak.ModelRequest, /
    ) -> AsyncGenerator[AsyncGenerator[ak.Chunk, None], None]:
        yield self._give()

    async def _give(self) -> AsyncGenerator[ak.Chunk, None]:
        for chunk in self._chunks:
            await trio.lowlevel.checkpoint()
            yield cast("ak.Chunk", chunk)
        await trio.lowlevel.checkpoint()
        yield ak.FinishChunk("stop")


def odd(make: type, /, *args: object, **fields: object) -> object:
    """Make a value of what its types forbid."""
    made: object = make(*args, **fields)
    return made


def deep(error: Exception) -> ExceptionGroup[Exception]:
    group = ExceptionGroup("deep", [error])
    for _ in range(2000):
        group = ExceptionGroup("deep", [group])
    return group


def endings(agent: ak.Agent) -> list[str]:
    return [f.reason.kind for f in facts(agent) if isinstance(f, ak.TurnEnded)]


async def reopened(store: ak.SessionStore) -> None:
    """Read a session again, as a later program does."""
    async with ak.open_kernel(store) as kernel, kernel.open("s") as agent:
        check_log(await agent.session.read())


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        SilentError(),
        BaseExceptionGroup("two", [GeneratorExit(), SilentError()]),
        deep(ValueError("deep down")),
    ],
    ids=["silent", "group", "deep"],
)
async def test_a_body_may_raise_what_cannot_be_told(
    autojump_clock: MockClock, error: BaseException, *, parallel: bool
) -> None:
    """Each call has its error result, and neither turn nor kernel falls over it."""

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        raise error

    model = ScriptedModel([call("t"), call("t")], ["end"])
    async with opened(model, [Probe("t", body, parallel_safe=parallel)]) as agent:
        agent.followup("go")
        await agent.when_idle()
        assert endings(agent) == ["completed"]
        results = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert [f.error.code for f in results if f.error] == ["TOOL_ERROR"] * 2


@pytest.mark.parametrize("seam", [ak.PreStep, ak.Request, ak.TurnStopping])
async def test_a_listener_may_raise_what_cannot_be_told(
    autojump_clock: MockClock, seam: type
) -> None:
    """Its turn ends with an error, and the next one runs."""
    async with opened(ScriptedModel(default=["ok"])) as agent:

        async def fail(*_args: object) -> object:
            await trio.lowlevel.checkpoint()
            raise SilentError

        unregister = listen(agent, seam, fail)
        agent.followup("go")
        await agent.when_idle()
        unregister()
        agent.followup("again")
        await agent.when_idle()
        assert endings(agent)[:2] == ["error", "completed"]


@pytest.mark.parametrize(
    "error",
    [
        SilentError(),
        ForgetfulError(),
        odd(ak.ModelError, ValueError("refused")),
        odd(ak.ModelError, "refused", code=404),
    ],
    ids=["silent", "forgetful", "an exception as text", "a number as code"],
)
async def test_a_model_may_raise_what_no_log_could_hold(
    autojump_clock: MockClock, error: BaseException
) -> None:
    """The ending holds text, whatever the error holds, and can be read again."""
    store = ak.MemoryStore()
    model = ScriptedModel([error], [error], ["ok"])
    async with opened(model, store=store) as agent:

        async def retry(payload: ak.RequestError, _next: object) -> ak.Retry | ak.Fail:
            await trio.lowlevel.checkpoint()
            return ak.Retry() if payload.attempt == 1 else ak.Fail()

        agent.on(ak.RequestError, retry)
        agent.followup("go")
        await agent.when_idle()
        agent.followup("again")
        await agent.when_idle()
        assert endings(agent) == ["error", "completed"]
    await reopened(store)


@pytest.mark.parametrize(
    "chunk",
    [
        "text",
        None,
        odd(ak.TextChunk, None),
        odd(ak.TextChunk, b"text"),
        odd(ak.ReasoningChunk, 5),
        odd(ak.ReasoningEndChunk, signature=b"sealed"),
        odd(ak.ReasoningEndChunk, signature=5),
        odd(ak.ToolCallChunk, "t", {"already": "parsed"}),
        odd(ak.ToolCallChunk, None, "{}"),
        odd(ak.ToolCallChunk, "t", "{}", provider_id=7),
        odd(ak.UsageChunk, {"input_tokens": "1"}),
        odd(ak.UsageChunk, odd(ak.Usage, input_tokens="1")),
        odd(ak.UsageChunk, ak.Usage(output_tokens=cast("int", 1.5))),
    ],
    ids=repr,
)
async def test_a_chunk_that_no_log_could_hold_fails_its_attempt(
    autojump_clock: MockClock, chunk: object
) -> None:
    """The failure says what was wrong, and what was streamed before stays readable."""
    store = ak.MemoryStore()
    model = Streams(ak.TextChunk("so far"), chunk)
    async with opened(model, [Probe("t")], store=store) as agent:
        sent = agent.followup("go")
        outcome = await agent.outcome(sent.id)
        assert (outcome.kind, outcome.code) == ("error", "error")
        assert outcome.detail is not None
        assert outcome.detail.startswith(("the model gave", "a stream gives"))
        assert agent.session.messages[-1] == ak.AssistantMessage(
            (ak.TextBlock("so far"),), interrupted=True
        )
    await reopened(store)


@pytest.mark.parametrize(
    "message",
    [
        None,
        b"text",
        odd(ak.UserMessage, 5, (ak.TextBlock("text"),)),
        odd(ak.UserMessage, "id", "text"),
        odd(ak.UserMessage, "id", ({"type": "text", "text": "text"},)),
        odd(ak.UserMessage, "id", (odd(ak.TextBlock, 5),)),
        odd(ak.UserMessage, "id", (odd(ak.BinaryBlock, "image/png", b"bytes"),)),
        odd(ak.UserMessage, "id", (odd(ak.BinaryBlock, 5, ak.Blob(b"bytes")),)),
        odd(ak.UserMessage, "id", (ak.TextBlock("text"),), kind="system"),
        odd(ak.UserMessage, "id", (ak.TextBlock("text"),), meta={"at": object()}),
    ],
    ids=repr,
)
async def test_a_message_that_no_log_could_hold_is_refused(
    autojump_clock: MockClock, message: object
) -> None:
    """Its sender is told, and nothing of it is in the session."""
    store = ak.MemoryStore()
    async with opened(ScriptedModel(default=["ok"]), store=store) as agent:
        before = agent.session.last_seq
        for verb in (agent.followup, agent.steer, agent.inject, agent.notice):
            with pytest.raises(TypeError):
                verb(cast("ak.UserMessage", message))
        sent = agent.inject("fine")
        before = agent.session.last_seq
        with pytest.raises(TypeError):
            agent.inbox.replace(sent.id, cast("ak.UserMessage", message))
        assert agent.session.last_seq == before
    await reopened(store)


async def test_a_binary_output_that_is_no_blob_is_an_error_result(
    autojump_clock: MockClock,
) -> None:
    """Bytes look right there; a log that holds them could not be read again."""
    output = ak.ToolOutput((cast("ak.BinaryBlock", odd(ak.BinaryBlock, "a/b", b"x")),))

    async def body(_invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        return output

    store = ak.MemoryStore()
    model = ScriptedModel([call("t")], ["end"])
    async with opened(model, [Probe("t", body)], store=store) as agent:
        agent.followup("go")
        await agent.when_idle()
        (result,) = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert result.error is not None
        assert "Blob" in result.error.message
    await reopened(store)


@pytest.mark.parametrize(
    ("description", "parameters"),
    [(None, {}), ("a tool", {"default": object()}), ("a tool", {"enum": {1, 2}})],
    ids=["no description", "an object", "a set"],
)
def test_a_spec_that_no_log_could_hold_is_none(
    description: object, parameters: object
) -> None:
    """It is refused where it is made, and names the tool."""
    with pytest.raises(TypeError, match="'t'"):
        odd(ak.ToolSpec, "t", description, parameters)


def test_a_spec_is_detached_from_what_it_was_made_of() -> None:
    """A list in a schema is what a log gives back: equal, and nobody's to change."""
    required = ["x"]
    spec = ak.ToolSpec("t", "a \udcff tool", {"required": required})
    required.append("y")
    assert spec.parameters == {"required": ("x",)}
    assert spec.description == "a \ufffd tool"


async def test_a_tool_without_a_spec_is_refused(autojump_clock: MockClock) -> None:
    """At its registration, and when a listener puts it into a request."""
    probe = Probe("t")
    probe.spec = cast(
        "ak.ToolSpec", SimpleNamespace(name="t", description="", parameters={})
    )
    store = ak.MemoryStore()
    async with opened(ScriptedModel(default=["ok"]), store=store) as agent:
        with pytest.raises(TypeError, match="must be a ToolSpec"):
            agent.tools.add(probe)

        async def smuggle(payload: ak.Request, _next: object) -> ak.ModelRequest:
            await trio.lowlevel.checkpoint()
            return ak.ModelRequest(
                system="",
                messages=payload.request.messages,
                tools=(probe.spec,),
                model="m",
                options={},
                signal=payload.signal,
                session_id="s",
                turn=payload.turn,
                step=payload.step,
            )

        agent.on(ak.Request, smuggle)
        sent = agent.followup("go")
        outcome = await agent.outcome(sent.id)
        assert (outcome.kind, outcome.code) == ("error", "internal")
    await reopened(store)


@pytest.mark.parametrize("answer", [None, True, "yes", ak.Ask("ask me again")])
async def test_an_answer_that_is_none_runs_nothing(
    autojump_clock: MockClock, answer: object
) -> None:
    """A question that is answered with a question has not been allowed."""
    probe = Probe("t")
    async with opened(ScriptedModel([call("t")], ["end"]), [probe]) as agent:

        async def ask(_payload: object, _next: object) -> object:
            await trio.lowlevel.checkpoint()
            return ak.Ask("may it?")

        async def decide(_payload: object, _next: object) -> object:
            await trio.lowlevel.checkpoint()
            return answer

        listen(agent, ak.PreExecute, ask)
        listen(agent, ak.Approve, decide)
        agent.followup("go")
        await agent.when_idle()
        assert probe.calls == []
        (result,) = [f for f in facts(agent) if isinstance(f, ak.ToolReturned)]
        assert result.error is not None
        assert "must return Allow or Deny" in result.error.message


async def test_the_failure_of_a_request_is_not_hidden_by_an_odd_decision(
    autojump_clock: MockClock,
) -> None:
    """A listener that forgets to return anything leaves the failure as it was."""
    model = ScriptedModel([ak.ModelError("overloaded", code="overloaded")])
    reports: list[str] = []
    async with opened(model) as agent:

        async def forget(_payload: object, _next: object) -> None:
            await trio.lowlevel.checkpoint()

        listen(agent, ak.RequestError, forget)
        agent.on(ak.ErrorReported, lambda payload: reports.append(str(payload.error)))
        sent = agent.followup("go")
        outcome = await agent.outcome(sent.id)
        assert (outcome.kind, outcome.code) == ("error", "overloaded")
        (report,) = reports
        assert report.endswith("must return Retry or Fail, not NoneType")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_steps": 2.5},
        {"max_steps": True},
        {"max_parallel_tool_calls": 1.5},
        {"stop_note": "no"},
        {"tools": "read"},
    ],
    ids=str,
)
def test_options_that_no_header_could_hold_are_refused(
    fields: dict[str, object],
) -> None:
    """A session that was created with them could not be read any more."""
    with pytest.raises((TypeError, ValueError), match=next(iter(fields))):
        odd(ak.AgentOptions, "m", **fields)


async def test_a_message_is_moved_into_a_queue_that_there_is(
    autojump_clock: MockClock,
) -> None:
    """A misspelt one would be in the log for ever."""
    store = ak.MemoryStore()
    async with opened(ScriptedModel(), store=store) as agent:
        sent = agent.inject("by the way")
        with pytest.raises(ValueError, match="nextturn"):
            agent.inbox.move(sent.id, 0, queue=cast("Literal['next_turn']", "nextturn"))
    await reopened(store)


async def test_a_delay_that_is_a_bool_is_a_number_in_the_log(
    autojump_clock: MockClock,
) -> None:
    """A listener's `Retry(True)` waits a second."""
    store = ak.MemoryStore()
    failing = ScriptedModel([ak.ModelError("busy", retryable=True)], ["ok"])
    async with opened(failing, store=store) as agent:

        async def again(_payload: object, _next: object) -> object:
            await trio.lowlevel.checkpoint()
            return odd(ak.Retry, delay=True)

        listen(agent, ak.RequestError, again)
        agent.followup("go")
        await agent.when_idle()
        [delay] = [f.delay for f in facts(agent) if isinstance(f, ak.RetryScheduled)]
        assert type(delay) is float
    await reopened(store)
