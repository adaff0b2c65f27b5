"""Records of workflows: durable in time, closed after a crash, and good for more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

import agentkernel as ak
from agentkernel.bridges.workflow import Flow, run_workflow
from tests.race.flows import OPTIONS, Echo, notes, opened


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
