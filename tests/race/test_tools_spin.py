"""Tools that go on after a stop: busy ones are cancelled later, spinning ones rest."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import ScriptedModel, call
from tests.race.rig import BodyTool, codes


@pytest.mark.clause("C11b", "C11c")
@pytest.mark.case("CAN-08")
@pytest.mark.parametrize("threaded", [False, True])
async def test_tool_that_was_busy_when_it_was_stopped_is_cancelled_when_it_can_be(
    agent: ak.Agent, model: ScriptedModel, mock_clock: MockClock, *, threaded: bool
) -> None:
    """It swallowed nothing: the stop reaches the wait behind a section that is shielded.

    A thread that calls back moves the task of the tool as often as a spin would.
    """
    began, past, let_go = trio.Event(), trio.Event(), trio.Event()
    release = trio.Event()
    calls: list[None] = []

    def reports() -> None:
        while trio.from_thread.run_sync(release.is_set) is False:
            trio.from_thread.run_sync(calls.append, None)

    async def busy(_: ak.ToolInvocation) -> ak.ToolOutput:
        began.set()
        if threaded:
            await trio.to_thread.run_sync(reports)
        with trio.CancelScope(shield=True):
            await release.wait()
        past.set()
        await let_go.wait()
        return ak.ToolOutput.of("not cancelled")

    async def goes_on(rounds: int) -> None:
        seen = len(calls)
        while len(calls) < seen + rounds:
            await trio.lowlevel.checkpoint()

    agent.tools.add(BodyTool("t", busy))
    model.add([call("t")])
    agent.followup("go")
    try:
        await began.wait()
        await goes_on(1 * threaded)
        agent.cancel()
        await goes_on(500 * threaded)
        mock_clock.jump(60)
        await goes_on(500 * threaded)
        release.set()
        await past.wait()
        await wait_all_tasks_blocked()
        assert agent.status == "idle"
    finally:
        release.set()
        let_go.set()
    assert codes(agent) == ["ABORTED"]


@pytest.mark.clause("C11c")
@pytest.mark.parametrize("nested", [False, True])
async def test_tool_that_spins_is_put_at_rest_alone(
    agent: ak.Agent, model: ScriptedModel, mock_clock: MockClock, *, nested: bool
) -> None:
    """Also if a child of it takes the cancellation; its sibling is still cancelled."""
    release, past, done = trio.Event(), trio.Event(), trio.Event()
    spins = 0

    async def waits() -> None:
        if not nested:
            await done.wait()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(done.wait)

    async def ignores(_: ak.ToolInvocation) -> ak.ToolOutput:
        nonlocal spins
        while not done.is_set() and spins < 100_000:
            try:
                await waits()
            except* trio.Cancelled:
                spins += 1
        return ak.ToolOutput.of("at last")

    async def busy(_: ak.ToolInvocation) -> ak.ToolOutput:
        with trio.CancelScope(shield=True):
            await release.wait()
        past.set()
        await done.wait()
        return ak.ToolOutput.of("not cancelled")

    agent.tools.add(BodyTool("spins", ignores, parallel_safe=True))
    agent.tools.add(BodyTool("busy", busy, parallel_safe=True))
    model.add([call("spins"), call("busy")])
    agent.followup("go")
    try:
        await wait_all_tasks_blocked()
        agent.cancel()
        mock_clock.jump(0.5)
        await wait_all_tasks_blocked()
        assert 0 < spins < 100_000
        release.set()
        await past.wait()
        await wait_all_tasks_blocked()
        assert [(b.kind, b.name) for b in agent.blockers()] == [("tool", "spins")]
    finally:
        release.set()
        done.set()
    await agent.when_idle()
    assert sorted(map(str, codes(agent))) == ["ABORTED", "None"]
