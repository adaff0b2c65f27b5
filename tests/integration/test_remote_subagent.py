"""Agents in programs of their own: real pipes, real processes, nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.jobs import Job, JobResult, Jobs
from agentkernel.bridges.subagents import (
    RemoteAgent,
    RemoteAgentTool,
    RemoteUpdate,
    Report,
    remote_agent_tool,
    run_remote,
)
from agentkernel.testing import ScriptedModel, call, check_log
from agentkernel.tools import ProcessLimits
from tests.integration.acp_peers import node_peer, python_peer
from tests.integration.scripted_remote import scripted

RUDE = Path(__file__).parent / "rude_peer.py"
Permission = Literal["allow", "deny", "ask"]


def rude(mode: str, tmp_path: Path, permission: Permission = "deny") -> RemoteAgent:
    return RemoteAgent(
        (sys.executable, str(RUDE), mode, str(tmp_path / mode)),
        permission=permission,
        cancel_seconds=0.2 if mode in {"stubborn", "silent"} else 60,
        limits=ProcessLimits(hangup=0.2, grace=0.2),
    )


def received(tmp_path: Path, mode: str) -> list[dict[str, object]]:
    lines = (tmp_path / mode).read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def pids(tmp_path: Path, mode: str) -> list[int]:
    lines = (tmp_path / mode).read_text("utf-8").splitlines()
    return [int(line) for line in lines if line.isdigit()]


def children() -> list[str]:
    """The processes that this one has started and not reaped, and their commands."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            continue
        if entry.name.isdigit() and int(fields[1]) == os.getpid():
            found.append(f"{entry.name} {fields[0]}")
    return found


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its name that nobody has read yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(children())
    yield
    assert set(children()) == before


@asynccontextmanager
async def parent_of(
    tool: ak.Tool, *answers: str
) -> AsyncGenerator[tuple[ak.Agent, ScriptedModel]]:
    model = ScriptedModel([call(tool.spec.name, prompt="hello")], default=["I see"])
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        async with kernel.open("s", model="m", tools=[tool]) as agent:
            with trio.fail_after(120):
                yield agent, model


def told(agent: ak.Agent) -> list[RemoteUpdate]:
    """What the log says that the remote has said and done."""
    bodies = [
        e.data.body
        for e in agent.session.events
        if isinstance(e.data, ak.Extension) and e.data.name == "subagent/update"
    ]
    return [msgspec.convert(body, RemoteUpdate) for body in bodies]


def result(agent: ak.Agent) -> ak.ToolReturned:
    [found] = [
        e.data for e in agent.session.events if isinstance(e.data, ak.ToolReturned)
    ]
    return found


def text_of(returned: ak.ToolReturned) -> str:
    blocks = returned.message.content
    return "".join(b.text for b in blocks if isinstance(b, ak.TextBlock))


async def until_told(agent: ak.Agent, kind: str) -> None:
    """Wait until the log tells of an update of one kind."""
    async with agent.session.subscribe() as events:
        async for event in events:
            data = event.data if isinstance(event, ak.SessionEvent) else None
            if isinstance(data, ak.Extension) and kind in str(data.body):
                return


async def test_the_python_example_agent_answers() -> None:
    """A peer that we did not write: what it streams is the result and in the log."""
    tool = remote_agent_tool("echo", "Echoes.", RemoteAgent(python_peer()))
    async with parent_of(tool) as (agent, _model):
        agent.followup("go")
        await agent.when_idle()
        assert text_of(result(agent)) == "Client sent:hello"
        assert [u.text for u in told(agent)] == ["Client sent:", "hello"]
        check_log(agent.session.events)
        described = [
            e.data
            for e in agent.session.events
            if isinstance(e.data, ak.SubagentDescribed)
        ]
        assert [(d.kind, d.ending and d.ending.kind) for d in described] == [
            ("remote", None),
            ("remote", "completed"),
        ]


@pytest.mark.parametrize(
    ("answer", "words"),
    [("allow", "successfully"), ("deny", "prefer not"), (None, "prefer not")],
)
async def test_the_typescript_example_agent_is_asked_about_through_the_approval_point(
    answer: str | None, words: str
) -> None:
    """Allowed, denied, and with nobody there to ask, which is a denial."""
    asked: list[str] = []

    async def approve(
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        await following(payload)
        asked.append(payload.reason)
        return ak.Allow() if answer == "allow" else ak.Deny("no")

    tool = remote_agent_tool("coder", "Codes.", RemoteAgent(node_peer()))
    async with parent_of(tool) as (agent, _model):
        if answer is not None:
            agent.on(ak.Approve, approve)
        agent.followup("go")
        await agent.when_idle()
        assert words in text_of(result(agent))
        assert result(agent).error is None
        kinds = [u.kind for u in told(agent)]
        assert {"agent_message_chunk", "tool_call", "tool_call_update"} <= set(kinds)
    assert ["Modifying critical" in reason for reason in asked] == (
        [] if answer is None else [True]
    )


@pytest.mark.clause("S4")
@pytest.mark.parametrize("when", ["agent_message_chunk", "critical"])
async def test_a_stop_reaches_the_typescript_example_agent(when: str) -> None:
    """While it streams, and while its question is open; then its process is gone."""

    async def wait(
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        del payload, following
        await trio.sleep_forever()

    tool = remote_agent_tool("coder", "Codes.", RemoteAgent(node_peer()))
    async with parent_of(tool) as (agent, model):
        agent.on(ak.Approve, wait)
        agent.followup("go")
        await until_told(agent, when)
        before = set(children())
        assert before
        agent.cancel()
        await agent.when_idle()
        assert not set(children()) & before
        # Stopped, or ended in its own way all the same: it is the remote's to say.
        assert result(agent).message.content
        check_log(agent.session.events)
    assert len(model.requests) == 1


async def test_a_stop_of_the_python_example_agent_leaves_no_process() -> None:
    """It ends its turn as it likes; we end when it has, and have what it said."""
    reports: list[Report] = []
    with trio.CancelScope() as scope:

        def follow(_update: RemoteUpdate) -> None:
            scope.cancel()

        remote = RemoteAgent(python_peer())
        reports.append(await run_remote(remote, "hello", on_update=follow))
    assert scope.cancel_called
    assert [r.text for r in reports] == ["Client sent:hello"]


@pytest.mark.clause("S4")
async def test_a_stop_uses_the_protocol_and_listens_until_the_remote_has_answered(
    tmp_path: Path,
) -> None:
    """What it says after the cancel is not lost, and it is not killed for it."""
    updates: list[str] = []
    with trio.CancelScope() as scope:

        def follow(update: RemoteUpdate) -> None:
            updates.append(update.text)
            scope.cancel()

        await run_remote(rude("late", tmp_path), "go", on_update=follow)
    assert scope.cancelled_caught
    assert updates == ["working ", "and the end of it"]
    methods = [m.get("method") for m in received(tmp_path, "late")]
    assert methods[-1] == "session/cancel"


async def test_a_question_that_is_open_at_a_stop_is_answered_cancelled(
    tmp_path: Path,
) -> None:
    """Which is not a denial: the remote is not told that somebody said no."""

    async def decide(_what: str) -> bool:
        scope.cancel()
        await trio.sleep_forever()

    with trio.CancelScope() as scope:
        await run_remote(rude("asks", tmp_path, "ask"), "go", decide=decide)
    answers = [m for m in received(tmp_path, "asks") if "method" not in m]
    assert [a["result"] for a in answers] == [{"outcome": {"outcome": "cancelled"}}]


@pytest.mark.case("PROC-01", "PROC-06")
@pytest.mark.parametrize("mode", ["stubborn", "silent"])
async def test_a_remote_that_ignores_everything_is_killed_with_its_family(
    tmp_path: Path, mode: str
) -> None:
    """It ignores the cancel, the end of its input and SIGTERM, as its child does."""
    with trio.CancelScope() as scope:
        await run_remote(
            rude(mode, tmp_path), "go", on_update=lambda _u: scope.cancel()
        )
    assert scope.cancelled_caught
    found = pids(tmp_path, mode)
    assert len(found) == (2 if mode == "stubborn" else 1)
    assert not [pid for pid in found if runs(pid)]


@pytest.mark.case("ACP-10")
async def test_lines_are_taken_up_to_a_limit_and_garbage_is_passed_over(
    tmp_path: Path,
) -> None:
    """Five megabytes work; more than the limit ends the run; garbage is answered."""
    report = await run_remote(rude("long", tmp_path), "go")
    assert report.ok
    assert len(report.text) < 300_000
    report = await run_remote(rude("too-long", tmp_path), "go")
    assert report.failure is not None
    assert "longer than" in report.failure.message
    report = await run_remote(rude("garbage", tmp_path), "go")
    assert (report.ok, report.text) == (True, "still here")
    errors = [str(m["error"]) for m in received(tmp_path, "garbage") if "error" in m]
    assert ["-32700" in errors[0], "-32600" in errors[1]] == [True, True]


@pytest.mark.parametrize(
    ("mode", "ending", "words"),
    [
        ("exits", "error", "it ended during session/prompt"),
        ("newer", "error", "version 2"),
        ("odd", "error", "bored"),
    ],
)
async def test_a_remote_that_breaks_off_is_a_failure_with_what_it_said(
    tmp_path: Path, mode: str, ending: str, words: str
) -> None:
    """The parent's model is told, and goes on."""
    report = await run_remote(rude(mode, tmp_path), "go")
    assert report.ending == ending
    assert report.failure is not None
    assert words in report.failure.message
    assert report.text == ("I was about to " if mode == "exits" else "")


async def test_a_program_that_does_not_exist_is_a_failure() -> None:
    """Not an exception of the turn."""
    report = await run_remote(RemoteAgent(("/nowhere/agent",)), "go")
    assert report.failure is not None
    assert "cannot be started" in report.failure.message


async def test_a_program_that_never_answers_is_given_up() -> None:
    """Before its session is there, time is bounded."""
    remote = RemoteAgent(("sleep", "600"), start_seconds=0.2)
    report = await run_remote(remote, "go")
    assert report.failure is not None
    assert "did not start" in report.failure.message


async def test_requests_that_are_not_offered_or_taken_back_are_answered(
    tmp_path: Path,
) -> None:
    """By the numbers of the protocol."""
    report = await run_remote(rude("unknown", tmp_path), "go")
    assert "-32601" in report.text

    async def decide(_what: str) -> bool:
        await trio.sleep_forever()

    report = await run_remote(rude("takes-back", tmp_path, "ask"), "go", decide=decide)
    assert "-32800" in report.text


@pytest.mark.case("CONC-01")
async def test_connections_close_in_any_order_and_each_in_its_own_task(
    tmp_path: Path,
) -> None:
    """Opened from several tasks, ended by others, two of them with their agent."""

    def body(mode: str) -> Callable[[Job], Awaitable[JobResult]]:
        async def run(job: Job) -> JobResult:
            folder = tmp_path / job.title
            folder.mkdir()
            report = await run_remote(
                rude(mode, folder), "go", on_update=lambda u: job.write(u.text)
            )
            return JobResult(report.text)

        return run

    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        jobs = Jobs(kernel)
        async with kernel.open("s", model="m") as agent:
            started = {
                name: jobs.start(agent, body("late"), kind="remote", title=name)
                for name in "abcde"
            }
            for job in started.values():
                while not job.output:
                    assert await job.wait_for_output()
            async with trio.open_nursery() as nursery:
                for name in "bac":
                    started[name].kill()
                    nursery.start_soon(started[name].wait)
            assert [started[n].status for n in "abcde"] == ["killed"] * 3 + [
                "running"
            ] * 2
        assert [started[n].status for n in "de"] == ["ended"] * 2
        check_log(agent.session.events)


def described(agent: ak.Agent) -> list[ak.SubagentDescribed]:
    return [
        e.data for e in agent.session.events if isinstance(e.data, ak.SubagentDescribed)
    ]


async def test_the_log_tells_where_it_leaves_something_out(tmp_path: Path) -> None:
    """A reader must not take the first thousand updates, or half a text, for all."""
    script = """
    def prompted():
        update("k" * 5000, status="s" * 5000, title="t" * 5000)
        for number in range(1100):
            say(f"{number} ")
        end()
    """
    tool = remote_agent_tool("x", "X.", scripted(tmp_path / "wire", script))
    async with parent_of(tool) as (agent, _model):
        agent.followup("go")
        await agent.when_idle()
        first, *_others, last = found = told(agent)
        assert len(found) == 1001
        assert last.kind == "left_out"
        for text in (first.kind, first.text, first.status or ""):
            assert 100 < len(text) < 2100
            assert "characters left out" in text
        assert text_of(result(agent)).endswith("1099 ")


async def test_the_descriptor_and_the_result_name_the_same_child_and_why_it_failed(
    tmp_path: Path,
) -> None:
    """The log alone says which result is whose, and what went wrong."""
    script = """
    def prompted():
        send(id=prompt, error={"code": -1, "message": "no more money"})
    """
    tool = remote_agent_tool("x", "X.", scripted(tmp_path / "wire", script))
    async with parent_of(tool) as (agent, _model):
        agent.followup("go")
        await agent.when_idle()
        began, ended = described(agent)
        returned = result(agent)
        assert returned.meta["child"] == began.child == ended.child
        assert ended.ending is not None
        assert returned.error is not None
        assert ended.ending.kind == "error"
        assert ended.ending.code == returned.error.code == "CHILD_ERROR"
        assert "no more money" in str(ended.ending.message)
        check_log(agent.session.events)


async def test_a_listener_that_raises_ends_the_call_as_an_error(tmp_path: Path) -> None:
    """In the log, the descriptor and the result; the remote is stopped first."""
    script = """
    def prompted():
        ask(7, ("allow_once",))
    def cancelled():
        end("cancelled")
    """

    async def approve(
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        del payload, following
        await trio.lowlevel.checkpoint()
        raise ValueError("broken")

    remote = scripted(tmp_path / "wire", script, "ask")
    async with parent_of(remote_agent_tool("x", "X.", remote)) as (agent, _model):
        agent.on(ak.Approve, approve)
        agent.followup("go")
        await agent.when_idle()
        assert [d.ending and d.ending.kind for d in described(agent)] == [None, "error"]
        error = result(agent).error
        assert error is not None
        assert (error.code, "broken" in error.message) == ("TOOL_ERROR", True)
        check_log(agent.session.events)


def test_the_tool_checks_its_arguments() -> None:
    tool: RemoteAgentTool = remote_agent_tool("x", "X.", RemoteAgent(("true",)))
    with pytest.raises(ak.ToolArgumentsError):
        tool.check({"prompt": ""})
