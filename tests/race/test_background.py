"""Tasks of an agent: whose they are, how one alone is ended, what is told of the slow."""

from __future__ import annotations

from contextvars import ContextVar

import pytest
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import ScriptedModel
from tests.race.parts import once

WORD: ContextVar[str] = ContextVar("word", default="of the kernel")


@pytest.mark.clause("C4c", "C4d")
async def test_a_task_of_an_agent_works_for_it_whoever_starts_it() -> None:
    """Be it the first or a later one: for its agent, in the context of the kernel."""
    seen: list[tuple[str | None, str]] = []

    async def work() -> None:  # noqa: ASYNC910  # it only looks
        current = ak.current_agent()
        seen.append((None if current is None else current.id, WORD.get()))

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        async with (
            kernel.open("owner", model="m") as owner,
            kernel.open("other", model="m") as other,
        ):
            WORD.set("of a sender")
            owner.start_soon(work)
            owner.start_soon(work)
            await wait_all_tasks_blocked()
            owner.start_soon(work)
            once(other, "turn/start", lambda: owner.start_soon(work))
            other.followup("go")
            await other.when_idle()
            await wait_all_tasks_blocked()
    assert seen == [("owner", "of the kernel")] * 4
