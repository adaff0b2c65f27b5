"""How hooks are run by an executor that breaks, is cut, or has much to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.hooks import (
    MAX_DETACHED,
    MAX_WAITED,
    HookRun,
    Hooks,
    HookSettings,
)
from agentkernel.testing import Gate, ScriptedModel, call
from tests.race.hooked import ScriptedExecutor, hooked
from tests.race.rig import BodyTool, codes, endings, facts, returns_done


async def breaks(_said: ak.JsonObject) -> HookRun:
    raise RuntimeError("no pool")


@pytest.mark.parametrize("gate", [False, True], ids=["open", "closed"])
async def test_an_executor_that_raises_is_a_hook_that_failed(
    agent: ak.Agent,
    model: ScriptedModel,
    gate: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """A gate that is to close on a failure closes; nobody takes it for a stop."""
    executor = ScriptedExecutor({"check": breaks})
    more = {"onFailure": "block"} if gate else {}
    hooked(agent, executor, ("PreToolUse", "check"), **more)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")], ["next"])
    agent.followup("go")
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]
    assert codes(agent) == ["DENIED" if gate else None]
    (result,) = facts(agent, ak.HookReturned)
    assert (result.outcome, result.decision) == ("failed", "deny" if gate else "none")
    assert result.detail == "its executor failed: RuntimeError: no pool"


async def test_a_detached_hook_whose_executor_raises_is_one_that_failed(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    executor = ScriptedExecutor({"check": breaks})
    hooked(agent, executor, ("Stop", "check"), **{"async": True})
    model.add(["next"])
    agent.followup("go")
    await agent.when_idle()
    await wait_all_tasks_blocked()
    assert [fact.outcome for fact in facts(agent, ak.HookReturned)] == ["failed"]


@pytest.mark.parametrize("detached", [False, True], ids=["waited for", "detached"])
async def test_a_hook_that_is_cut_says_how_long_it_took(
    autojump_clock: MockClock,
    kernel: ak.Kernel,
    detached: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    async def hangs(_said: ak.JsonObject) -> HookRun:
        await trio.sleep_forever()
        raise AssertionError

    handle = await kernel.create("s", model="scripted")
    executor = ScriptedExecutor({"check": hangs})
    hooked(kernel, executor, ("UserPromptSubmit", "check"), **{"async": detached})
    seen: list[ak.HookReturned] = []

    def note(payload: ak.Appended) -> None:
        if isinstance(payload.event.data, ak.HookReturned):
            seen.append(payload.event.data)

    kernel.on(ak.Appended, note)
    handle.agent.followup("go")
    await trio.sleep(1.5)
    await handle.dispose()
    assert [(one.outcome, one.duration) for one in seen] == [("cancelled", 1.5)]


@pytest.mark.parametrize("event", ["Interrupt", "StopFailure"])
async def test_hooks_that_nothing_waits_for_share_one_bound(
    agent: ak.Agent, model: ScriptedModel, event: str
) -> None:
    """A person who presses stop sixty times has not started sixty processes."""
    gate = Gate()

    async def slow(_said: ak.JsonObject) -> HookRun:
        await gate.wait()
        return HookRun(0)

    async def stop(payload: ak.PreStep, _next: object) -> ak.Reject:
        payload.agent.cancel()
        await trio.lowlevel.checkpoint()
        raise AssertionError

    executor = ScriptedExecutor({"look": slow})
    look = {"type": "command", "command": "look"}
    groups = {
        event: [{"hooks": [look]}],
        "UserPromptSubmit": [{"hooks": [{**look, "async": True}]}],
    }
    Hooks(agent, HookSettings.from_json({"hooks": groups}), executor=executor)
    if event == "Interrupt":
        agent.on(ak.PreStep, stop)
    for _ in range(MAX_DETACHED + 3):
        model.add([ak.ModelError("down")])
        agent.followup("go")
        await agent.when_idle()
        await wait_all_tasks_blocked()
    assert executor.running == len(executor.told) == MAX_DETACHED
    refused = facts(agent, ak.HookReturned)
    assert {one.detail for one in refused if one.outcome == "failed"} == {
        f"{MAX_DETACHED} detached hooks are under way already"
    }
    gate.open()
    await wait_all_tasks_blocked()
    assert executor.running == 0
    assert len(facts(agent, ak.HookInvoked)) == len(facts(agent, ak.HookReturned))


async def test_a_detached_hook_of_the_start_runs_once_although_the_start_is_told_again(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """What a stop has cut runs again; what goes on has been told already."""
    gate = Gate()

    async def slow(_said: ak.JsonObject) -> HookRun:
        await gate.wait()
        return HookRun(0)

    executor = ScriptedExecutor({"wait": slow})
    start = HookSettings.from_json(
        {
            "hooks": {
                "SessionStart": [
                    {
                        "hooks": [
                            {"type": "command", "command": "apart", "async": True},
                            {"type": "command", "command": "wait"},
                        ]
                    }
                ]
            }
        }
    )
    Hooks(agent, start, executor=executor)
    agent.followup("one")
    await gate.reached()
    agent.cancel()
    await agent.when_idle()
    gate.open()
    agent.followup("two")
    await agent.when_idle()
    assert sorted(name for name, _ in executor.told) == ["apart", "wait", "wait"]


async def test_equal_hooks_that_run_once_run_once_together(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """Two groups that name one command are one hook where both fit."""
    hook = {"type": "command", "command": "check", "once": True}
    groups = [{"matcher": matcher, "hooks": [hook]} for matcher in ("t", "t|u")]
    executor = ScriptedExecutor({})
    settings = HookSettings.from_json({"hooks": {"PreToolUse": groups}})
    Hooks(agent, settings, executor=executor)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")], [call("t")], ["next"])
    agent.followup("go")
    await agent.when_idle()
    assert len(executor.told) == 1


async def test_hooks_are_made_while_an_agent_is_ending(kernel: ak.Kernel) -> None:
    """They serve the others; the one that goes had none when its end began."""
    release = trio.Event()
    ending = await kernel.create("ending", model="scripted")

    async def holds() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await release.wait()

    ending.agent.start_soon(holds, name="holds")
    executor = ScriptedExecutor({})
    async with trio.open_nursery() as nursery:
        await wait_all_tasks_blocked()
        nursery.start_soon(ending.dispose)
        await wait_all_tasks_blocked()
        hooked(kernel, executor, ("SessionEnd", "bye"))
        release.set()
    assert executor.told == []
    other = await kernel.create("other", model="scripted")
    await other.dispose()
    assert [name for name, _ in executor.told] == ["bye"]


async def test_no_more_hooks_run_at_once_than_there_is_room_for(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """A gate that finds no descriptor would stand open; one that waits does not."""
    names = [f"gate-{number}" for number in range(MAX_WAITED + 8)]
    most = 0

    async def no(_said: ak.JsonObject) -> HookRun:
        nonlocal most
        most = max(most, executor.running)
        await trio.lowlevel.checkpoint()
        return HookRun(2, "", "no")

    executor = ScriptedExecutor(dict.fromkeys(names, no))
    hooked(agent, executor, *(("PreToolUse", name) for name in names))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")], ["next"])
    agent.followup("go")
    await agent.when_idle()
    assert most == MAX_WAITED
    assert codes(agent) == ["DENIED"]
    ends = {(one.outcome, one.decision) for one in facts(agent, ak.HookReturned)}
    assert ends == {("blocked", "deny")}
    assert len(executor.told) == len(names)


async def test_a_stop_reaches_hooks_that_wait_for_room(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    names = [f"gate-{number}" for number in range(MAX_WAITED + 8)]
    gate = Gate()

    async def slow(_said: ak.JsonObject) -> HookRun:
        await gate.wait()
        return HookRun(0)

    executor = ScriptedExecutor(dict.fromkeys(names, slow))
    hooked(agent, executor, *(("UserPromptSubmit", name) for name in names))
    agent.followup("go")
    await wait_all_tasks_blocked()
    assert executor.running == MAX_WAITED
    agent.cancel()
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    ends = [one.outcome for one in facts(agent, ak.HookReturned)]
    assert ends == ["cancelled"] * len(names)
    gate.open()
    agent.followup("on")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted"), (2, "completed")]


async def test_several_refusals_are_no_longer_than_one(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    """The model is shown a bounded text, whoever has how much to say."""
    runs = {name: HookRun(2, "", name * 9_999) for name in "abcdefghijkl"}
    hooked(agent, ScriptedExecutor(runs), *(("PreToolUse", name) for name in runs))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")], ["next"])
    agent.followup("go")
    await agent.when_idle()
    (result,) = facts(agent, ak.ToolReturned)
    assert result.error is not None
    assert len(result.error.message) < 10_100
    assert result.error.message.endswith("characters left out ...]")


async def test_several_hooks_that_refuse_an_end_say_no_more_than_one(
    agent: ak.Agent, model: ScriptedModel
) -> None:
    said = {"hookEventName": "Stop", "additionalContext": "w" * 9_999}
    words = HookRun(0, json.dumps({"hookSpecificOutput": said}))
    runs = {"no": HookRun(2, "", "x" * 9_999), "words": words}
    executor = ScriptedExecutor(runs)
    hooked(agent, executor, *(("Stop", name) for name in runs), once=True)
    model.add(["one"], ["two"])
    agent.followup("go")
    await agent.when_idle()
    told = model.requests[1].messages[-1]
    assert isinstance(told, ak.UserMessage)
    assert 10_000 < len(told.text) < 10_100


async def test_what_a_detached_hook_has_found_is_kept_when_its_agent_ends(
    kernel: ak.Kernel, tmp_path: Path
) -> None:
    """The log does not say `wake` of something that nobody is told."""
    handle = await kernel.create("s", model="scripted")
    agent = handle.agent
    started = Gate()

    async def ends_late(_said: ak.JsonObject) -> HookRun:
        with trio.CancelScope(shield=True):
            await started.wait()
        return HookRun(2, "", "x" * 20_000)

    hook = {"type": "command", "command": "look", "asyncRewake": True}
    settings = {"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}}
    Hooks(
        kernel,
        HookSettings.from_json(settings),
        executor=ScriptedExecutor({"look": ends_late}),
        spill_folder=tmp_path,
    )
    said: list[tuple[str, str]] = []

    def note(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.HookReturned):
            said.append((fact.outcome, fact.decision))
        elif isinstance(fact, ak.InboxSpliced):
            said.extend((m.kind, m.text[:5]) for m in fact.inserted)

    agent.on(ak.Appended, note)
    agent.followup("go")
    await started.reached()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handle.dispose)
        await wait_all_tasks_blocked()
        started.open()
    assert said[-2:] == [("success", "wake"), ("notice", "xxxxx")]


async def test_words_for_which_there_is_no_step_are_no_refusal(
    kernel: ak.Kernel, model: ScriptedModel
) -> None:
    """The user is told what happened: nobody wanted the turn to go on."""
    said = {"hookEventName": "Stop", "additionalContext": "note this"}
    words = HookRun(0, json.dumps({"hookSpecificOutput": said}))
    options = ak.AgentOptions(model="scripted", max_steps=1)
    agent = (await kernel.create("s", model="scripted", options=options)).agent
    hooked(agent, ScriptedExecutor({"look": words}), ("Stop", "look"))
    model.add(["done"])
    agent.followup("go")
    await agent.when_idle()
    (fact,) = facts(agent, ak.Extension)
    assert isinstance(fact.body, dict)
    assert fact.body["text"] == (
        "The model is not shown what a hook says: the turn has no step left"
    )
