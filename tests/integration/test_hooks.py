"""Hooks as real processes: how they talk, and that nothing of them is left.

Every hook that could be left behind carries a number of its own, which is looked for
in `/proc`. Waiting is done on named pipes, never on time; `fail_after` is a guard.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.abc import Instrument

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.bridges.hooks import (
    HOOK_MESSAGE,
    MAX_BLOCKS,
    CommandExecutor,
    Hooks,
    HookSettings,
)
from agentkernel.testing import Gate, ScriptedModel, call, check_log
from agentkernel.tools.approval import Policy
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


async def wait_started(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


def living(tag: str) -> list[str]:
    """The command lines of live processes that name the tag."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
            except OSError:
                continue
            if tag.encode() in words and state not in {b"Z", b"X"}:
                found.append(words.decode())
    return found


def has_children() -> bool:
    """Whether this process has a child, dead or alive, that was not waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def tag() -> str:
    return f"{secrets.randbelow(10**6) + 10**6}.{secrets.randbelow(10**6)}"


def attach(
    agent: ak.Agent, folder: Path, *events: tuple[str, str], **more: object
) -> Hooks:
    """Run shell lines as hooks of events, each with the settings in `more`."""
    value: dict[str, list[object]] = {}
    for event, line in events:
        group = {"hooks": [{"type": "command", "command": line, **more}]}
        value.setdefault(event, []).append(group)
    settings = HookSettings.from_json({"hooks": value})
    executor = CommandExecutor(folder, grace=0.2)
    return Hooks(agent.kernel, settings, cwd=folder, executor=executor)


def say(**said: object) -> str:
    """A shell line that prints an object."""
    return f"cat <<'END'\n{json.dumps(said)}\nEND"


def specific(event: str, **fields: object) -> str:
    return say(hookSpecificOutput={"hookEventName": event, **fields})


def results(agent: ak.Agent) -> list[tuple[str, str]]:
    """How hooks ended, and what was decided, in the order of the log."""
    return [(f.outcome, f.decision) for f in facts(agent, ak.HookReturned)]


def messages(agent: ak.Agent) -> list[object]:
    """What hooks said to the user."""
    return [
        fact.body["text"]
        for fact in facts(agent, ak.Extension)
        if fact.name == HOOK_MESSAGE and isinstance(fact.body, dict)
    ]


async def turn(agent: ak.Agent, text: str = "go") -> None:
    agent.followup(text)
    await agent.when_idle()


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
    "event", ["SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop"]
)
async def test_a_hanging_hook_ends_with_its_turn_at_every_event(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, started: Path, event: str
) -> None:
    """The stop takes no decision from it, and the next turn is not affected."""
    mark = tag()
    flag = tmp_path / "once"
    line = f"test -e {flag} && exit 0; touch {flag}; echo > {started}; sleep {mark}; exit 2"
    attach(agent, tmp_path, (event, line))
    agent.tools.add(BodyTool("t", returns_done))
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


@pytest.mark.parametrize(
    ("line", "outcome", "code"),
    [
        ("yes | head -c 50000000", "success", 0),
        ("yes '{' | head -c 5000000", "failed", 0),
        ("exit 0", "success", 0),
        ("no-such-program-anywhere", "failed", 127),
        ("echo '{'", "failed", 0),
        ("echo '{'; exit 1", "failed", 1),
        ("echo '{'; echo no >&2; exit 2", "blocked", 2),
        ("kill -KILL $$", "failed", -9),
        (specific("Stop"), "failed", 0),
        ("sleep 1000 & echo '{}'", "success", 0),
        ("printf '{\"systemMessage\": \"\\303'; printf '\\251\"}'", "success", 0),
    ],
)
async def test_whatever_a_hook_does_its_event_gets_one_verdict(
    agent: ak.Agent, tmp_path: Path, line: str, outcome: str, code: int
) -> None:
    """A flood, no reader of a megabyte, no program, no JSON, a child that stays."""
    attach(agent, tmp_path, ("UserPromptSubmit", line))
    await turn(agent, "x" * 1_000_000)
    (fact,) = facts(agent, ak.HookReturned)
    assert (fact.outcome, fact.exit_code) == (outcome, code)
    assert fact.duration is not None
    assert endings(agent) == [(1, "blocked" if code == 2 else "completed")]
    assert not has_children()
    if "251" in line:
        assert messages(agent) == ["é"]


async def test_a_program_that_cannot_be_started_is_a_failed_hook(
    agent: ak.Agent, tmp_path: Path
) -> None:
    attach(agent, tmp_path, ("UserPromptSubmit", str(tmp_path / "absent")), args=["x"])
    await turn(agent)
    assert results(agent) == [("failed", "none")]
    assert endings(agent) == [(1, "completed")]


async def test_a_hook_reads_its_event_and_has_no_terminal(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """One line of JSON, in the project's folder; its arguments are no shell's."""
    script = tmp_path / "look.py"
    script.write_text(
        "import json, os, sys\n"
        "said = json.loads(sys.stdin.readline())\n"
        "said['rest'] = sys.stdin.read()\n"
        "said['args'] = sys.argv[1:]\n"
        "said['project'] = os.environ['CLAUDE_PROJECT_DIR']\n"
        "try:\n"
        "    open('/dev/tty').close()\n"
        "    said['tty'] = True\n"
        "except OSError:\n"
        "    said['tty'] = False\n"
        "open('seen.json', 'w').write(json.dumps(said))\n"
    )
    attach(
        agent, tmp_path, ("PreToolUse", sys.executable), args=[str(script), "$HOME; x"]
    )
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t", path="é\u2028")])
    await turn(agent)
    seen = json.loads((tmp_path / "seen.json").read_text())
    (reply, _) = facts(agent, ak.AssistantReplied)
    assert seen == {
        "session_id": agent.id,
        "transcript_path": None,
        "cwd": str(tmp_path),
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "turn_id": "1",
        "tool_name": "t",
        "tool_input": {"path": "é\u2028"},
        "tool_use_id": reply.message.calls[0].call_id,
        "rest": "",
        "args": ["$HOME; x"],
        "project": str(tmp_path),
        "tty": False,
    }


async def test_hooks_of_an_event_run_at_once_and_are_recorded_in_order(
    agent: ak.Agent, tmp_path: Path
) -> None:
    """The first waits for the second: in sequence it would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    first = f"cat < {pipe}"
    second = f"echo hello > {pipe}; echo bye"
    attach(
        agent,
        tmp_path,
        ("UserPromptSubmit", first),
        ("UserPromptSubmit", second),
        ("UserPromptSubmit", first),
    )
    await turn(agent)
    assert [f.command for f in facts(agent, ak.HookInvoked)] == [first, second]
    assert [f.hook_id for f in facts(agent, ak.HookInvoked)] == [
        f.hook_id for f in facts(agent, ak.HookReturned)
    ]
    assert entered(agent) == ["go", "hello", "bye"]


async def test_a_blocked_prompt_reaches_no_model(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    attach(agent, tmp_path, ("UserPromptSubmit", "echo 'not that' >&2; exit 2"))
    await turn(agent)
    assert endings(agent) == [(1, "blocked")]
    assert not model.requests
    assert not entered(agent)
    assert results(agent) == [("blocked", "deny")]


async def test_a_blocked_steer_is_left_out_and_the_turn_goes_on(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """The prompt that was let in is not to suffer for the one that was not."""
    gate = Gate()
    model.add(["a ", gate, call("t")], ["done"])
    agent.tools.add(BodyTool("t", returns_done))
    attach(agent, tmp_path, ("UserPromptSubmit", "grep -q secret && exit 2; exit 0"))
    agent.followup("go")
    await gate.reached()
    agent.steer("a secret")
    gate.open()
    await agent.when_idle()
    assert endings(agent) == [(1, "completed")]
    assert entered(agent) == ["go"]


async def test_the_start_of_a_session_speaks_before_the_first_request(
    model: ScriptedModel, tmp_path: Path
) -> None:
    """Once for each time it is opened, with its source; never for what hooks say."""
    line = """python3 -c 'import json,sys; print(json.load(sys.stdin)["source"])'"""
    store = ak.MemoryStore()
    for source in ("startup", "resume"):
        async with ak.open_kernel(store) as kernel:
            kernel.models.register("scripted", model)
            async with kernel.open("s", model="scripted") as agent:
                attach(agent, tmp_path, ("SessionStart", line))
                await turn(agent, "one")
                await turn(agent, "two")
                assert entered(agent) == [source, "one", "two"]
    assert model.requests[0].messages[0].text == "startup"  # type: ignore[union-attr]


@pytest.mark.parametrize("first", ["hooks", "approvals"])
@pytest.mark.parametrize("decision", ["allow", "ask", "deny"])
async def test_a_permission_hook_meets_the_policy_of_approvals(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, decision: str, first: str
) -> None:
    """It denies in either order; it saves a question only if it decides first."""
    line = specific(
        "PreToolUse",
        permissionDecision=decision,
        permissionDecisionReason="the hook says so",
        updatedInput={"n": 2},
    )
    ran: list[object] = []

    async def body(call: ak.ToolInvocation) -> ak.ToolOutput:
        ran.append(call.arguments)
        return ak.ToolOutput.of("done")

    agent.tools.add(BodyTool("t", body))
    if first == "hooks":
        attach(agent, tmp_path, ("PreToolUse", line))
    approvals = Approvals(agent.kernel, Policy())
    if first == "approvals":
        attach(agent, tmp_path, ("PreToolUse", line))
    shown: list[object] = []

    def answer(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            shown.append(fact.arguments)
            approvals.answer(fact.approval_id, "allow")

    agent.on(ak.Appended, answer)
    model.add([call("t", n=1)])
    await turn(agent)
    if decision == "deny":
        assert not ran
        assert codes(agent) == ["DENIED"]
        assert not shown
        return
    assert ran == [{"n": 2}]
    asked = decision == "ask" or first == "approvals"
    assert shown == ([{"n": 2}] if asked else [])


async def test_what_hooks_say_about_a_call_stands_behind_the_results(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """Feedback in the result, context behind all results of the step."""
    attach(
        agent,
        tmp_path,
        ("PreToolUse", specific("PreToolUse", additionalContext="before")),
        (
            "PostToolUse",
            say(
                decision="block",
                reason="look again",
                hookSpecificOutput={
                    "hookEventName": "PostToolUse",
                    "additionalContext": "after",
                    "updatedToolOutput": "rewritten",
                },
            ),
        ),
        (
            "PostToolUseFailure",
            specific("PostToolUseFailure", additionalContext="it failed"),
        ),
    )

    async def fails(call: ak.ToolInvocation) -> ak.ToolOutput:
        raise RuntimeError("broken")

    agent.tools.add(BodyTool("t", returns_done))
    agent.tools.add(BodyTool("f", fails))
    model.add([call("t"), call("f")])
    await turn(agent)
    _, _, block, *notes = model.requests[1].messages
    assert isinstance(block, ak.ToolResults)
    assert block.results[0].content == (
        ak.TextBlock("rewritten"),
        ak.TextBlock("\n\nFrom a hook: look again"),
    )
    assert [code is None for code in codes(agent)] == [True, False]
    texts = [note.text for note in notes if isinstance(note, ak.UserMessage)]
    assert texts == ["before", "after", "before", "it failed"]


@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse"])
async def test_a_hook_that_says_stop_ends_the_turn_and_keeps_the_queue(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, event: str
) -> None:
    line = say(**{"continue": False, "stopReason": "enough"})
    attach(agent, tmp_path, (event, line))
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t"), call("t")])
    agent.followup("go")
    later = agent.followup("later")
    await agent.when_idle()
    assert endings(agent) == [(1, "aborted")]
    assert [message.id for message in agent.inbox.next_turn] == [later.id]
    (fact,) = facts(agent, ak.HookReturned)
    assert (fact.decision, fact.detail) == ("stop", "enough")
    assert messages(agent) == ["enough"]
    assert len(facts(agent, ak.ToolCalled)) == (event == "PostToolUse")


@pytest.mark.case("HOOK-02")
async def test_a_hook_that_never_lets_a_turn_end_is_overruled(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """At most eight times; it is told the truth about itself, the user is told too."""
    log = tmp_path / "active"
    line = (
        f"""python3 -c 'import json,sys; print(json.load(sys.stdin)["stop_hook_active"])'"""
        f" >> {log}; echo 'not yet' >&2; exit 2"
    )
    attach(agent, tmp_path, ("Stop", line))
    await turn(agent)
    assert endings(agent) == [(1, "completed")]
    assert len(model.requests) == MAX_BLOCKS + 1
    assert log.read_text().split() == ["False", *["True"] * MAX_BLOCKS]
    assert "asked often enough" in str(messages(agent)[-1])
    assert entered(agent) == ["go", *["not yet"] * MAX_BLOCKS]
    await turn(agent, "again")
    assert log.read_text().split()[MAX_BLOCKS + 1] == "False"


@pytest.mark.case("HOOK-02")
@pytest.mark.parametrize("line", ["no-such-program", "echo '{junk'", "sleep 1000"])
async def test_a_broken_stop_hook_is_no_veto(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, line: str
) -> None:
    attach(agent, tmp_path, ("Stop", line), timeout=1)
    await turn(agent)
    assert len(model.requests) == 1
    assert results(agent)[0][1] == "none"
    assert messages(agent)


@pytest.mark.case("HOOK-02")
async def test_a_refusal_in_the_last_step_changes_nothing(
    kernel: ak.Kernel, model: ScriptedModel, tmp_path: Path
) -> None:
    """There is no step to go on with, and none is left over for later."""
    options = ak.AgentOptions(model="scripted", max_steps=2)
    agent = (await kernel.create("short", options=options)).agent
    attach(agent, tmp_path, ("Stop", "echo more >&2; exit 2"))
    await turn(agent)
    assert len(model.requests) == 2
    assert "no step left" in str(messages(agent)[-1])
    assert not agent.inbox.next_step


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


async def test_children_have_their_own_events(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    attach(
        agent,
        tmp_path,
        ("SubagentStart", "echo you are a child"),
        ("SubagentStop", "cat > stopped.json"),
        ("SessionStart", "echo parent"),
        ("Stop", "touch stopped"),
    )
    child = (await agent.kernel.create("child", model="scripted", parent=agent)).agent
    await turn(child)
    assert entered(child) == ["you are a child", "go"]
    said = json.loads((tmp_path / "stopped.json").read_text())
    assert (said["agent_id"], said["last_assistant_message"]) == ("child", "ok")
    assert not (tmp_path / "stopped").exists()
    await turn(agent)
    assert entered(agent) == ["parent", "go"]


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
