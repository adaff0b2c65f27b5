"""Hooks as real processes: how they talk and what follows from what they say.

`fail_after` is a guard against a hang and never an expectation.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.bridges.hooks import (
    MAX_BLOCKS,
    CommandExecutor,
    Hooks,
    HookSettings,
)
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.tools.approval import Policy, Rule
from tests.integration.hooking import (
    attach,
    has_children,
    living,
    messages,
    results,
    say,
    specific,
    tag,
    turn,
)
from tests.race.rig import BodyTool, codes, endings, entered, facts, returns_done

GUARD = 60


@pytest.fixture(autouse=True)
async def guard() -> AsyncIterator[None]:
    """End a test that hangs."""
    with trio.fail_after(GUARD):
        yield


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


@pytest.mark.parametrize("own", [False, True], ids=["by default", "an executor"])
async def test_a_folder_that_is_relative_is_the_one_of_the_moment(
    agent: ak.Agent,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    """A gate that is named by `CLAUDE_PROJECT_DIR` is found from wherever it runs."""
    gate = tmp_path / "project" / "gate.sh"
    gate.parent.mkdir()
    gate.write_text("#!/bin/sh\ncat > told.json; pwd >&2; exit 2\n")
    gate.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    line = '"$CLAUDE_PROJECT_DIR"/gate.sh'
    group = {"hooks": [{"type": "command", "command": line}]}
    Hooks(
        agent.kernel,
        HookSettings.from_json({"hooks": {"UserPromptSubmit": [group]}}),
        cwd="project",
        executor=CommandExecutor("project") if own else None,
    )
    monkeypatch.chdir("/")
    await turn(agent)
    assert endings(agent) == [(1, "blocked")]
    assert messages(agent) == [str(gate.parent.resolve())]
    told = json.loads((gate.parent / "told.json").read_text())
    assert told["cwd"] == str(gate.parent)


async def test_what_a_hook_leaves_behind_is_ended_and_named(
    agent: ak.Agent, tmp_path: Path
) -> None:
    """Who wonders where the server of a hook went finds it in the log."""
    mark = tag()
    attach(agent, tmp_path, ("UserPromptSubmit", f"sleep {mark} & exit 0"))
    await turn(agent)
    (result,) = facts(agent, ak.HookReturned)
    assert result.outcome == "success"
    assert result.detail is not None
    assert result.detail.startswith(f"it left processes behind: sleep {mark} (pid ")
    assert result.detail.endswith(", ended)")
    assert not living(mark)


async def test_hooks_are_not_told_where_telemetry_goes(
    agent: ak.Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is this process's own, and a hook's tools would send theirs there."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setenv("HARMLESS", "yes")
    line = 'echo "$HARMLESS,$OTEL_EXPORTER_OTLP_ENDPOINT" >&2; exit 2'
    attach(agent, tmp_path, ("UserPromptSubmit", line))
    await turn(agent)
    assert messages(agent) == ["yes,"]


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
                assert len(facts(agent, ak.HookInvoked)) == 1
    first = model.requests[0].messages[0]
    assert isinstance(first, ak.UserMessage)
    assert first.text == "startup"


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


async def test_a_hook_that_allows_does_not_overrule_a_rule_that_asks(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path
) -> None:
    """It saves the question of the default, never that of a rule."""
    line = specific("PreToolUse", permissionDecision="allow")
    attach(agent, tmp_path, ("PreToolUse", line))
    approvals = Approvals(agent.kernel, Policy((Rule("ask", "t"),)))

    def answer(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ApprovalAsked):
            approvals.answer(fact.approval_id, "deny")

    agent.on(ak.Appended, answer)
    agent.tools.add(BodyTool("t", returns_done))
    model.add([call("t")])
    await turn(agent)
    assert codes(agent) == ["DENIED"]


async def test_what_a_stop_hook_says_is_nobodys_prompt(
    agent: ak.Agent, tmp_path: Path
) -> None:
    """The hooks of prompts do not see it: they could refuse another hook's words."""
    stop = "grep -q 'active\": true' || { echo more >&2; exit 2; }"
    attach(agent, tmp_path, ("UserPromptSubmit", "exit 0"), ("Stop", stop))
    await turn(agent)
    assert entered(agent) == ["go", "more"]
    assert [fact.event for fact in facts(agent, ak.HookInvoked)] == [
        "UserPromptSubmit",
        "Stop",
        "Stop",
    ]


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


@pytest.mark.parametrize("kept", [True, False])
async def test_a_hook_that_says_too_much_costs_the_model_a_bounded_text(
    agent: ak.Agent, model: ScriptedModel, tmp_path: Path, *, kept: bool
) -> None:
    """200,000 characters: the model is shown the beginning, and where the rest is."""
    line = "head -c 200000 /dev/zero | tr '\\0' x"
    settings = HookSettings.from_json(
        {
            "hooks": {
                "UserPromptSubmit": [{"hooks": [{"type": "command", "command": line}]}]
            }
        }
    )
    folder = tmp_path / "long"
    Hooks(agent, settings, cwd=tmp_path, spill_folder=folder if kept else None)
    await turn(agent)
    _, note = model.requests[0].messages
    assert isinstance(note, ak.UserMessage)
    if not kept:
        assert note.text == "x" * 10_000 + "\n[... 190000 characters left out ...]"
        return
    (path,) = folder.iterdir()
    assert path.read_text() == "x" * 200_000
    assert len(note.text) < 2_500
    assert str(path) in note.text
