"""`agentkernel chat`, driven in a pseudo-terminal as a person would."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import trio
import trio.testing

import agentkernel as ak
from agentkernel.cli.console import Console
from agentkernel.cli.editor import Key
from agentkernel.cli.screen import Screen
from agentkernel.testing import ScriptedModel
from tests.integration.cli_terminal import Command

ESC = "\x1b"
CTRL_C = "\x03"
CTRL_D = "\x04"

# A tool that ignores its cancellation, and one that blocks the whole event loop.
STUBBORN = """
import time, trio
from agentkernel.tools import tool
@tool
async def stubborn() -> str:
    '''Ignore being stopped.'''
    print('the body runs', flush=True)
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
    return ''
@tool
async def blocking() -> str:
    '''Block the event loop.'''
    print('the body runs', flush=True)
    while True:
        time.sleep(0.01)
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


async def events_of(command: Command, session: str) -> list[ak.SessionEvent]:
    async with ak.SqliteStore(command.store) as store:
        return [*await store.read(session, limit=10_000)]


def endings(events: list[ak.SessionEvent]) -> list[str]:
    return [e.data.reason.kind for e in events if isinstance(e.data, ak.TurnEnded)]


def entered(events: list[ak.SessionEvent]) -> list[str]:
    return [
        e.data.message.text for e in events if isinstance(e.data, ak.MessageEntered)
    ]


async def test_esc_stops_the_turn_in_mid_sentence_and_keeps_what_was_said(
    command: Command,
) -> None:
    """What the user saw is what the log keeps, marked as interrupted."""
    model = command.script(["Once upon ", {"sleep": 3600}, "a time"])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("a story")
        await term.wait_for("Once upon ")
        term.press(ESC)
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
    events = await events_of(command, "s")
    assert endings(events) == ["aborted"]
    replies = [e.data for e in events if isinstance(e.data, ak.AssistantReplied)]
    assert [(r.message.text, r.interrupted) for r in replies] == [("Once upon ", True)]


async def test_text_streams_before_the_answer_is_complete(command: Command) -> None:
    """The first words are on the screen while the model still works on the rest."""
    model = command.script(["first words ", {"sleep": 3600}])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("go")
        await term.wait_for("first words ")
        assert "AssistantReplied" not in str(await events_of(command, "s"))


@pytest.mark.clause("C7a")
async def test_stop_keeps_the_queue_until_it_is_woken(command: Command) -> None:
    """Typing while the agent works queues; Esc parks the queue; /wake runs it."""
    model = command.script(["working ", {"sleep": 3600}], ["second answer"])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("first")
        await term.wait_for("working ")
        term.say("second")
        await term.wait_for("[queued: 1]")
        term.press(ESC)
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.say("/queue")
        await term.wait_for("[1: second]")
        assert endings(await events_of(command, "s")) == ["aborted"]
        term.say("/wake")
        await term.wait_for("[now: second]")
        await term.wait_for("second answer")
        await term.wait_for("> ")
        term.say("/quit")
        assert await term.finish() == 0
    events = await events_of(command, "s")
    assert endings(events) == ["aborted", "completed"]
    assert entered(events) == ["first", "second"]


async def test_dropped_message_is_forgotten(command: Command) -> None:
    """/drop withdraws what waits; nothing of it reaches the model."""
    model = command.script(["working ", {"sleep": 3600}])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("first")
        await term.wait_for("working ")
        term.say("second")
        await term.wait_for("[queued: 1]")
        term.say("/drop 1")
        await term.wait_for("[dropped: 1]")
        term.press(ESC)
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.say("/wake")
        await term.wait_for("[nothing to wake]")
        term.press(CTRL_D)
        assert await term.finish() == 0
    assert entered(await events_of(command, "s")) == ["first"]


async def test_prefix_steers_the_turn_that_runs(command: Command) -> None:
    """A steered message joins the running turn; a queued one would open its own."""
    model = command.script(
        [{"call": "run_shell", "arguments": {"command": "cat fifo"}}], ["steered"]
    )
    os.mkfifo(command.folder / "fifo")
    async with command.terminal(
        "chat", "--model", model, "--session", "s", "--allow", "shell"
    ) as term:
        await term.wait_for("/help]")
        term.say("first")
        await term.wait_for("[tool run_shell")
        term.say("!turn left")
        await term.wait_for("[steering]")
        (command.folder / "fifo").write_text("done\n")
        await term.wait_for("steered")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
    events = await events_of(command, "s")
    assert endings(events) == ["completed"]
    assert entered(events) == ["first", "turn left"]


async def test_session_resumes_in_another_process_with_its_queue(
    command: Command,
) -> None:
    """Leaving with a queue loses nothing: the next process finds it parked."""
    model = command.script(["working ", {"sleep": 3600}])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("first")
        await term.wait_for("working ")
        term.say("second")
        await term.wait_for("[queued: 1]")
        term.press(ESC)
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.press(CTRL_C)
        await term.wait_for("sessions resume s")
        assert await term.finish() == 0
    model = command.script(["answer"])
    async with command.terminal("sessions", "resume", "s", "--model", model) as term:
        await term.wait_for("messages so far")
        await term.wait_for("[1 queued:")
        term.say("/wake")
        await term.wait_for("[now: second]")
        await term.wait_for("answer")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
    assert entered(await events_of(command, "s")) == ["first", "second"]


@pytest.mark.parametrize(
    ("answers", "ran", "decided"),
    [
        (["y", "y"], 2, ["allowed", "allowed"]),
        (["a"], 2, ["allowed"]),
        (["n", "n"], 0, ["denied", "denied"]),
        (["maybe", "y", "n"], 1, ["allowed", "denied"]),
    ],
)
async def test_changing_tools_are_asked_about(
    command: Command, answers: list[str], ran: int, decided: list[str]
) -> None:
    """y runs one call, a the rest of the session too, n none; else it asks again."""
    calls = [
        {"call": "run_shell", "arguments": {"command": f"echo ran >> file{n}"}}
        for n in range(2)
    ]
    model = command.script(calls, ["done talking"])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("go")
        for index, answer in enumerate(answers):
            again = index and answers[index - 1] == "maybe"
            await term.wait_for("[please answer" if again else "in this session]")
            term.say(answer)
        await term.wait_for("done talking")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
    assert len([*command.folder.glob("file?")]) == ran
    events = await events_of(command, "s")
    found = [e.data.decision for e in events if isinstance(e.data, ak.ApprovalDecided)]
    assert found == decided


async def test_always_holds_for_the_session_after_a_restart_too(
    command: Command,
) -> None:
    """Another session asks again: the answer was given for this one."""
    call = {"call": "run_shell", "arguments": {"command": "echo ran >> file"}}
    model = command.script([call], ["done talking"])
    for session, asks in [("s", True), ("s", False), ("t", True)]:
        async with command.terminal(
            "chat", "--model", model, "--session", session
        ) as term:
            await term.wait_for("/help]")
            term.say("go")
            if asks:
                await term.wait_for("in this session]")
                term.say("a")
            await term.wait_for("done talking")
            await term.wait_for("> ")
            term.press(CTRL_C)
            assert await term.finish() == 0
            assert ("in this session]" in term.plain) == asks
    assert (command.folder / "file").read_text() == "ran\n" * 3


@pytest.mark.clause("T7b", "L3")
async def test_cancelled_question_is_no_denial(command: Command) -> None:
    """Esc at the question stops the turn; the log says cancelled, the tool did not run."""
    model = command.script(
        [{"call": "write_file", "arguments": {"path": "f", "content": "x"}}]
    )
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("go")
        await term.wait_for("a = always")
        await term.wait_for("? ")
        term.press(ESC)
        await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
    events = await events_of(command, "s")
    decided = [e.data for e in events if isinstance(e.data, ak.ApprovalDecided)]
    assert [d.decision for d in decided] == ["cancelled"]
    results = [e.data for e in events if isinstance(e.data, ak.ToolReturned)]
    assert [r.error.code for r in results if r.error] == ["ABORTED_BEFORE_DISPATCH"]
    assert not (command.folder / "f").exists()


async def test_line_begun_before_a_question_does_not_answer_it(tmp_path: Path) -> None:
    """A question that pops up under somebody's fingers waits until the line is sent."""
    with (tmp_path / "shown").open("w+") as file:
        console = Console(file, file)
        screen = Screen(console)
        given: list[str] = []

        async def ask() -> None:
            given.append(await screen.ask("run_shell()", may_last=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(console.run)
            screen.press(Key("text", "y"))
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            assert not screen.answer("y")
            assert screen.take() == "y"
            await trio.testing.wait_all_tasks_blocked()
            await console.drained()
            assert "[allow run_shell()?" in (tmp_path / "shown").read_text()
            assert given == []
            assert screen.answer("n")
            await trio.testing.wait_all_tasks_blocked()
            assert given == ["no"]
            nursery.cancel_scope.cancel()


@pytest.mark.clause("D3d", "C11d")
@pytest.mark.parametrize("tool", ["stubborn", "blocking"])
async def test_third_ctrl_c_leaves_a_stall_and_names_the_last_durable_event(
    command: Command, tool: str
) -> None:
    """A tool that ignores its stop, or blocks the loop, does not hold the terminal."""
    model = command.script([{"call": tool, "arguments": {}}])
    async with command.terminal(
        "chat",
        "--model",
        model,
        "--session",
        "s",
        extra=STUBBORN,
        call="tools=[stubborn, blocking]",
    ) as term:
        before = term.attributes()
        await term.wait_for("/help]")
        assert term.attributes() != before
        term.say("go")
        await term.wait_for("the body runs")
        term.press(CTRL_C)
        if tool == "stubborn":
            await term.wait_for("[stopping]")
            term.press(CTRL_C)
            await term.wait_for("[waiting for tool stubborn")
            await term.wait_for("once more leaves at once")
            term.press(CTRL_C)
        else:
            # Nothing can be shown: somebody presses the key again and again.
            while "left at once" not in term.plain:
                term.press(CTRL_C)
                with trio.move_on_after(0.1):
                    await term.wait_for("left at once")
            term.position = term.plain.index("left at once")
        await term.wait_for("the last durable event of session s is number ")
        assert await term.finish() == 130
        number = int(term.plain[term.position :].split()[0])
        assert term.attributes() == before
    events = await events_of(command, "s")
    assert events[-1].seq == number
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        kernel.models.register("m", ScriptedModel(["again"]))
        handle = await kernel.resume("s", model="m")
        async with handle as agent, agent.ask("go on") as reply:
            pass
        assert reply.outcome.text == "again"


async def test_every_stop_that_has_ended_is_forgotten_by_ctrl_c(
    command: Command,
) -> None:
    """Three presses leave at once only if they belong to one stop."""
    model = command.script(default=["working ", {"sleep": 3600}])
    async with command.terminal("chat", "--model", model) as term:
        await term.wait_for("/help]")
        for _ in range(3):
            await term.wait_for("> ")
            term.say("go")
            await term.wait_for("working ")
            term.press(CTRL_C)
            await term.wait_for("[stopped]")
        await term.wait_for("> ")
        term.press(CTRL_C)
        assert await term.finish() == 0
        assert "left at once" not in term.plain


@pytest.mark.clause("D3d")
async def test_third_ctrl_c_leaves_a_store_that_hangs(command: Command) -> None:
    """A write that never returns is named, and the way out tells what is durable."""
    extra = """
import agentkernel as ak
from agentkernel.testing import FaultyStore
import os
class Hanging(FaultyStore):
    async def write(self, *args):
        if self.calls["write"] == 2:
            self.hold("write")
            print("the third write hangs", flush=True)
        return await super().write(*args)
store = Hanging(ak.SqliteStore(os.environ["AGENTKERNEL_STORE"]))
"""
    model = command.script(["answer"])
    async with command.terminal(
        "chat", "--model", model, "--session", "s", extra=extra, call="store=store"
    ) as term:
        await term.wait_for("/help]")
        term.say("go")
        await term.wait_for("answer")
        # Not a slow one before it, which ends behind the last words' back.
        term.position = 0
        await term.wait_for("the third write hangs")
        term.press(CTRL_C)
        await term.wait_for("[waiting for flush s")
        term.press(CTRL_C)
        await term.wait_for("once more leaves at once")
        term.press(CTRL_C)
        await term.wait_for("the last durable event of session s is number ")
        assert await term.finish() == 130
        number = int(term.plain[term.position :].split()[0])
    assert (await events_of(command, "s"))[-1].seq == number


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
async def test_ending_signals_dispose_of_the_agent(
    command: Command, number: signal.Signals, code: int
) -> None:
    """The log is flushed, the child of the running tool is dead, the tty is restored."""
    model = command.script(
        [{"call": "run_shell", "arguments": {"command": "sleep 1000 & sleep 1000"}}]
    )
    async with command.terminal(
        "chat", "--model", model, "--session", "s", "--allow", "shell"
    ) as term:
        before = term.attributes()
        await term.wait_for("/help]")
        term.say("go")
        await term.wait_for("[tool run_shell")
        term.process.send_signal(number)
        assert await term.finish() == code
        assert term.attributes() == before
    assert command.left_over() == []
    assert endings(await events_of(command, "s")) == ["disposed"]


async def test_terminal_that_goes_away_disposes_of_the_agent(command: Command) -> None:
    """Closing the window is SIGHUP, a dead keyboard and a dead screen at once."""
    model = command.script(["working ", {"sleep": 3600}])
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        term.say("go")
        await term.wait_for("working ")
        term.hang_up()
        assert await term.process.wait() == 129
    assert endings(await events_of(command, "s")) == ["disposed"]


async def test_hostile_text_does_not_reach_the_terminal(command: Command) -> None:
    """Neither a model nor a file can move the cursor or write the window's title."""
    hostile = "a\x1b[2Jb\x1b]0;title\x07c\x9b31md\u202ee\x1b"
    (command.folder / "evil\x1b[31m.txt").write_text(hostile)
    model = command.script(
        [{"call": "list_files", "arguments": {}}], [hostile[:4], hostile[4:], "|end"]
    )
    async with command.terminal("chat", "--model", model, "--session", "s") as term:
        await term.wait_for("/help]")
        start = len(term.raw)
        term.say("go")
        await term.wait_for("ab]0;titlecde|end")
        await term.wait_for("> ")
        shown = term.raw[start:].replace("\x1b[K", "")
        assert not set(shown) & set("\x1b\x07\x9b\u202e")
        term.press(CTRL_C)
        assert await term.finish() == 0


async def test_suspended_chat_goes_on_with_its_own_terminal_mode(
    command: Command,
) -> None:
    """After Ctrl-Z the shell resets the terminal; SIGCONT takes it over again."""
    async with command.terminal("chat", "--model", command.script()) as term:
        await term.wait_for("/help]")
        mode = term.attributes()
        term.press("half a li")
        await term.wait_for("> half a li")
        term.cook()
        assert term.attributes() != mode
        term.process.send_signal(signal.SIGCONT)
        await term.wait_for("> half a li")
        assert term.attributes() == mode
        term.say("ne")
        await term.wait_for("ok")
