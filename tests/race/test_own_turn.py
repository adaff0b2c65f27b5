"""An agent's own turn, and whoever else calls its verbs from an odd place."""

from __future__ import annotations

import queue
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import outcome
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.testing.log_check import check_log
from agentkernel.tools import FunctionTool
from tests.race.rig import BodyTool, codes, endings

PLACES = ["pre-step", "tool", "parallel tool", "task of a tool", "turn-stopping"]


def _inside(
    place: str,
    agent: ak.Agent,
    model: ScriptedModel,
    act: Callable[[], Awaitable[None]],
) -> None:
    """Let `act` run at one place inside the agent's turn."""

    async def pre(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        await act()
        return await following(payload)

    async def body(_: ak.ToolInvocation) -> ak.ToolOutput:
        if place == "task of a tool":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(act)
        else:
            await act()
        return ak.ToolOutput.of("done")

    async def stopping(_: ak.TurnStopping) -> None:
        await act()

    if place == "pre-step":
        agent.on(ak.PreStep, pre)
    elif place == "turn-stopping":
        agent.on(ak.TurnStopping, stopping)
    else:
        parallel = place == "parallel tool"
        agent.tools.add(BodyTool("t", body, parallel_safe=parallel))
        model.add([call("t"), call("t")] if parallel else [call("t")])


@pytest.mark.clause("C13b")
@pytest.mark.parametrize("place", PLACES)
async def test_waiting_for_ones_own_idle_is_refused_at_once(
    place: str, agent: ak.Agent, model: ScriptedModel
) -> None:
    """It would wait for itself; the error says so, and the turn goes on."""
    refused: list[str] = []

    async def act() -> None:
        with pytest.raises(ak.OwnTurnError) as caught:
            await agent.when_idle()
        refused.append(caught.value.verb)
        with pytest.raises(ak.OwnTurnError):
            async with agent.ask("and wait for it"):
                raise AssertionError

    _inside(place, agent, model, act)
    agent.followup("go")
    await agent.when_idle()
    assert set(refused) == {"when_idle"}
    assert endings(agent) == [(1, "completed")]


@pytest.mark.clause("C13a", "C10a", "S3a")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shielded", [False, True])
async def test_turn_may_dispose_of_its_own_agent(
    place: str, kernel: ak.Kernel, model: ScriptedModel, *, shielded: bool
) -> None:
    """The call marks and interrupts, then raises; the kernel finishes the disposal."""
    handle = await kernel.create("own", model="scripted")
    agent = handle.agent
    raised: list[str] = []

    async def act() -> None:
        try:
            with trio.CancelScope(shield=shielded):
                await handle.dispose()
        except BaseException as error:
            raised.append(type(error).__name__)
            raise

    _inside(place, agent, model, act)
    kernel.on(ak.ErrorReported, lambda p: None)
    agent.followup("go")
    await agent.when_idle()
    assert set(raised) == {"OwnTurnError" if shielded else "Cancelled"}
    assert endings(agent) == [(1, "disposed")]
    assert agent.session.closed
    assert kernel.agents == ()
    check_log(agent.session.events)


@pytest.mark.clause("C13b")
async def test_task_outside_the_turn_that_the_turn_has_started_may_wait(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Inside is a matter of the task tree, not of who asked or what is ambient."""
    waited: list[ak.Agent | None] = []

    async def job() -> None:
        await agent.when_idle()
        waited.append(ak.current_agent())

    async with trio.open_nursery() as nursery:

        async def starts(_: ak.ToolInvocation) -> ak.ToolOutput:
            nursery.start_soon(job)
            await wait_all_tasks_blocked()
            return ak.ToolOutput.of("started")

        agent.tools.add(BodyTool("t", starts))
        model.add([call("t")])
        agent.followup("go")
        await agent.when_idle()
    assert waited == [agent]
    assert codes(agent) == [None]


@pytest.mark.clause("C13b")
async def test_turn_may_wait_for_another_agent(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Only one's own idle is out of reach."""
    other = (await kernel.create("other", model="scripted")).agent

    async def waits(_: ak.ToolInvocation) -> ak.ToolOutput:
        other.followup("work")
        await other.when_idle()
        return ak.ToolOutput.of(str(len(endings(other))))

    agent.tools.add(BodyTool("t", waits))
    model.add([call("t")])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == [None]
    assert endings(other) == [(1, "completed")]


@pytest.mark.clause("C4c", "C4d", "C13a")
async def test_initiator_is_the_events_agent_and_nothing_else(  # noqa: PLR0915  # one story
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """For concurrent agents, and in a child's driver, which shadows its parent's."""
    names: dict[str, set[str | None]] = {"a": set(), "b": set(), "child": set()}

    def note(owner: ak.Agent) -> None:
        current = ak.current_agent()
        names[owner.id].add(None if current is None else current.id)

    async def through(payload: Any, following: Any) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # for events of several kinds
        note(payload.agent)
        await trio.lowlevel.checkpoint()
        note(payload.agent)
        return await following(payload)

    for event in (ak.Assemble, ak.PreStep, ak.Request, ak.PreExecute, ak.PostExecute):
        kernel.on(event, through)
    for told in (ak.Appended, ak.StatusChanged, ak.InboxInserted, ak.CancelRequested):
        kernel.on(told, lambda p: note(p.agent))

    a = (await kernel.create("a", model="scripted")).agent
    b = (await kernel.create("b", model="scripted")).agent

    async def spawns(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        note(invocation.agent)
        async with await kernel.create(
            "child", model="scripted", parent=invocation.agent
        ) as child:
            child.followup("work")
            note(invocation.agent)
            await child.when_idle()
            child.models.register("scripted", ScriptedModel([Gate()]))
            child.followup("held")
            await wait_all_tasks_blocked()
            invocation.signal.on_cancel(lambda _: note(invocation.agent))
            child.cancel(ak.PARENT)
            await child.when_idle()
        note(invocation.agent)
        return ak.ToolOutput.of("done")

    async def works(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        note(invocation.agent)
        await trio.lowlevel.checkpoint()
        note(invocation.agent)
        return ak.ToolOutput.of("done")

    a.tools.add(BodyTool("t", spawns))
    b.tools.add(BodyTool("t", works))
    model.add([call("t")], [call("t")])
    a.followup("go")
    b.followup("go")
    assert ak.current_agent() is None
    await a.when_idle()
    await b.when_idle()
    assert ak.current_agent() is None
    assert names == {"a": {"a"}, "b": {"b"}, "child": {"child"}}
    assert endings(b) == [(1, "completed")]


@pytest.mark.clause("C4c")
async def test_observer_of_a_signal_works_for_the_signals_agent(
    kernel: ak.Kernel, agent: ak.Agent, model: ScriptedModel
) -> None:
    """Whoever pressed stop, what hears it belongs to the turn."""
    other = (await kernel.create("other", model="scripted")).agent
    heard: list[ak.Agent | None] = []
    model.add([Gate()])
    agent.followup("go")
    await wait_all_tasks_blocked()
    signal = model.requests[0].signal
    assert signal is not None
    signal.on_cancel(lambda _: heard.append(ak.current_agent()))

    async def stops(_: ak.ToolInvocation) -> ak.ToolOutput:
        agent.cancel()
        heard.append(ak.current_agent())
        return ak.ToolOutput.of("done")

    other.tools.add(BodyTool("t", stops))
    model.add([call("t")])
    other.followup("go")
    await other.when_idle()
    await agent.when_idle()
    assert heard == [agent, other]


@pytest.mark.clause("C4d")
async def test_driver_runs_in_the_context_of_its_kernel_and_not_in_a_senders(
    model: ScriptedModel,
) -> None:
    """What must travel with a message goes in its `meta`."""
    place: ContextVar[str] = ContextVar("place", default="nowhere")
    seen: list[str] = []

    async def notes(_: ak.ToolInvocation) -> ak.ToolOutput:
        seen.append(place.get())
        return ak.ToolOutput.of("done")

    place.set("kernel")
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("scripted", model)
        place.set("creator")
        agent = (await kernel.create("s", model="scripted")).agent
        agent.tools.add(BodyTool("t", notes, parallel_safe=True))
        model.add([call("t"), call("t")])
        place.set("sender")
        message = ak.UserMessage("m", (ak.TextBlock("go"),), meta={"trace": "42"})
        agent.followup(message)
        await agent.when_idle()
        entered = model.requests[0].messages[0]
        assert isinstance(entered, ak.UserMessage)
        assert entered.meta == {"trace": "42"}
    assert seen == ["kernel", "kernel"]


async def nothing() -> None:
    """Do nothing."""
    await trio.lowlevel.checkpoint()


VERBS: dict[str, Callable[[ak.Agent], object]] = {
    "followup": lambda agent: agent.followup("x"),
    "steer": lambda agent: agent.steer("x"),
    "inject": lambda agent: agent.inject("x"),
    "wake": lambda agent: agent.wake(),
    "cancel": lambda agent: agent.cancel(),
    "remove": lambda agent: agent.inbox.remove("parked"),
    "append": lambda agent: agent.session.append(ak.Extension("x", {})),
    "start_soon": lambda agent: agent.start_soon(trio.lowlevel.checkpoint),
    "on": lambda agent: agent.on(ak.Appended, bool),
    "tools.register": lambda agent: agent.tools.add(FunctionTool(nothing)),
    "tools.keep": lambda agent: agent.tools.keep(["nothing"]),
    "tools.guard": lambda agent: agent.tools.guard(lambda _: None),
    "models.register": lambda agent: agent.models.register("x", ScriptedModel()),
    "prompt.section": lambda agent: agent.prompt.section("x", "y"),
    "prompt.variable": lambda agent: agent.prompt.variable("x", "y"),
    "kernel.on": lambda agent: agent.kernel.on(ak.Appended, bool),
    "kernel.get": lambda agent: agent.kernel.get("s"),
}


@pytest.mark.clause("C13c")
@pytest.mark.parametrize("verb", VERBS)
async def test_verb_from_another_thread_is_refused_with_the_line_that_fixes_it(
    verb: str, agent: ak.Agent
) -> None:
    """Nothing has happened; the same call through the token works."""
    agent.inject(ak.UserMessage("parked", (ak.TextBlock("x"),)))
    before = agent.session.last_seq
    errors: list[ak.WrongThreadError] = []

    def call_it() -> None:
        try:
            VERBS[verb](agent)
        except ak.WrongThreadError as error:
            errors.append(error)

    await trio.to_thread.run_sync(call_it)
    [error] = errors
    assert f"trio.from_thread.run_sync({error.owner}.{error.verb}, ..." in str(error)
    assert error.owner == ("kernel" if verb.startswith("kernel.") else "agent")
    assert error.verb.rpartition(".")[2] == verb.rpartition(".")[2]
    assert agent.session.last_seq == before
    token = trio.lowlevel.current_trio_token()

    def through_the_token() -> None:
        trio.from_thread.run_sync(VERBS[verb], agent, trio_token=token)

    await trio.to_thread.run_sync(through_the_token)
    await agent.when_idle()


@pytest.mark.clause("C13c")
def test_callbacks_of_a_host_loop_may_use_the_verbs_in_guest_mode() -> None:
    """There is no current task in them, and none is needed."""
    host: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
    ended: list[outcome.Outcome[None]] = []
    log: list[str] = []
    agents: list[ak.Agent] = []
    model = ScriptedModel([Gate()], default=["ok"])

    def stop() -> None:
        (agent,) = agents
        receipt = agent.cancel()
        log.append(f"stopped {receipt.turn}")
        agent.followup("second")
        agent.steer("third")
        agent.inject("fourth")
        log.append(agent.status)

    async def main() -> None:
        async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
            kernel.models.register("scripted", model)
            agent = (await kernel.create("s", model="scripted")).agent
            agents.append(agent)
            agent.followup("first")
            await wait_all_tasks_blocked()
            host.put(stop)
            while not log:
                await trio.lowlevel.checkpoint()
            await agent.when_idle()
            host.put(lambda: log.append(str(agent.wake())))
            host.put(lambda: agent.followup("from idle"))
            while len(model.requests) < 4:  # noqa: ASYNC110  # a guest has no event for it
                await trio.sleep(0.001)
            await agent.when_idle()
            log.extend(kind for _, kind in endings(agent))

    trio.lowlevel.start_guest_run(
        main,
        run_sync_soon_threadsafe=host.put,
        done_callback=ended.append,
        host_uses_signal_set_wakeup_fd=False,
    )
    while not ended:
        host.get(timeout=30)()
    ended[0].unwrap()
    assert log[:2] == ["stopped 1", "running"]
    assert log[3:] == ["aborted", "completed", "completed", "completed"]


@pytest.mark.clause("S1")
def test_agent_has_one_stop_and_its_owner_another() -> None:
    """No abort, no stop, no dispose on the agent; the handle disposes and no more."""
    agent = {name for name in dir(ak.Agent) if not name.startswith("_")}
    assert not agent & {
        "abort",
        "stop",
        "dispose",
        "kill",
        "close",
        "aclose",
        "interrupt",
    }
    assert {"cancel", "when_idle", "followup", "steer", "inject"} <= agent
    handle = {name for name in dir(ak.AgentHandle) if not name.startswith("_")}
    assert handle <= {"agent", "dispose"}
