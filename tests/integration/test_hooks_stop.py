"""Hooks as real processes, stopped: that nothing of them is left, at any point.

Every hook that could be left behind carries a number of its own, which is looked for
in `/proc`. Waiting is done on named pipes, never on time; `fail_after` is a guard.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.abc import Instrument

import agentkernel as ak
from agentkernel.bridges.hooks import CommandExecutor, Hook, HookRun, Matcher
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from tests.integration.hooking import (
    attach,
    has_children,
    living,
    messages,
    results,
    tag,
    turn,
    wait_started,
)
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done

GUARD = 60


@pytest.fixture(autouse=True)
async def guard() -> AsyncIterator[None]:
    """End a test that hangs."""
    with trio.fail_after(GUARD):
        yield


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A named pipe: a hook writes to it once it is under way."""
    path = tmp_path / "started"
    os.mkfifo(path)
    return path


@pytest.mark.clause("L3", "C11b")
@pytest.mark.case("HOOK-01", "PROC-01", "PROC-06")
async def test_a_stubborn_prompt_hook_is_gone_before_the_agent_is_idle(
    agent: ak.Agent, tmp_path: Path, started: Path
) -> None:
    """It ignores TERM and has forked a grandchild; the stop kills and joins it all."""
    mark = tag()
    line = (
        f"trap '' TERM; (trap '' TERM; sleep {mark}; sleep {mark}) & "
        f'echo > {started}; sleep {mark}; sleep {mark}; echo \'{{"decision":"block"}}\''
    )
    attach(agent, tmp_path, ("UserPromptSubmit", line))
    agent.followup("go")
    await wait_started(started)
    assert living(mark)
    receipt = agent.cancel(keep_inbox=True)
    await agent.when_idle()
    assert not living(mark)
    assert not has_children()
    assert endings(agent) == [(1, "aborted")]
    assert results(agent) == [("cancelled", "none")]
    assert len(receipt.kept) == 1


@pytest.mark.clause("L3")
@pytest.mark.case("HOOK-01")
@pytest.mark.parametrize(
    "event",
    [
        *("SessionStart", "UserPromptSubmit", "PreToolUse", "PermissionRequest"),
        *("PostToolUse", "PostToolUseFailure", "PostToolBatch", "Stop"),
    ],
)
async def test_a_hanging_hook_ends_with_its_turn_at_every_event(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, started: Path, event: str
) -> None:
    """The stop takes no decision from it, and the next turn is not affected."""
    mark = tag()
    flag = tmp_path / "once"
    line = f"test -e {flag} && exit 0; touch {flag}; echo > {started}; sleep {mark}; exit 2"
    attach(agent, tmp_path, (event, line))

    async def fails(_call: ak.ToolInvocation) -> ak.ToolOutput:
        raise RuntimeError("broken")

    async def ask(_payload: ak.PreExecute, _next: object) -> ak.Ask:
        return ak.Ask("sure?")

    if event == "PermissionRequest":
        agent.on(ak.PreExecute, ask)
    body = fails if event == "PostToolUseFailure" else returns_done
    agent.tools.add(BodyTool("t", body))
    model.add([call("t")], ["done"])
    agent.followup("go")
    await wait_started(started)
    agent.cancel()
    await agent.when_idle()
    assert not living(mark)
    assert endings(agent) == [(1, "aborted")]
    assert results(agent) == [("cancelled", "none")]
    assert "DENIED" not in codes(agent)
    model.add(*[["done"]] * 3)
    await turn(agent, "again")
    assert endings(agent)[-1] == (2, "completed")


@pytest.mark.case("HOOK-01")
@pytest.mark.parametrize("on_failure", ["continue", "block"])
async def test_a_hook_that_takes_too_long_is_a_recorded_failure(
    agent: ak.Agent, tmp_path: Path, on_failure: str
) -> None:
    """No decision by default; a gate that is to hold says so in its settings."""
    mark = tag()
    line = f"echo '{{}}'; sleep {mark}"
    attach(
        agent,
        tmp_path,
        ("UserPromptSubmit", line),
        timeout=0.05,
        onFailure=on_failure,
    )
    await turn(agent)
    assert not living(mark)
    kind = "blocked" if on_failure == "block" else "completed"
    assert endings(agent) == [(1, kind)]
    decision = "deny" if on_failure == "block" else "none"
    assert results(agent) == [("timed-out", decision)]
    assert "longer than 0.05 s" in str(messages(agent)[0])


async def test_an_interrupt_hook_runs_once_and_delays_nothing(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, started: Path
) -> None:
    """The agent is idle while it still runs; its end ends it."""
    mark = tag()
    line = f"echo > {started}; sleep {mark}"
    attach(agent, tmp_path, ("Interrupt", line), ("Stop", "echo > never"))
    gate = Gate()
    model.add(["a", gate])
    agent.followup("go")
    await gate.reached()
    agent.cancel()
    await agent.when_idle()
    await wait_started(started)
    assert agent.status == "idle"
    assert living(mark)
    assert len(facts(agent, ak.HookInvoked)) == 1
    assert not (tmp_path / "never").exists()
    assert not facts(agent, ak.HookReturned)


async def test_no_hook_outlives_its_agent(
    model: ScriptedModel, tmp_path: Path, started: Path
) -> None:
    """An Interrupt hook that hangs is killed at the end; SessionEnd still runs."""
    mark = tag()
    line = f"echo > {started}; sleep {mark}"
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("scripted", model)
        async with kernel.open("s", model="scripted") as agent:
            attach(
                agent, tmp_path, ("Interrupt", line), ("SessionEnd", "cat > ended.json")
            )
            gate = Gate()
            model.add(["a", gate])
            agent.followup("go")
            await gate.reached()
            agent.cancel()
            await wait_started(started)
        assert not living(mark)
        assert sorted(results(agent)) == [("cancelled", "none"), ("success", "none")]
    assert json.loads((tmp_path / "ended.json").read_text())["reason"] == "other"
    assert not has_children()


@pytest.mark.clause("C11b")
async def test_a_detached_hook_outlives_the_stop_of_its_turn_and_not_its_agent(
    model: ScriptedModel, tmp_path: Path, started: Path
) -> None:
    """The stop leaves its process alone; the end kills the family, TERM or not."""
    mark = tag()
    line = (
        f"trap '' TERM; (trap '' TERM; sleep {mark}; sleep {mark}) & "
        f"echo > {started}; sleep {mark}; sleep {mark}"
    )
    async with ak.open_kernel(ak.MemoryStore()) as kernel:
        kernel.models.register("scripted", model)
        async with kernel.open("s", model="scripted") as agent:
            attach(agent, tmp_path, ("UserPromptSubmit", line), **{"async": True})
            gate = Gate()
            model.add(["a", gate])
            agent.followup("go")
            await gate.reached()
            await wait_started(started)
            agent.cancel()
            await agent.when_idle()
            assert living(mark)
            assert not facts(agent, ak.HookReturned)
        assert not living(mark)
        assert not has_children()
        assert results(agent) == [("cancelled", "none")]


async def test_a_detached_hook_wakes_its_agent_with_what_it_found(
    agent: ak.Agent, tmp_path: Path, started: Path
) -> None:
    """The turn is over long before; standard error is what the model is told."""
    line = f"cat < {started} >&2; exit 2"
    attach(
        agent,
        tmp_path,
        ("UserPromptSubmit", line),
        asyncRewake=True,
        once=True,
    )
    await turn(agent)
    assert endings(agent) == [(1, "completed")]
    done = trio.Event()
    agent.on(ak.StatusChanged, lambda p: done.set() if p.status == "idle" else None)
    await trio.to_thread.run_sync(started.write_bytes, b"two tests fail\n")
    await done.wait()
    assert entered(agent) == ["go", "two tests fail"]
    assert results(agent) == [("success", "wake")]


class CancelAt(Instrument):
    """Cancels an agent before the n-th task step after it was armed."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.agent: ak.Agent | None = None
        self.acted = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.agent is None or self.acted:
            return
        self.left -= 1
        if not self.left:
            self.acted = True
            self.agent.cancel()


@pytest.mark.clause("L3", "C11a")
@pytest.mark.case("HOOK-01", "CAN-03")
@pytest.mark.parametrize("event", ["UserPromptSubmit", "PreToolUse", "Stop"])
async def test_a_stop_at_any_task_step_leaves_no_process_and_no_late_decision(
    kernel: ak.Kernel, tmp_path: Path, event: str
) -> None:
    """Before the spawn, while a megabyte is written, while it runs, after its exit.

    The process decides when its steps come, so the points differ from run to run;
    what holds is the same at all of them. Both ends were met, or nothing raced.
    """
    mark = tag()
    line = f": {mark}; grep -q 'active\": true' && exit 0; echo no >&2; exit 2"
    seen: set[str] = set()
    for n in range(1, 200):
        model = ScriptedModel([call("t", text="x" * 1_000_000)], default=["ok"])
        kernel.models.register(f"model-{n}", model)
        agent = (await kernel.create(f"{event}-{n}", model=f"model-{n}")).agent
        agent.tools.add(BodyTool("t", returns_done))
        hooks = attach(agent, tmp_path, (event, line))
        stops: list[int] = []
        agent.on(
            ak.CancelRequested,
            lambda payload, stops=stops: stops.append(payload.agent.session.last_seq),  # type: ignore[misc]  # the list is that of this run
        )
        sent = agent.followup("x" * 1_000_000)
        act = CancelAt(n)
        act.agent = agent
        trio.lowlevel.add_instrument(act)
        await agent.when_idle()
        trio.lowlevel.remove_instrument(act)
        hooks.close()
        assert not living(mark)
        assert not has_children()
        check_log(agent.session.events)
        outcome = await agent.outcome(sent.id)
        assert len(facts(agent, ak.HookInvoked)) == len(facts(agent, ak.HookReturned))
        late = [
            decision
            for e in agent.session.events
            if isinstance(e.data, ak.HookReturned) and stops and e.seq > stops[0]
            for decision in [e.data.decision]
        ]
        assert set(late) <= {"none"}
        seen.add("stopped" if late else "ended")
        if stops:
            assert outcome.kind in {"aborted", "discarded"}
        if not act.acted:
            break
    assert seen == {"stopped", "ended"}


@pytest.mark.clause("L3")
async def test_the_signal_alone_ends_a_hook_in_a_shielded_scope(
    agent: ak.Agent, tmp_path: Path, started: Path
) -> None:
    """Whoever runs a hook, and under whatever scope: the turn's stop reaches it."""
    mark = tag()
    hook = Hook("UserPromptSubmit", f"echo > {started}; sleep {mark}", Matcher(None))
    executor = CommandExecutor(tmp_path, grace=0.2)
    runs: list[HookRun] = []

    async def listen(
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        with trio.CancelScope(shield=True):
            runs.append(await executor.run(hook, b"", signal=payload.signal))
            runs.append(await executor.run(hook, b"", signal=payload.signal))
        return await following(payload)

    agent.on(ak.PreStep, listen)
    agent.followup("go")
    await wait_started(started)
    agent.cancel()
    await agent.when_idle()
    assert [run.cancelled for run in runs] == [True, True]
    assert runs[0].exit_code is None
    assert not living(mark)
