"""A pending approval beside running hooks, stopped at every point, in virtual time.

The hooks are no processes here: an executor of the test's holds them at a gate. The
same with processes, in real time: `tests/integration/test_hooks.py`.
"""

from __future__ import annotations

import json

import pytest
import trio
import trio.testing

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.bridges.hooks import (
    Hook,
    HookEvent,
    HookRun,
    Hooks,
    HookSettings,
    Matcher,
)
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
    dispose,
    play,
)
from agentkernel.tools.approval import Policy, Rule
from tests.race.rig import BodyTool, facts, returns_done

EVENTS: tuple[HookEvent, ...] = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "Stop",
    "PermissionRequest",
    "PostToolBatch",
)
SAID: dict[HookEvent, str] = {
    "SessionStart": "hello",
    "UserPromptSubmit": "mind the gap",
    "PreToolUse": json.dumps(
        {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "updatedInput": {"n": 2},
                "additionalContext": "changed",
            }
        }
    ),
    "PostToolUse": '{"decision": "block", "reason": "look again"}',
}


class HeldExecutor:
    """Holds the hook of one event at a gate; counts what runs."""

    def __init__(self, event: str, gate: Gate) -> None:
        self.event = event
        self.gate = gate
        self.running = 0
        self.stops = 0

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        self.running += 1
        try:
            await trio.lowlevel.checkpoint()
            if hook.event == self.event:
                await self.gate.wait()
            await trio.lowlevel.checkpoint()
        finally:
            self.running -= 1
        if hook.event == "Stop":
            self.stops += 1
            return HookRun(2 if self.stops == 1 else 0, "", "once more")
        return HookRun(0, SAID.get(hook.event, ""))


def story(event: str) -> Scenario:
    async def hooks_and_a_question(stage: Stage) -> None:
        gate = stage.gate()
        model = ScriptedModel(
            [call("ask", n=1), call("free", n=1)], ["done"], default=["more"]
        )
        tools = [BodyTool(n, returns_done, parallel_safe=True) for n in ("ask", "free")]
        agent = await stage.start(model, tools=tools)
        executor = HeldExecutor(event, gate)
        settings = HookSettings(
            tuple(Hook(name, name, Matcher(None)) for name in EVENTS)
        )
        Hooks(stage.kernel, settings, executor=executor)
        approvals = Approvals(stage.kernel, Policy((Rule("allow", "free"),)))
        moved = trio.Event()

        def watch(payload: ak.Appended) -> None:
            fact = payload.event.data
            held = isinstance(fact, ak.HookInvoked) and fact.event == event
            if held or isinstance(fact, ak.ApprovalAsked):
                moved.set()

        def idle(payload: ak.StatusChanged) -> None:
            # A hook is joined before its agent is idle, whatever ended it.
            assert payload.status == "running" or not executor.running

        agent.on(ak.Appended, watch)
        agent.on(ak.StatusChanged, idle)
        stage.send("go")
        while True:
            await stage.until(moved.wait)
            moved = trio.Event()
            await trio.testing.wait_all_tasks_blocked()
            gate.open()
            for question in approvals.open():
                approvals.answer(question.id, "allow")
            if agent.status == "idle":
                break
        await stage.settle()
        assert not approvals.open()
        invoked, returned = facts(agent, ak.HookInvoked), facts(agent, ak.HookReturned)
        assert sorted(f.hook_id for f in invoked) == sorted(f.hook_id for f in returned)
        assert len(facts(agent, ak.ApprovalAsked)) == len(
            facts(agent, ak.ApprovalDecided)
        )
        ran = {fact.call_id: fact.arguments for fact in facts(agent, ak.ToolCalled)}
        assert all(arguments == {"n": 2} for arguments in ran.values())

    hooks_and_a_question.__name__ = f"hooks_and_a_question_held_at_{event}"
    return hooks_and_a_question


ACTS: tuple[Act, ...] = (
    cancel_broadly,
    cancel_and_keep,
    cancel_then_send,
    dispose,
    cancel_scope,
)
# Each act meets the hook of another event while it is held.
CASES = list(zip(EVENTS, (*ACTS, cancel_and_keep, dispose), strict=True))


@pytest.mark.clause("L3", "C11a", "C11b")
@pytest.mark.case("HOOK-01", "CAN-03")
@pytest.mark.parametrize(("event", "act"), CASES)
def test_nothing_of_hooks_and_questions_is_left_wherever_it_is_stopped(
    event: str, act: Act
) -> None:
    sweep = cancel_everywhere(story(event), act, at=("append", "notification"))
    assert sweep.endings["completed"]
    assert sweep.endings["disposed" if act in {dispose, cancel_scope} else "aborted"]


@pytest.mark.long
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("event", EVENTS)
def test_nothing_is_left_at_any_task_step_either(event: str, act: Act) -> None:
    sweep = cancel_everywhere(story(event), act, seeds=(1,))
    assert sweep.endings["completed"]


def test_the_story_has_all_its_hooks() -> None:
    """Undisturbed it completes: what the sweeps stop is worth stopping."""
    assert play(story("Stop")).endings == {"completed": 1}
