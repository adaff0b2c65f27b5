"""How a workflow ends that is stopped, and what is told of it and recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.workflow import (
    Flow,
    Progress,
    WorkflowLimitError,
    WorkflowLimits,
    WorkflowOptions,
    WorkflowTool,
    run_workflow,
    workflow_ending,
)
from agentkernel.bridges.workflow.record import DONE
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.flows import OPTIONS, SPEC, Echo, endings, one, opened
from tests.race.parts import stored


@pytest.mark.parametrize("inner", [True, False])
async def test_a_workflow_that_was_stopped_is_recorded_as_cancelled(
    inner: bool,  # noqa: FBT001  # pytest hands it in
) -> None:
    """Not as failed; each agent that began is told of as ended, and recorded.

    Stopped by a scope in the kernel's block, or by the one around it.
    """
    gate = Gate()
    told: list[tuple[str, str, str]] = []
    store = ak.MemoryStore()

    def tell(progress: Progress) -> None:
        ending = "" if progress.report is None else progress.report.ending
        told.append((progress.kind, progress.position, ending))

    async def work(flow: Flow) -> list[ak.JsonValue]:
        return [await flow.agent("a"), await flow.agent("b")]

    ways = WorkflowOptions(model="m", on_progress=tell)
    with trio.CancelScope() as outer:
        async with ak.open_kernel(store, strict=True) as kernel:
            kernel.models.register("m", Echo({"b": gate}))
            async with trio.open_nursery() as nursery:
                scope = nursery.cancel_scope if inner else outer

                async def stop() -> None:
                    await gate.reached()
                    scope.cancel()

                nursery.start_soon(stop)
                await run_workflow(kernel, work, session_id="w", options=ways)
    kind = "aborted" if inner else "disposed"
    assert told == [
        ("started", "1", ""),
        ("ended", "1", "completed"),
        ("started", "2", ""),
        ("ended", "2", kind),
    ]
    async with store:
        assert await endings(store) == [
            "child completed",
            "agent completed",
            f"child {kind}",
            f"agent {kind}",
            "run cancelled",
        ]
        assert workflow_ending(await stored(store, "w")) == "cancelled"


@pytest.mark.clause("C10a", "C10b")
@pytest.mark.parametrize("how", ["dispose", "exit", "cancel"])
async def test_a_workflow_of_an_agent_that_ends_is_recorded_as_cancelled(
    how: str,
) -> None:
    """In a task of that agent, which is told of the end behind the workflow's agents.

    That they were ended used to be a failure of theirs, and of the workflow.
    """
    gate = Gate()
    raised: list[BaseException] = []
    store = ak.MemoryStore()

    async def work(flow: Flow) -> None:
        await flow.parallel([one, one])

    with trio.CancelScope() as outer:
        async with ak.open_kernel(store, strict=True) as kernel:
            kernel.models.register("m", Echo({"a": gate}))
            handle = await kernel.create("s", model="m")
            ways = WorkflowOptions(model="m", parent=handle.agent)

            async def job() -> None:
                try:
                    await run_workflow(kernel, work, session_id="w", options=ways)
                except (ak.AgentDisposedError, ak.KernelClosedError) as error:
                    raised.append(error)

            handle.agent.start_soon(job)
            await gate.reached()
            if how == "dispose":
                await handle.dispose()
            elif how == "cancel":
                outer.cancel()
                await trio.sleep_forever()
    assert len(raised) == 1
    async with store:
        assert workflow_ending(await stored(store, "w")) == "cancelled"
        found = await endings(store)
    assert sorted(e for e in found if e.startswith("agent")) == ["agent disposed"] * 2


@pytest.mark.clause("C10a", "C10e")
@pytest.mark.parametrize("how", ["scope", "signal", "dispose"])
async def test_an_error_on_the_way_out_of_a_stop_makes_no_failure_of_it(
    how: str,
) -> None:
    """What is cleaned up may break; that the run was stopped is what its record says."""
    gate = Gate()
    store = ak.MemoryStore()

    async def breaking() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise ValueError("cleanup")

    async def work(flow: Flow, _arguments: ak.JsonValue = None) -> ak.JsonValue:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(breaking)
            return await flow.agent("a")

    async with ak.open_kernel(store) as kernel:
        kernel.models.register("m", Echo({"a": gate}))
        kernel.models.register("calling", ScriptedModel([call("study")]))
        name = "s-call_1_1_1"
        if how == "scope":
            name, scope = "w", trio.CancelScope()

            async def run() -> None:
                with scope:
                    await run_workflow(kernel, work, session_id="w", options=OPTIONS)

            async def both() -> None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(run)
                    await gate.reached()
                    scope.cancel()

            with pytest.raises(ExceptionGroup) as caught:
                await both()
            assert caught.group_contains(ValueError, match="cleanup")
        else:
            tool = WorkflowTool(SPEC, work, options=OPTIONS)
            async with kernel.open("s", model="calling", tools=[tool]) as agent:
                agent.followup("go")
                await gate.reached()
                if how == "signal":
                    agent.cancel()
                    await agent.when_idle()
        assert workflow_ending(await stored(store, name)) == "cancelled"


async def test_an_agent_that_a_sibling_ended_is_recorded_and_told_of_as_well() -> None:
    """And is run again by the next run."""
    gate = Gate()
    told: list[tuple[str, str]] = []

    async def work(flow: Flow) -> list[ak.JsonValue]:
        async def second(branch: Flow) -> ak.JsonValue:
            await gate.reached()
            raise ValueError("second")

        return await flow.parallel([one, second])

    async with opened(Echo({"a": gate})) as kernel:
        ways = WorkflowOptions(
            model="m", on_progress=lambda p: told.append((p.kind, p.position))
        )
        with pytest.raises(ValueError, match="second"):
            await run_workflow(kernel, work, session_id="w", options=ways)
        assert told == [("started", "1.0.1"), ("ended", "1.0.1")]
        assert await endings(kernel.store) == [
            "child aborted",
            "agent aborted",
            "run failed",
        ]
        gate.open()

        async def alone(flow: Flow) -> list[ak.JsonValue]:
            return await flow.parallel([one])

        done = await run_workflow(kernel, alone, session_id="w", options=ways)
        assert (done.value, done.started) == (["A"], 1)


async def test_an_agent_is_told_of_as_ended_though_a_stop_comes_before_that_is_durable() -> (
    None
):
    """Whoever shows progress would show it at work for ever: it has ended."""
    told: list[tuple[str, str]] = []

    async with opened(Echo()) as kernel:
        ways = WorkflowOptions(
            model="m",
            on_progress=lambda p: told.append(
                (p.kind, p.report.text if p.report else "")
            ),
        )
        with trio.CancelScope() as scope:

            def stop(payload: ak.Appended) -> None:
                fact = payload.event.data
                if isinstance(fact, ak.Extension) and fact.name == DONE:
                    scope.cancel()

            kernel.on(ak.Appended, stop)
            await run_workflow(kernel, one, session_id="w", options=ways)
        assert scope.cancelled_caught
        assert told == [("started", ""), ("ended", "A")]


async def test_tokens_of_an_agent_that_was_stopped_count(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A limit of time within a workflow is no way around the limit of tokens."""
    gate = Gate()

    class Slow(Echo):
        async def _chunks(self, text: str) -> AsyncIterator[ak.Chunk]:
            yield ak.UsageChunk(ak.Usage(input_tokens=30, output_tokens=4))
            await gate.wait()
            yield ak.FinishChunk("stop")

    async def work(flow: Flow) -> None:
        with trio.move_on_after(5):
            await flow.agent("a")
        await flow.agent("b")

    async with opened(Slow()) as kernel:
        ways = WorkflowOptions(model="m", limits=WorkflowLimits(tokens=34))
        with pytest.raises(WorkflowLimitError, match="tokens"):
            await run_workflow(kernel, work, session_id="w", options=ways)
