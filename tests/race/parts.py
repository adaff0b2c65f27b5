"""What race tests are put together from: an open agent, a tool, readings of a log."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, cast, final

import trio

import agentkernel as ak
from agentkernel import AgentOptions

__all__ = [
    "Probe",
    "after",
    "facts",
    "invalidity",
    "listen",
    "once",
    "opened",
    "places",
    "plant",
    "stored",
    "texts",
    "types",
]

Body = Callable[[ak.ToolInvocation], Awaitable[ak.ToolOutput]]


class _Register(Protocol):
    def __call__(self, event: object, fn: object, /) -> Callable[[], None]: ...


async def _say_ok(_call: ak.ToolInvocation) -> ak.ToolOutput:
    return ak.ToolOutput.of("ok")


@final
class Probe:
    """A tool whose body is the test's; it remembers how it was called."""

    def __init__(
        self,
        name: str,
        body: Body = _say_ok,
        *,
        parallel_safe: bool = False,
        max_seconds: float | None = None,
        check: Callable[[ak.JsonObject], ak.JsonObject] | None = None,
    ) -> None:
        self.spec = ak.ToolSpec(name, f"does {name}", {"type": "object"})
        self.parallel_safe = parallel_safe
        self.max_seconds = max_seconds
        self.calls: list[ak.ToolInvocation] = []
        self.ended = 0
        self._body = body
        self._check = check

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        return arguments if self._check is None else self._check(arguments)

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        self.calls.append(call)
        try:
            return await self._body(call)
        finally:
            self.ended += 1


@asynccontextmanager
async def opened(
    model: ak.Model,
    tools: Iterable[ak.Tool] = (),
    *,
    store: ak.SessionStore | None = None,
    options: AgentOptions | None = None,
    strict: bool = True,
) -> AsyncGenerator[ak.Agent, None]:
    """Open a kernel with one model and one agent, `s`; an hour is its limit."""
    async with ak.open_kernel(store or ak.MemoryStore(), strict=strict) as kernel:
        kernel.models.register("m", model)
        async with kernel.open("s", model="m", tools=tools, options=options) as agent:
            with trio.fail_after(3600):
                yield agent


def facts(agent: ak.Agent) -> list[ak.Fact]:
    """List what has happened, without the envelopes."""
    return [event.data for event in agent.session.events]


def types(agent: ak.Agent) -> list[str]:
    """List the wire names of what has happened."""
    return [event.type for event in agent.session.events]


def after(agent: ak.Agent, name: str) -> list[str]:
    """List the wire names from the first `name` on."""
    names = types(agent)
    return names[names.index(name) :]


def once(agent: ak.Agent, name: str, act: Callable[[], object]) -> None:
    """Do something when the next event of a type is appended."""

    def observe(payload: ak.Appended) -> None:
        if payload.event.type == name:
            unregister()
            act()

    unregister = agent.on(ak.Appended, observe)


def listen(agent: ak.Agent, event: object, fn: object) -> Callable[[], None]:
    """Register whatever for whatever: for what the types would not allow."""
    on = cast("_Register", agent.on)
    return on(event, fn)


def texts(messages: Sequence[ak.Message]) -> list[str]:
    """Show a history by the text of each message; a result block as a list."""
    shown: list[str] = []
    for message in messages:
        if isinstance(message, ak.ToolResults):
            shown.append("|".join(_result_text(r) for r in message.results))
        else:
            shown.append(message.text)
    return shown


def _result_text(result: ak.ToolResult) -> str:
    if result.error is not None:
        return result.error.code
    return "".join(b.text for b in result.content if isinstance(b, ak.TextBlock))


def invalidity(messages: Sequence[ak.Message]) -> str | None:
    """Say why a provider would refuse a history; None if it would not."""
    seen: set[str] = set()
    items = list(messages)
    for index, message in enumerate(items):
        if isinstance(message, ak.AssistantMessage):
            if not message.content:
                return f"message {index} is empty"
            ids = [call.call_id for call in message.calls]
            if seen.intersection(ids) or len(set(ids)) < len(ids):
                return f"message {index} repeats a call id"
            seen.update(ids)
            if not ids:
                continue
            block = items[index + 1] if index + 1 < len(items) else None
            if not isinstance(block, ak.ToolResults):
                return f"no results behind message {index}"
            if [r.call_id for r in block.results] != ids:
                return f"the results behind message {index} are not its calls'"
        elif isinstance(message, ak.ToolResults):
            before = items[index - 1] if index else None
            if not isinstance(before, ak.AssistantMessage) or not before.calls:
                return f"results {index} belong to no message"
    return None


def places(events: Sequence[ak.SessionEvent]) -> dict[str, list[str]]:
    """Say where each accepted message is, by a reading of the log of our own."""
    found: dict[str, list[str]] = {}
    for event in events:
        fact = event.data
        if isinstance(fact, ak.InboxSpliced):
            to = {None: "discarded", "claimed": "claimed"}.get(fact.outcome, "gone")
            for message_id in fact.removed:
                found[message_id] = [to]
            for message in fact.inserted:
                found[message.id] = ["pending"]
        elif isinstance(fact, ak.MessageEntered):
            if found.get(fact.message.id) in (["claimed"], None):
                found[fact.message.id] = ["entered"]
            else:
                found[fact.message.id].append("entered")
    return found


async def stored(
    store: ak.SessionStore, session_id: str = "s"
) -> list[ak.SessionEvent]:
    """Read a whole session from its store."""
    return list(await store.read(session_id, limit=1_000_000))


async def plant(
    events: Sequence[ak.SessionEvent], session_id: str = "s"
) -> ak.MemoryStore:
    """Make a store that holds a session of these events, as a crash left it."""
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim(session_id, token="planted", create=True)  # noqa: S106  # a claim has a token, no secret
        await store.write([ak.Append(claim, events)])
        await store.release(claim)
    return store
