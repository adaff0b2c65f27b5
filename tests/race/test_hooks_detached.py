"""Hooks that nothing waits for, and hooks that run once, in virtual time.

The same with a process: `tests/integration/test_hooks_stop.py`.
"""

from __future__ import annotations

import json

import pytest
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.hooks import HOOK_MESSAGE, MAX_DETACHED, HookRun
from agentkernel.testing import (
    Act,
    Gate,
    Scenario,
    ScriptedModel,
    Stage,
    call,
    cancel_and_keep,
    cancel_broadly,
    cancel_everywhere,
    cancel_scope,
    cancel_then_send,
    check_log,
    dispose,
)
from tests.race.hooked import Script, ScriptedExecutor, hooked
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done, said

DETACHED = {"async": True}
REWAKES = {"asyncRewake": True}


def held(gate: Gate, run: HookRun) -> Script:
    async def script(_said: ak.JsonObject) -> HookRun:
        await gate.wait()
        return run

    return script


def ends(agent: ak.Agent) -> list[tuple[str, str]]:
    return [(f.outcome, f.decision) for f in facts(agent, ak.HookReturned)]


async def turn(agent: ak.Agent, text: str = "go") -> None:
    agent.followup(text)
    await agent.when_idle()


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (HookRun(0, "three warnings\n"), "three warnings"),
        (HookRun(0), None),
        (HookRun(2, "", "no"), None),
        (HookRun(7, "out"), None),
        (
            HookRun(
                0,
                json.dumps(
                    {
                        "continue": False,
                        "hookSpecificOutput": {
                            "hookEventName": "PreToolUse",
                            "permissionDecision": "deny",
                            "updatedInput": {"n": 2},
                            "additionalContext": "three warnings",
                        },
                    }
                ),
            ),
            "three warnings",
        ),
    ],
)
async def test_a_detached_hook_holds_nothing_up_and_speaks_with_the_next_step(
    agent: ak.Agent, model: ScriptedModel, run: HookRun, text: str | None
) -> None:
    """It decides nothing any more, and an idle agent stays idle."""
    gate = Gate()
    executor = ScriptedExecutor({"lint": held(gate, run)})
    hooked(agent, executor, ("PreToolUse", "lint"), **DETACHED)
    ran: list[object] = []

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(invocation.arguments)
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    model.add([call("t", n=1)])
    await turn(agent)
    assert ran == [{"n": 1}]
    assert endings(agent) == [(1, "completed")]
    assert executor.running == 1
    assert not ends(agent)
    gate.open()
    await wait_all_tasks_blocked()
    assert agent.status == "idle"
    failed = run.exit_code != 0
    assert ends(agent) == [("failed" if failed else "success", "none")]
    assert any(f.name == HOOK_MESSAGE for f in facts(agent, ak.Extension)) is failed
    await turn(agent, "next")
    assert entered(agent) == ["go", *([text] if text else []), "next"]


async def test_what_a_detached_hook_says_survives_a_stop_that_drops_the_queue(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """It is a fact and nobody's queued work; the hook itself is not stopped either."""
    gate, block = Gate(), Gate()
    executor = ScriptedExecutor(
        {"early": HookRun(0, "early"), "late": held(gate, HookRun(0, "late"))}
    )
    hooked(
        agent,
        executor,
        ("UserPromptSubmit", "early"),
        ("UserPromptSubmit", "late"),
        **DETACHED,
    )
    model.add(["a", block])
    agent.followup("go")
    await block.reached()
    await wait_all_tasks_blocked()
    receipt = agent.cancel()
    await agent.when_idle()
    assert len(receipt.kept) == 1
    assert executor.running == 1
    gate.open()
    await wait_all_tasks_blocked()
    assert agent.status == "idle"
    assert sorted(name for name, _ in executor.told) == ["early", "late"]
    await turn(agent, "next")
    assert entered(agent)[:4] == ["go", "early", "late", "next"]


@pytest.mark.clause("I6")
async def test_a_hook_that_rewakes_wakes_an_idle_agent_once(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    gate = Gate()
    executor = ScriptedExecutor({"test": held(gate, HookRun(2, "", "2 failed\n"))})
    hooked(agent, executor, ("UserPromptSubmit", "test"), once=True, **REWAKES)
    await turn(agent)
    gate.open()
    await wait_all_tasks_blocked()
    await agent.when_idle()
    assert ends(agent) == [("success", "wake")]
    assert endings(agent) == [(1, "completed"), (2, "completed")]
    assert entered(agent) == ["go", "2 failed"]
    await turn(agent, "next")
    assert entered(agent) == ["go", "2 failed", "next"]
    assert len(model.requests) == 3


@pytest.mark.clause("I6")
async def test_a_hook_that_rewakes_joins_the_turn_of_a_busy_agent(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    gate, block = Gate(), Gate()
    executor = ScriptedExecutor({"test": held(gate, HookRun(2, "look"))})
    hooked(agent, executor, ("UserPromptSubmit", "test"), once=True, **REWAKES)
    model.add(["a", block])
    agent.followup("go")
    await block.reached()
    gate.open()
    await wait_all_tasks_blocked()
    block.open()
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]
    assert said(model.requests[1].messages) == [
        "user: go",
        "assistant: a",
        "user: look",
    ]


async def test_a_hook_that_rewakes_and_is_content_wakes_nobody(
    agent: ak.Agent,
) -> None:
    executor = ScriptedExecutor({"test": HookRun(0, "all well")})
    hooked(agent, executor, ("UserPromptSubmit", "test"), **REWAKES)
    await turn(agent)
    await wait_all_tasks_blocked()
    assert ends(agent) == [("success", "none")]
    assert endings(agent) == [(1, "completed")]
    assert [m.text for m in agent.inbox.next_step] == ["all well"]


async def test_detached_hooks_are_bounded_and_one_more_is_refused_visibly(
    agent: ak.Agent,
) -> None:
    """The bound is that of one agent; a place that is free again is used again."""
    gate = Gate()
    executor = ScriptedExecutor({"slow": held(gate, HookRun(0))})
    hooked(agent, executor, ("UserPromptSubmit", "slow"), **DETACHED)
    for number in range(MAX_DETACHED + 1):
        await turn(agent, str(number))
    assert executor.running == MAX_DETACHED
    assert len(facts(agent, ak.HookInvoked)) == MAX_DETACHED + 1
    (refused,) = facts(agent, ak.HookReturned)
    assert (refused.outcome, refused.exit_code) == ("failed", None)
    assert "32 detached hooks" in str(refused.detail)
    other = (await agent.kernel.create("o", model="scripted", parent=agent)).agent
    await turn(other)
    assert executor.running == MAX_DETACHED + 1
    gate.open()
    await wait_all_tasks_blocked()
    assert executor.running == 0
    await turn(agent, "again")
    await wait_all_tasks_blocked()
    assert len(executor.told) == MAX_DETACHED + 2
    invoked = [fact.hook_id for fact in facts(agent, ak.HookInvoked)]
    assert sorted(invoked) == sorted(f.hook_id for f in facts(agent, ak.HookReturned))


async def test_a_hook_that_was_refused_has_not_had_its_one_time(
    agent: ak.Agent,
) -> None:
    gate = Gate()
    slow = [str(number) for number in range(MAX_DETACHED)]
    executor = ScriptedExecutor(dict.fromkeys(slow, held(gate, HookRun(0))))
    events = [("UserPromptSubmit", command) for command in slow]
    hooked(agent, executor, *events, ("Stop", "late"), once=True, **DETACHED)
    await turn(agent)
    assert executor.running == MAX_DETACHED
    assert not executor.said("late")
    gate.open()
    for prompt in ("again", "and again"):
        await wait_all_tasks_blocked()
        await turn(agent, prompt)
    await wait_all_tasks_blocked()
    assert len(executor.said("late")) == 1
    assert len(executor.told) == MAX_DETACHED + 1


@pytest.mark.clause("C11b", "S3a")
async def test_detached_hooks_end_with_their_agent_and_before_its_session(
    model: ScriptedModel,
) -> None:
    """They are joined, and the log that is closed behind them says how they ended."""
    store = ak.MemoryStore()
    gate = Gate()
    executor = ScriptedExecutor({"slow": held(gate, HookRun(2, "", "wake up"))})
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        hooked(kernel, executor, ("UserPromptSubmit", "slow"), **REWAKES)
        handle = await kernel.create("s", model="scripted")
        await turn(handle.agent)
        await gate.reached()
        await handle.dispose()
        assert executor.running == 0
    events = await store.read("s")
    check_log(events)
    (result,) = [e.data for e in events if isinstance(e.data, ak.HookReturned)]
    assert (result.outcome, result.decision) == ("cancelled", "none")


async def test_a_hook_of_the_end_is_waited_for_whatever_it_says(
    model: ScriptedModel,
) -> None:
    """Nothing outlives an agent, so a hook about its end cannot be detached."""
    executor = ScriptedExecutor({})
    store = ak.MemoryStore()
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("scripted", model)
        hooked(kernel, executor, ("SessionEnd", "bye"), **DETACHED)
        handle = await kernel.create("s", model="scripted")
        await handle.dispose()
    results = [e.data for e in await store.read("s")]
    assert [r.outcome for r in results if isinstance(r, ak.HookReturned)] == ["success"]


@pytest.mark.parametrize("more", [{}, DETACHED])
async def test_a_hook_that_runs_once_runs_once_in_each_opening(
    agent: ak.Agent, model: ScriptedModel, more: dict[str, object]
) -> None:
    """Also for calls that overlap; another agent has a first time of its own."""
    executor = ScriptedExecutor({"greet": HookRun(0)})
    hooked(agent.kernel, executor, ("PreToolUse", "greet"), once=True, **more)
    tool = BodyTool("t", returns_done, parallel_safe=True)
    agent.kernel.tools.add(tool)
    model.add([call("t"), call("t"), call("t")], [call("t")], ["done"])
    await turn(agent)
    assert codes(agent) == [None] * 4
    assert len(executor.told) == 1
    other = (await agent.kernel.create("o", model="scripted")).agent
    model.add([call("t")])
    await turn(other)
    await wait_all_tasks_blocked()
    assert [fact["session_id"] for _, fact in executor.told] == ["s", "o"]


async def test_a_hook_that_a_stop_has_cut_runs_again_although_it_runs_once(
    agent: ak.Agent,
) -> None:
    """A gate that was stopped before it decided has not had its one time."""
    gate = Gate()
    executor = ScriptedExecutor({"check": held(gate, HookRun(0, "checked"))})
    hooked(agent, executor, ("UserPromptSubmit", "check"), once=True)
    agent.followup("go")
    await gate.reached()
    agent.cancel()
    await agent.when_idle()
    gate.open()
    await turn(agent, "again")
    await turn(agent, "and again")
    assert ends(agent) == [("cancelled", "none"), ("success", "none")]
    assert entered(agent) == ["again", "checked", "and again"]


def story(woken: set[int]) -> Scenario:
    async def detached_hooks(stage: Stage) -> None:
        """A turn with a call, a hook behind it that rewakes, one that is held for ever."""
        gate = stage.gate()
        executor = ScriptedExecutor(
            {"slow": held(gate, HookRun(0, "slow")), "test": HookRun(2, "", "look")}
        )
        agent = await stage.start(
            ScriptedModel([call("t")], default=["ok"]),
            tools=[BodyTool("t", returns_done)],
        )
        hooked(stage.kernel, executor, ("UserPromptSubmit", "slow"), **DETACHED)
        hooked(stage.kernel, executor, ("PostToolUse", "test"), once=True, **REWAKES)
        stage.send("go")
        await stage.settle()
        await wait_all_tasks_blocked()
        await stage.settle()
        gate.open()
        await wait_all_tasks_blocked()
        await stage.settle()
        assert not executor.running
        invoked, results = facts(agent, ak.HookInvoked), facts(agent, ak.HookReturned)
        assert sorted(f.hook_id for f in invoked) == sorted(f.hook_id for f in results)
        wakes = sum(f.decision == "wake" for f in results)
        sent = [
            m
            for f in facts(agent, ak.InboxSpliced)
            for m in f.inserted
            if m.text == "look" and f.outcome is None
        ]
        assert len(sent) == wakes
        woken.add(wakes)

    return detached_hooks


ACTS: tuple[Act, ...] = (
    cancel_broadly,
    cancel_and_keep,
    cancel_then_send,
    dispose,
    cancel_scope,
)


@pytest.mark.clause("C11b", "I6")
@pytest.mark.parametrize("act", ACTS)
def test_detached_hooks_are_paired_and_joined_wherever_the_agent_is_stopped(
    act: Act,
) -> None:
    woken: set[int] = set()
    sweep = cancel_everywhere(story(woken), act, at=("append", "notification"))
    assert sweep.endings["completed"]
    # A cancelled scope takes the story's own last look with it.
    assert woken == ({1} if act is cancel_scope else {0, 1})
