"""What the kernel gives to whoever asks for approvals: new arguments, free slots."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals, StaleApprovalError
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from agentkernel.tools.approval import Policy
from tests.race.rig import BodyTool, codes, facts, returns_done

Following = Callable[[ak.PreExecute], Awaitable[ak.Allow | ak.Ask | ak.Deny]]


Pre = Callable[[ak.PreExecute, Following], Awaitable[ak.Allow | ak.Ask | ak.Deny]]


def asking(*names: str, arguments: ak.JsonObject | None = None) -> Pre:
    async def ask(
        payload: ak.PreExecute, following: Following
    ) -> ak.Allow | ak.Ask | ak.Deny:
        if payload.call.name in names:
            return ak.Ask("may it?", arguments)
        return await following(payload)

    return ask


@pytest.mark.clause("T7a")
async def test_a_question_with_new_arguments_is_about_them_and_they_run(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """Else a person would say yes to one thing, and another would be done."""
    asked: list[ak.JsonObject] = []
    ran: list[ak.JsonObject] = []

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(call.arguments)
        return ak.ToolOutput.of("done")

    async def approve(payload: ak.Approve, _following: object) -> ak.Allow:
        asked.append(payload.call.arguments)
        return ak.Allow()

    agent.tools.add(BodyTool("t", body))
    agent.on(ak.PreExecute, asking("t", arguments={"n": 2}))
    agent.on(ak.Approve, approve)
    model.add([call("t", n=1)])
    agent.followup("go")
    await agent.when_idle()
    assert asked == ran == [{"n": 2}]
    assert [fact.arguments for fact in facts(agent, ak.ToolCalled)] == [{"n": 2}]


@pytest.mark.clause("T2b")
@pytest.mark.parametrize("raises", [False, True])
async def test_a_call_that_waits_for_an_answer_holds_no_slot(
    kernel: ak.Kernel,
    model: ScriptedModel,
    autojump_clock: MockClock,
    raises: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """Two slots, two questions, three calls that need none: these three overlap, by two.

    The questions are answered afterwards, or fail; their calls then take slots again,
    so that never more than two bodies run at once.
    """
    question, work = Gate(), Gate()
    running = most = 0

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await work.wait()
        running -= 1
        return ak.ToolOutput.of("done")

    async def approve(payload: ak.Approve, _following: object) -> ak.Allow:
        await question.wait()
        if raises:
            raise RuntimeError("the client is gone")
        return ak.Allow()

    options = ak.AgentOptions(model="scripted", max_parallel_tool_calls=2)
    handle = await kernel.create("slots", options=options)
    agent = handle.agent
    for name in ("asked", "free"):
        agent.tools.add(BodyTool(name, body, parallel_safe=True))
    agent.on(ak.PreExecute, asking("asked"))
    agent.on(ak.Approve, approve)
    model.add([call("asked"), call("asked"), *(call("free") for _ in range(3))])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    assert question.arrivals == 2
    assert running == 2
    question.open()
    await trio.testing.wait_all_tasks_blocked()
    assert running == 2
    work.open()
    await agent.when_idle()
    assert most == 2
    assert codes(agent).count(None) == (3 if raises else 5)


@pytest.mark.clause("T2b", "T7b")
async def test_a_stop_while_a_call_waits_for_its_slot_again_runs_nothing(
    kernel: ak.Kernel, model: ScriptedModel, autojump_clock: MockClock
) -> None:
    """The yes is there, the slot is not: the call is stopped, not started."""
    question, work = Gate(), Gate()

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        await work.wait()
        return ak.ToolOutput.of("done")

    async def approve(payload: ak.Approve, _following: object) -> ak.Allow:
        await question.wait()
        return ak.Allow()

    options = ak.AgentOptions(model="scripted", max_parallel_tool_calls=1)
    handle = await kernel.create("slots", options=options)
    agent = handle.agent
    agent.tools.add(BodyTool("asked", returns_done, parallel_safe=True))
    agent.tools.add(BodyTool("free", body, parallel_safe=True))
    agent.on(ak.PreExecute, asking("asked"))
    agent.on(ak.Approve, approve)
    model.add([call("asked"), call("free")])
    agent.followup("go")
    with trio.fail_after(60):
        await work.reached()
    question.open()
    await trio.testing.wait_all_tasks_blocked()
    agent.cancel()
    await agent.when_idle()
    assert sorted(filter(None, codes(agent))) == ["ABORTED", "ABORTED_BEFORE_DISPATCH"]
    assert [fact.name for fact in facts(agent, ak.ToolCalled)] == ["free"]


Asker = Callable[[ak.ToolInvocation], Awaitable[None]]


def background_asker(agent: ak.Agent, then: Asker) -> None:
    """Let the call of a tool `t` return at once, and leave a task that goes on."""

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        agent.start_soon(lambda: then(call))
        return ak.ToolOutput.of("started")

    agent.tools.add(BodyTool("t", body))


@pytest.mark.clause("T7b")
@pytest.mark.parametrize("later", ["idle", "in another turn", "from another agent"])
async def test_a_call_whose_turn_is_over_cannot_ask(
    kernel: ak.Kernel,
    agent: ak.Agent,
    model: ScriptedModel,
    autojump_clock: MockClock,
    later: str,
) -> None:
    """No stop could reach the question, so it is refused before anybody sees it."""
    go, asked = trio.Event(), Gate()
    refusals: list[str] = []
    other = (await kernel.create("other", model="scripted")).agent

    async def approve(_payload: ak.Approve, _following: object) -> ak.Allow:
        await asked.wait()
        return ak.Allow()

    async def then(call: ak.ToolInvocation) -> None:
        if later != "from another agent":
            await go.wait()
        asker = other if later == "from another agent" else agent
        with pytest.raises(ValueError, match="not live") as error:
            await asker.approve(call, "push it?")
        refusals.append(str(error.value))

    background_asker(agent, then)
    agent.on(ak.Approve, approve)
    other.on(ak.Approve, approve)
    model.add([call("t")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    if later == "in another turn":
        held = Gate()
        model.add([held, "more"])
        agent.followup("more")
        await trio.testing.wait_all_tasks_blocked()
        assert held.arrivals == 1
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        held.open()
    go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert len(refusals) == 1
    assert "turn 1" in refusals[0]
    assert asked.arrivals == 0


@pytest.mark.clause("T7b", "L3")
@pytest.mark.parametrize("how", ["ends", "is stopped"])
async def test_no_question_outlives_the_turn_of_the_call_that_asks(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, how: str
) -> None:
    """A task that the call has left behind is told, and the log has no open question."""
    approvals = Approvals(agent.kernel, Policy(default="allow"))
    raised: list[type[BaseException]] = []
    step = Gate()

    async def then(call: ak.ToolInvocation) -> None:
        with pytest.raises((ValueError, ak.TurnCancelled)) as error:
            await agent.approve(call, "push it?")
        raised.append(type(error.value))

    async def wait(_payload: ak.TurnStopping) -> None:
        await step.wait()

    background_asker(agent, then)
    agent.on(ak.TurnStopping, wait)
    model.add([call("t")], ["done"])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    (question,) = approvals.open()
    if how == "ends":
        step.open()
    else:
        agent.cancel()
    await agent.when_idle()
    await trio.testing.wait_all_tasks_blocked()
    assert raised == [ValueError if how == "ends" else ak.TurnCancelled]
    assert approvals.open() == ()
    assert facts(agent, ak.ApprovalDecided) == [
        ak.ApprovalDecided(question.id, "cancelled")
    ]
    assert agent.blockers() == ()
    check_log(agent.session.events)


@pytest.mark.clause("T7b", "L3")
@pytest.mark.parametrize("verb", ["answer", "dismiss"])
async def test_an_answer_at_the_end_of_the_turn_that_asks_comes_too_late(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, verb: str
) -> None:
    """The record would say yes while who waits is refused; a stop would find no turn."""
    approvals = Approvals(agent.kernel, Policy(default="allow"))
    step = Gate()
    late: list[str | None] = []

    async def then(call: ak.ToolInvocation) -> None:
        with pytest.raises(ValueError, match="not live"):
            await agent.approve(call, "push it?")

    async def wait(_payload: ak.TurnStopping) -> None:
        await step.wait()

    def speak(payload: ak.Appended) -> None:
        if not isinstance(payload.event.data, ak.TurnEnded):
            return
        assert approvals.open() == ()
        say = partial(approvals.answer, decision="allow")
        with pytest.raises(StaleApprovalError) as error:
            (say if verb == "answer" else approvals.dismiss)(question.id)
        late.append(error.value.decision)

    background_asker(agent, then)
    agent.on(ak.TurnStopping, wait)
    agent.on(ak.Appended, speak)
    model.add([call("t")], ["done"])
    agent.followup("go")
    await trio.testing.wait_all_tasks_blocked()
    (question,) = approvals.open()
    step.open()
    await agent.when_idle()
    await trio.testing.wait_all_tasks_blocked()
    assert late == ["cancelled"]
    assert facts(agent, ak.ApprovalDecided) == [
        ak.ApprovalDecided(question.id, "cancelled")
    ]
    check_log(agent.session.events)
