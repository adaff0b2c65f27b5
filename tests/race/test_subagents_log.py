"""What the log of a parent says of its children, and when it is on disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Subagents, agent_tool
from agentkernel.testing import FaultyStore, Gate, ScriptedModel, call, check_log
from tests.race.parts import stored, texts
from tests.race.test_subagents import described, turn_endings

NextStep = Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]]


def named(events: list[ak.SessionEvent]) -> list[tuple[str, str | None]]:
    """Which children a stored log names, and how they ended."""
    return [
        (fact.child, None if fact.ending is None else fact.ending.kind)
        for fact in (event.data for event in events)
        if isinstance(fact, ak.SubagentDescribed)
    ]


@pytest.mark.clause("D2b")
@pytest.mark.case("SUB-03")
@pytest.mark.parametrize("detached", [False, True])
async def test_a_child_is_named_on_disk_before_it_does_anything(
    *, detached: bool
) -> None:
    """A crash leaves no child at work that nobody can find from its parent."""
    gate = Gate()
    store = ak.MemoryStore()
    child = ScriptedModel([gate, "done"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="child") as agent:
            subagents = Subagents([Persona("w", model="child")])
            async with trio.open_nursery() as nursery:

                async def run() -> None:
                    await subagents.run(agent, "go", detached=detached)

                nursery.start_soon(run)
                await gate.reached()
                [below] = [a for a in kernel.agents if a is not agent]
                assert named(await stored(store)) == [(below.id, None)]
                gate.open()


async def test_a_child_that_cannot_be_named_on_disk_does_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The parent's log cannot be written: the call fails, and no model is asked."""
    store = FaultyStore(ak.MemoryStore())
    child = ScriptedModel(default=["never"])
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("child", child)
        async with kernel.open("s", model="child") as agent:

            def fail(payload: ak.Appended) -> None:
                if isinstance(payload.event.data, ak.SubagentDescribed):
                    store.fail("write", times=1)

            agent.on(ak.Appended, fail)
            with pytest.raises(ak.StorageError):
                await Subagents().run(agent, "go")
            # By then the log can be written again.
            await trio.sleep(60)
            assert autojump_clock.current_time() >= 60
            [(name, _), (same, ending)] = described(agent)
            assert (name, ending) == (same, "disposed")
    assert not child.requests


@pytest.mark.case("SUB-06")
@pytest.mark.parametrize("reminded", [False, True])
async def test_a_log_that_closes_first_has_the_ending_of_its_child(
    *, reminded: bool
) -> None:
    """Whoever waits for the child from outside gets to run only after the parent."""
    held = trio.Event()
    child = ScriptedModel(*([["no answer"]] if reminded else []), default=["never"])
    store = ak.MemoryStore()

    async def hold(payload: ak.PreStep, following: NextStep) -> ak.Enter | ak.Reject:
        if payload.turn == 1 + reminded:
            held.set()
            await trio.sleep_forever()
        return await following(payload)

    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("child", child)
        kernel.on(ak.PreStep, hold)
        handle = await kernel.create("s", model="child")

        async def run() -> None:
            with pytest.raises(ak.AgentDisposedError):
                await Subagents().run(handle.agent, "go", schema=dict)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await held.wait()
            await handle.dispose()
        events = await stored(store)
        check_log(events)
        [(name, begun), (same, ending)] = named(events)
        assert (name, begun, ending) == (same, None, "disposed")
        endings = turn_endings(await stored(store, name))
        assert endings == [*(["completed"] if reminded else []), "disposed"]


async def test_an_answer_is_kept_although_its_session_cannot_be_closed() -> None:
    """The claim on the child's session is not given back: reported, and no more."""
    store = FaultyStore(ak.MemoryStore())
    reported: list[tuple[type[BaseException], str]] = []
    parent = ScriptedModel([call("agent", prompt="go")], ["I see"])
    child = ScriptedModel(["forty-two"])
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", parent)
        kernel.models.register("child", child)
        kernel.on(
            ak.ErrorReported,
            lambda p: reported.append((type(p.error), p.agent.id)),
        )
        tool = agent_tool(Persona("w", model="child"))
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            store.fail("release", times=1)
            agent.followup("start")
            await agent.when_idle()
            assert texts(parent.requests[1].messages)[-1] == "forty-two"
            assert described(agent)[-1][1] == "completed"
            assert [a.id for a in kernel.agents] == ["s"]
            await trio.testing.wait_all_tasks_blocked()
    assert reported == [(ak.StorageError, "s")]


async def crashed_at(store: ak.MemoryStore, at: str) -> ak.MemoryStore:
    """Copy a store as a crash left it: each session up to its first event `at`."""
    copy = ak.MemoryStore()
    async with store, copy:
        for name in [info.session_id for info in await store.sessions()]:
            events = await stored(store, name)
            cuts = [i for i, event in enumerate(events) if _is_cut(event, at)]
            claim = await copy.claim(name, token="crashed", create=True)  # noqa: S106  # a claim has a token, no secret
            await copy.write([ak.Append(claim, events[: min(cuts, default=None)])])
            await copy.release(claim)
    return copy


def _is_cut(event: ak.SessionEvent, at: str) -> bool:
    fact = event.data
    ended = isinstance(fact, ak.SubagentDescribed) and fact.ending is not None
    return ended or event.type == at


@pytest.mark.clause("D5a")
@pytest.mark.case("SUB-03")
@pytest.mark.parametrize(
    ("at", "ending"), [("turn/end", "interrupted"), ("tool/result", "completed")]
)
async def test_a_resume_says_how_a_child_ended_that_a_crash_cut_off(
    at: str, ending: str
) -> None:
    """Once, and whoever opens the session: as its own log says, if that knows."""
    store = ak.MemoryStore()
    parent = ScriptedModel([call("agent", prompt="go")], default=["end"])
    tool = agent_tool(Persona("w", model="child"))
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("m", parent)
        kernel.models.register("child", ScriptedModel(["x"]))
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            agent.followup("go")
            await agent.when_idle()
    crashed = await crashed_at(store, at)
    [(child, begun)] = named(await stored(crashed))
    assert begun is None
    for _ in range(2):
        async with ak.open_kernel(crashed) as kernel:
            kernel.models.register("m", parent)
            async with kernel.open("s") as agent:
                await agent.when_idle()
                fork = await kernel.fork(agent)
                await fork.dispose()
        assert named(await stored(crashed)) == [(child, None), (child, ending)]
    check_log(await stored(crashed))


async def test_a_session_that_cannot_be_closed_is_told_of_when_the_parent_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The parent's own end came first: the program's log has it, nobody else can."""
    store = FaultyStore(ak.MemoryStore())
    async with ak.open_kernel(store) as kernel:
        kernel.models.register("child", ScriptedModel(["forty-two"]))
        handle = await kernel.create("s", model="child")

        def idle(payload: ak.StatusChanged) -> None:
            if payload.agent is not handle.agent and payload.status == "idle":
                store.fail("release", times=1)
                nursery.start_soon(handle.dispose)

        kernel.on(ak.StatusChanged, idle)
        async with trio.open_nursery() as nursery:
            report = await Subagents().run(handle.agent, "go")
    assert report.text == "forty-two"
    assert f"closing the session of {report.child}" in caplog.text
