"""Observers that ask for an exit where none of their agent's tasks runs them."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, ScriptedModel, call
from tests.race.parts import stored
from tests.race.rig import BodyTool

EXITS = pytest.mark.parametrize("leaving", [SystemExit(3), BaseException("odd")])


@EXITS
@pytest.mark.clause("C10c", "C11d")
async def test_an_exit_asked_for_by_who_hears_of_what_is_stuck_leaves_the_kernel(
    autojump_clock: MockClock, leaving: BaseException
) -> None:
    """The task that watches tells them; what is stuck is still waited for."""

    async def slow(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)
        return ak.ToolOutput.of("late")

    def exits(_: ak.AgentStuck) -> None:
        raise leaving

    inner = ak.MemoryStore()
    with pytest.raises(type(leaving)) as caught:  # noqa: PT012  # leaving the block is what raises
        async with ak.open_kernel(FaultyStore(inner)) as kernel:
            kernel.models.register("m", ScriptedModel([call("t")]))
            agent = (await kernel.create("s", model="m")).agent
            agent.tools.add(BodyTool("t", slow))
            kernel.on(ak.AgentStuck, exits)
            agent.followup("go")
            await wait_all_tasks_blocked()
            agent.cancel()
            await trio.sleep(1000)
    assert caught.value is leaving
    assert trio.current_time() == 60
    assert (await stored(inner))[-1].type == "turn/end"


@EXITS
@pytest.mark.clause("C10c", "D3a")
@pytest.mark.parametrize("recovers", [False, True])
async def test_an_exit_asked_for_by_who_hears_of_a_write_leaves_the_kernel(
    autojump_clock: MockClock, leaving: BaseException, *, recovers: bool
) -> None:
    """Of one that failed, or of the turn that begins when one has succeeded again.

    The task that writes tells them, and is needed for the end: nothing is lost.
    """

    def exits(payload: ak.ErrorReported | ak.StatusChanged) -> None:
        if isinstance(payload, ak.ErrorReported) or payload.status == "running":
            raise leaving

    inner = ak.MemoryStore()
    store = FaultyStore(inner)
    with pytest.raises(type(leaving)) as caught:  # noqa: PT012  # leaving the block is what raises
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("m", ScriptedModel(default=["ok"]))
            agent = (await kernel.create("s", model="m")).agent
            await agent.session.flush()
            store.fail("write", times=6 if recovers else 1)
            if recovers:
                agent.inject("note")
                await wait_all_tasks_blocked()
                agent.followup("go")
                await agent.when_idle()
            agent.on(ak.StatusChanged if recovers else ak.ErrorReported, exits)
            if not recovers:
                agent.inject("note")
            await trio.sleep(1000)
    assert caught.value is leaving
    assert not hasattr(caught.value, "__notes__")
    assert len(await stored(inner)) > 1
