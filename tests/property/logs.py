"""Logs that a kernel has really written: whole stories, drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

import trio
import trio.testing
from hypothesis import strategies as st

import agentkernel as ak
from agentkernel.testing import (
    ScriptedModel,
    call,
    install_yielding_listeners,
)

Move: TypeAlias = str | int
Script: TypeAlias = tuple[str | ak.Chunk | Exception, ...]


class Sent(NamedTuple):
    """A request as it went out, and where the log ended then."""

    seq: int
    request: ak.ModelRequest


class Story(NamedTuple):
    events: tuple[ak.SessionEvent, ...]
    requests: tuple[Sent, ...]

    @property
    def facts(self) -> list[ak.Fact]:
        return [event.data for event in self.events]


USAGE = ak.UsageChunk(ak.Usage(input_tokens=3, output_tokens=2))
SCRIPTS: list[Script] = [
    ("plain ", "text"),
    (*("more ",) * 25, USAGE),
    (ak.ReasoningChunk("hm"), ak.ReasoningEndChunk("seal"), "so", USAGE),
    ("I look. ", call("look"), call("look", deep=True), USAGE),
    (call("look"), call("nope"), ak.ToolCallChunk("look", "{broken")),
    ("half ", ak.ModelError("cut", retryable=True)),
    (USAGE, ak.ModelError("refused")),
    ("\n",),
    (ak.ReasoningChunk("never sealed "), "and cut", ak.FinishChunk("max-tokens")),
]
MOVES: st.SearchStrategy[Move] = st.one_of(
    st.sampled_from(
        [
            "followup",
            "followup",
            "steer",
            "inject",
            "cancel",
            "cancel and keep",
            "wake",
            "settle",
            "interrupt",
            "reopen",
            "reopen",
            "question",
            "hook",
        ]
    ),
    st.integers(1, 25),
)


class Look:
    """A tool that waits for a moment and fails when it looks too deep."""

    spec = ak.ToolSpec("look", "Look.", {"type": "object"})
    parallel_safe = True
    max_seconds = None

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        if call.arguments:
            raise ValueError("too deep")
        return ak.ToolOutput.of("seen")


async def retry(
    payload: ak.RequestError,
    _next: Callable[[ak.RequestError], Awaitable[ak.Retry | ak.Fail]],
) -> ak.Retry | ak.Fail:
    await trio.lowlevel.checkpoint()
    return ak.Retry(0.5) if payload.error.retryable else ak.Fail()


def stories() -> st.SearchStrategy[Story]:
    """Draw a story, let it happen, and give its log."""
    return st.builds(
        happen,
        st.lists(MOVES, min_size=1, max_size=16),
        st.lists(st.sampled_from(SCRIPTS), min_size=1, max_size=6),
    )


def happen(moves: list[Move], scripts: list[Script]) -> Story:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_happen, moves, scripts, clock=clock)


async def _happen(moves: list[Move], scripts: list[Script]) -> Story:
    store = ak.MemoryStore()
    model = ScriptedModel(*scripts, default=["the ", "end"])
    sent: list[Sent] = []
    agent: ak.Agent

    async def note(
        payload: ak.Request,
        following: Callable[[ak.Request], Awaitable[ak.ModelRequest]],
    ) -> ak.ModelRequest:
        request = await following(payload)
        sent.append(Sent(payload.agent.session.last_seq, request))
        return request

    async with ak.open_kernel(store, clock=trio.current_time, strict=True) as kernel:
        kernel.models.register("scripted", model)
        install_yielding_listeners(kernel)
        kernel.on(ak.RequestError, retry)
        kernel.on(ak.Request, note)
        options = ak.AgentOptions(model="scripted", system="Be brief.", max_steps=4)
        handle = await kernel.create("s", tools=[Look()], options=options)
        for number, move in enumerate(moves):
            agent = handle.agent
            if isinstance(move, int):
                await _pass(move)
            elif move == "interrupt":
                await _interrupt(agent, number)
            elif move == "settle":
                await agent.when_idle()
            elif move == "reopen":
                # Now and then in the middle of a turn, before or in its first step.
                if number % 5:
                    agent.followup(f"message {number}")
                    await _pass(2 * number)
                await handle.dispose()
                handle = await kernel.resume("s", tools=[Look()])
            else:
                _do(agent, move, number)
        await handle.agent.when_idle()
        await handle.agent.session.flush()
    return Story(tuple(await store.read("s", limit=100_000)), tuple(sent))


async def _interrupt(agent: ak.Agent, number: int) -> None:
    agent.followup(f"message {number}")
    await _pass(8 + number)
    agent.cancel()


async def _pass(passes: int) -> None:
    for _ in range(passes):
        await trio.lowlevel.checkpoint()


def _do(agent: ak.Agent, move: str, number: int) -> None:
    match move:
        case "cancel":
            agent.cancel()
        case "cancel and keep":
            agent.cancel(keep_inbox=True)
        case "wake":
            agent.wake()
        case "question":
            asked = ak.ApprovalAsked(f"q{number}", "c", "look", {}, "a test")
            agent.session.append(asked)
            if number % 3:
                agent.session.append(ak.ApprovalDecided(f"q{number}", "denied"))
        case "hook":
            agent.session.append(ak.HookInvoked(f"h{number}", "stop", "true"))
            if number % 3:
                agent.session.append(ak.HookReturned(f"h{number}", "success"))
        case _:
            getattr(agent, move)(f"message {number}")
