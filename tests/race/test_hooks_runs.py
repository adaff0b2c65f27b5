"""How hooks are run by an executor that breaks, is cut, or has much to do."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.bridges.hooks import HookRun
from agentkernel.testing import ScriptedModel, call
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
