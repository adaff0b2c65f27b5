"""What tests of workflows share: an echoing model, branches, readings of a record."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext

import msgspec
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Report
from agentkernel.bridges.workflow import Flow, WorkflowOptions
from agentkernel.bridges.workflow.record import DONE, ENDED
from agentkernel.testing import Gate
from tests.race.parts import stored, texts

__all__ = [
    "OPTIONS",
    "SPEC",
    "Echo",
    "asks",
    "copied",
    "endings",
    "notes",
    "one",
    "opened",
    "results",
]


class Echo:
    """A model that answers each prompt with its upper case, and counts the prompts."""

    def __init__(self, gates: dict[str, Gate] | None = None) -> None:
        self.asked: list[str] = []
        self.live = self.most = 0
        self._gates = gates or {}

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk]]:
        text = texts(request.messages)[-1]
        self.asked.append(text)
        self.live += 1
        self.most = max(self.most, self.live)
        try:
            yield self._chunks(text)
        finally:
            self.live -= 1

    async def _chunks(self, text: str) -> AsyncIterator[ak.Chunk]:
        await trio.lowlevel.checkpoint()
        if text in self._gates:
            await self._gates[text].wait()
        yield ak.TextChunk(text.upper())
        yield ak.UsageChunk(ak.Usage(input_tokens=3, output_tokens=4))
        yield ak.FinishChunk("stop")


@asynccontextmanager
async def opened(
    model: ak.Model, store: ak.SessionStore | None = None
) -> AsyncGenerator[ak.Kernel]:
    async with ak.open_kernel(store or ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        with trio.fail_after(3600):
            yield kernel


def asks(*prompts: str) -> list[Callable[[Flow], Awaitable[ak.JsonValue]]]:
    """Branches that ask one thing each."""

    def branch(prompt: str) -> Callable[[Flow], Awaitable[ak.JsonValue]]:
        return lambda flow: flow.agent(prompt)

    return [branch(prompt) for prompt in prompts]


OPTIONS = WorkflowOptions(model="m")


SPEC = ak.ToolSpec(
    "study",
    "Studies a topic.",
    {"type": "object", "properties": {"topic": {"type": "string"}}},
)


async def notes(store: ak.SessionStore, record: str) -> list[tuple[str, ak.JsonObject]]:
    """List what a record says of its runs, by name and body."""
    found: list[tuple[str, ak.JsonObject]] = []
    for event in await stored(store, record):
        if isinstance(event.data, ak.Extension):
            assert isinstance(event.data.body, dict)
            found.append((event.data.name, event.data.body))
    return found


def results(agent: ak.Agent) -> list[ak.ToolResult]:
    """List the results of an agent's calls."""
    events = agent.session.events
    return [e.data.message for e in events if isinstance(e.data, ak.ToolReturned)]


async def copied(
    source: ak.SessionStore,
    cut: dict[str, int] | None = None,
    *,
    running: bool = False,
) -> ak.MemoryStore:
    """Copy a store as a crash would have left it: some sessions up to an event.

    Args:
      source: what is copied.
      cut: the last events of sessions that are not copied whole.
      running: whether the source is open, so that its kernel is at work.

    """
    store = ak.MemoryStore()
    async with nullcontext() if running else source, store:
        for info in await source.sessions():
            name = info.session_id
            events = await stored(source, name)
            claim = await store.claim(name, token="gone", create=True)  # noqa: S106  # the name of a claim
            kept = events[: (cut or {}).get(name, len(events))]
            await store.write([ak.Append(claim, kept)])
            await store.release(claim)
    return store


async def one(flow: Flow) -> ak.JsonValue:
    """One agent."""
    return await flow.agent("a")


async def endings(store: ak.SessionStore, record: str = "w") -> list[str]:
    """List how a record's runs and agents ended, in order."""
    found: list[str] = []
    for event in await stored(store, record):
        fact = event.data
        if isinstance(fact, ak.SubagentDescribed) and fact.ending is not None:
            found.append(f"child {fact.ending.kind}")
        if not isinstance(fact, ak.Extension) or not isinstance(fact.body, dict):
            continue
        if fact.name == DONE:
            report = msgspec.convert(fact.body["report"], Report)
            found.append(f"agent {report.ending}")
        elif fact.name == ENDED:
            found.append(f"run {fact.body['ending']}")
    return found
