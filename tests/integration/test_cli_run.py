"""`agentkernel run` as programs use it: over pipes, with exit codes and JSON lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.cli.exits import code_of
from tests.integration.cli_terminal import LONGEST, ROOT, Command

STUBBORN = """
import trio
from agentkernel.tools import tool
@tool
async def stubborn() -> str:
    '''Ignore being stopped.'''
    print('the body runs', flush=True)
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
    return ''
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


async def events_of(command: Command, session: str) -> list[ak.SessionEvent]:
    async with ak.SqliteStore(command.store) as store:
        return [*await store.read(session, limit=10_000)]


def endings(events: list[ak.SessionEvent]) -> list[str]:
    return [e.data.reason.kind for e in events if isinstance(e.data, ak.TurnEnded)]


async def read_until(stream: trio.abc.ReceiveStream | None, wanted: bytes) -> bytes:
    """Read a pipe until something was said on it."""
    assert stream is not None
    data = b""
    while wanted not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    return data


async def test_answer_is_all_of_standard_output_and_the_rest_is_told_beside_it(
    command: Command,
) -> None:
    """So `agentkernel run ... > file` holds the answer and nothing else."""
    (command.folder / "note.txt").write_text("secret number 7\n")
    model = command.script(
        [{"call": "read_file", "arguments": {"path": "note.txt"}}],
        ["The number ", "is 7."],
    )
    done = await command.run("run", "which?", "--model", model, "--session", "s")
    assert (done.returncode, done.stdout) == (0, b"The number is 7.\n")
    assert b'[tool read_file(path="note.txt"' in done.stderr
    assert b"[session s]" in done.stderr
    assert b"\x1b" not in done.stdout + done.stderr


async def test_tool_output_is_in_the_next_request(command: Command) -> None:
    """The bytes of the file go to the model: a local server sees both requests.

    And it sees no key that was meant for another provider.
    """
    command.environment["OPENAI_API_KEY"] = "key-of-another"
    command.environment["AGENTKERNEL_API_KEY"] = "key-of-this-server"
    (command.folder / "note.txt").write_text("the password is xyzzy\n")
    heads: list[bytes] = []
    bodies: list[bytes] = []
    function = r'{"name": "read_file", "arguments": "{\"path\": \"note.txt\"}"}'
    tool_call = f'{{"index": 0, "id": "c", "function": {function}}}'
    answers = [
        (f'{{"tool_calls": [{tool_call}]}}', "tool_calls"),
        ('{"content": "done"}', "stop"),
    ]

    async def serve(stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += await stream.receive_some()
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        while len(body) < length:
            body += await stream.receive_some()
        heads.append(head)
        bodies.append(body)
        delta, reason = answers[len(bodies) - 1]
        lines = (
            f'data: {{"choices": [{{"index": 0, "delta": {delta}}}]}}\n\n'
            'data: {"choices": [{"index": 0, "delta": {}, '
            f'"finish_reason": "{reason}"}}]}}\n\n'
        )
        await stream.send_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"connection: close\r\n\r\n" + f"{lines}data: [DONE]\n\n".encode()
        )
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        done = await command.run(
            "run",
            "go",
            "--model",
            "openai-compatible:m",
            "--base-url",
            f"http://127.0.0.1:{port}/v1",
        )
        nursery.cancel_scope.cancel()
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    assert all(b"key-of-this-server" in head for head in heads)
    assert not any(b"key-of-another" in data for data in heads + bodies)
    assert b"xyzzy" not in bodies[0]
    assert b"xyzzy" in bodies[1]


NO_ARGUMENTS: dict[str, object] = {}


@pytest.mark.parametrize(
    ("answer", "code", "kind"),
    [
        (["fine"], 0, "completed"),
        ([{"error": "no such model"}], 1, "error"),
        (["cut", {"finish": "max-tokens"}], 5, "max-tokens"),
        ([{"call": "list_files", "arguments": NO_ARGUMENTS}], 4, "max-steps"),
    ],
)
async def test_exit_code_says_how_the_turn_ended(
    command: Command, answer: list[object], code: int, kind: str
) -> None:
    """A script in a shell can tell the endings apart without reading words."""
    model = command.script(answer)
    done = await command.run(
        "run", "go", "--model", model, "--session", "s", "--max-steps", "1"
    )
    assert done.returncode == code, done.stderr
    assert endings(await events_of(command, "s")) == [kind]


def test_every_outcome_has_a_code_of_its_own_kind() -> None:
    """What no command can provoke here is looked up: rejected and stopped messages."""
    codes = {
        ak.Outcome("completed"): 0,
        ak.Outcome("blocked"): 3,
        ak.Outcome("max-steps"): 4,
        ak.Outcome("max-tokens"): 5,
        ak.Outcome("aborted"): 130,
        ak.Outcome("discarded"): 130,
        ak.Outcome("error"): 1,
        ak.Outcome("interrupted"): 1,
    }
    assert {outcome: code_of(outcome) for outcome in codes} == codes


@pytest.mark.clause("D3a")
async def test_store_that_cannot_write_ends_with_its_own_code(command: Command) -> None:
    """And it says up to where the session is safe, which a retry can rely on."""
    extra = """
import agentkernel as ak
from agentkernel.testing import FaultyStore
import os
store = FaultyStore(ak.SqliteStore(os.environ["AGENTKERNEL_STORE"]))
store.fail("write", nth=3, times=float("inf"))
"""
    done = await command.run(
        "run", "go", "--model", command.script(), extra=extra, call="store=store"
    )
    assert done.returncode == 6
    assert b"last durable event: " in done.stderr


def _no_blob(sha256: str) -> bytes:
    raise AssertionError(f"no event of this session has a blob, not {sha256}")


async def test_json_lines_are_the_events_of_the_log(command: Command) -> None:
    """Each line decodes to the event that the store holds, hostile text included."""
    model = command.script(["a\x1b[31m\u009b\u202e\x07b"])
    done = await command.run("run", "go", "--model", model, "--session", "s", "--json")
    lines = done.stdout.splitlines()
    events = await events_of(command, "s")
    assert [ak.decode_event(line, _no_blob) for line in lines] == events[1:]
    assert not set(done.stdout.decode()) & set("\x1b\u009b\u202e\x07")


async def test_prompt_may_come_from_standard_input(command: Command) -> None:
    model = command.script()
    done = await command.run(
        "run", "-", "--model", model, "--session", "s", stdin="größe\n".encode()
    )
    assert done.returncode == 0
    entered = [
        e.data.message.text
        for e in await events_of(command, "s")
        if isinstance(e.data, ak.MessageEntered)
    ]
    assert entered == ["größe"]


async def test_session_goes_on_with_its_own_model_and_system_prompt(
    command: Command,
) -> None:
    """A second run names the session alone; what it was opened with is in its log."""
    model = command.script(["one"], default=["more"])
    first = await command.run(
        "run", "a", "--model", model, "--session", "s", "--system", "Be brief."
    )
    second = await command.run("run", "b", "--session", "s", "--max-steps", "3")
    assert (first.stdout, second.stdout) == (b"one\n", b"one\n"), second.stderr
    events = await events_of(command, "s")
    assert endings(events) == ["completed", "completed"]
    systems = {
        e.data.system for e in events if isinstance(e.data, ak.RequestConfigured)
    }
    assert systems == {"Be brief."}


@pytest.mark.parametrize("allow", [(), ("--allow", "write,shell")])
async def test_changing_tools_are_off_without_a_terminal_unless_allowed(
    command: Command, allow: tuple[str, ...]
) -> None:
    """Nobody is there to ask, so the model is not even told of them."""
    model = command.script(
        [{"call": "run_shell", "arguments": {"command": "echo hi > made"}}], ["done"]
    )
    await command.run("run", "go", "--model", model, "--session", "s", *allow)
    events = await events_of(command, "s")
    offered = {
        tool.name
        for e in events
        if isinstance(e.data, ak.RequestConfigured)
        for tool in e.data.tools
    }
    reading = {"read_file", "list_files", "search_files"}
    assert offered == reading | ({"write_file", "run_shell"} if allow else set())
    assert (command.folder / "made").exists() == bool(allow)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "openai:gpt"], b"OPENAI_API_KEY"),
        (["--model", "anthropic:claude"], b"ANTHROPIC_API_KEY"),
        (["--model", "openai-compatible:x"], b"--base-url"),
        (["--model", "openai"], b"openai:NAME"),
        (["--model", "nonsense"], b"scripted:FILE"),
        (["--model", "scripted:/nowhere"], b"No such file"),
        (["--max-steps", "0"], b"at least 1"),
        (["--allow", "everything"], b"no tool 'everything'"),
        (["--workspace", "/nowhere"], b"/nowhere"),
        (["--mod", "local"], b"unrecognized arguments"),
    ],
)
async def test_wrong_arguments_are_told_with_the_way_out(
    command: Command, arguments: list[str], said: bytes
) -> None:
    """Status 2, words that name the option or variable, and never a traceback."""
    done = await command.run("run", "go", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


async def test_without_any_model_the_two_ways_to_get_one_are_named(
    command: Command,
) -> None:
    """A fresh installation has no weights and no key: the message is the manual."""
    extra = (
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'xllamacpp' else find(n, *a)"
    )
    done = await command.run("run", "go", extra=extra)
    assert done.returncode == 2
    assert b"OPENAI_API_KEY" in done.stderr
    assert b"trio-agentkernel[local]" in done.stderr


async def test_reader_that_leaves_ends_the_run_cleanly(command: Command) -> None:
    """`agentkernel run ... | head -1` ends as other programs do, the log balanced."""
    model = command.script([*["line\n"] * 200, {"sleep": 3600}])
    async with command.start("run", "go", "--model", model, "--session", "s") as child:
        await read_until(child.stdout, b"line\n")
        assert child.stdout is not None
        await child.stdout.aclose()
        assert child.stderr is not None
        said = b""
        while piece := await child.stderr.receive_some():
            said += piece
        assert await child.wait() == 141
    assert b"Traceback" not in said
    assert endings(await events_of(command, "s")) == ["disposed"]


async def test_output_that_an_encoding_lacks_is_replaced(command: Command) -> None:
    command.environment |= {"PYTHONIOENCODING": "ascii"}
    done = await command.run("run", "go", "--model", command.script(["é✓"]))
    assert (done.returncode, done.stdout) == (0, b"??\n")


@pytest.mark.parametrize(
    ("number", "code", "ending"),
    [
        (signal.SIGINT, 130, "aborted"),
        (signal.SIGTERM, 143, "disposed"),
        (signal.SIGHUP, 129, "disposed"),
    ],
)
async def test_signal_ends_the_run_with_its_children(
    command: Command, number: signal.Signals, code: int, ending: str
) -> None:
    """The shell and what it started are dead, the log says why, the code too."""
    shell = {"command": "echo $$ > pid; sleep 1000 & sleep 1000"}
    model = command.script(["working ", {"call": "run_shell", "arguments": shell}])
    async with command.start(
        "run", "go", "--model", model, "--session", "s", "--allow", "shell"
    ) as child:
        await read_until(child.stderr, b"[tool run_shell")
        while not (command.folder / "pid").exists():
            await trio.lowlevel.checkpoint()
        child.send_signal(number)
        assert await child.wait() == code
    assert command.left_over() == []
    assert endings(await events_of(command, "s")) == [ending]


async def test_stopped_run_takes_back_its_own_message_alone(command: Command) -> None:
    """What a chat had parked runs first; a SIGINT then leaves nothing of ours behind."""
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        handle = await kernel.create("s")
        for text in ("parked", "parked too"):
            handle.agent.followup(text)
        assert handle.agent.cancel(keep_inbox=True).kept
    model = command.script([{"sleep": 3600}])
    async with command.start(
        "run", "mine", "--model", model, "--session", "s"
    ) as child:
        while not any(
            isinstance(e.data, ak.StepStarted) for e in await events_of(command, "s")
        ):
            await trio.lowlevel.checkpoint()
        child.send_signal(signal.SIGINT)
        assert await child.wait() == 130
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        handle = await kernel.resume("s")
        assert [m.text for m in handle.agent.inbox.next_turn] == ["parked too"]


async def test_failed_request_is_tried_again(command: Command) -> None:
    """The retry policy of the providers is at work here without being asked for."""
    model = command.script([{"error": "overloaded", "retryable": True}], ["fine"])
    done = await command.run("run", "go", "--model", model, "--session", "s")
    assert (done.returncode, done.stdout) == (0, b"fine\n")
    assert b"overloaded; trying again" in done.stderr
    facts = [type(e.data) for e in await events_of(command, "s")]
    assert facts.count(ak.RetryScheduled) == 1


@pytest.mark.clause("D3d", "C11d")
async def test_second_signal_explains_and_third_leaves_at_once(
    command: Command,
) -> None:
    """Not even a tool that ignores its stop keeps the process; its children die too."""
    model = command.script(
        [{"call": "stubborn", "arguments": {}}, {"call": "stubborn", "arguments": {}}]
    )
    async with command.start(
        "run",
        "go",
        "--model",
        model,
        "--session",
        "s",
        extra=STUBBORN,
        call="tools=[stubborn]",
    ) as child:
        await read_until(child.stdout, b"the body runs")
        child.send_signal(signal.SIGINT)
        await read_until(child.stderr, b"[stopping]")
        child.send_signal(signal.SIGINT)
        said = await read_until(child.stderr, b"[once more leaves at once]")
        assert b"[waiting for tool stubborn" in said
        child.send_signal(signal.SIGINT)
        said = await read_until(child.stderr, b"is number ")
        assert b"the last durable event of session s" in said
        assert await child.wait() == 130


async def test_leaving_at_once_kills_what_was_started(command: Command) -> None:
    """A child that ignores SIGTERM, of a tool that never ends, dies all the same."""
    extra = """
import subprocess, trio
from agentkernel.tools import tool
@tool
async def stubborn() -> str:
    '''Start a child and ignore being stopped.'''
    subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 1000 & sleep 1000"],
                     start_new_session=True, stdout=2)
    print('the body runs', flush=True)
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()
    return ''
"""
    model = command.script([{"call": "stubborn", "arguments": {}}])
    async with command.start(
        "run", "go", "--model", model, extra=extra, call="tools=[stubborn]"
    ) as child:
        await read_until(child.stdout, b"the body runs")
        child.send_signal(signal.SIGTERM)
        while child.returncode is None:
            with trio.move_on_after(0.2):
                await child.wait()
            child.send_signal(signal.SIGTERM)
        assert child.returncode == 143
    with trio.fail_after(LONGEST):
        while command.left_over():  # killed, and gone as soon as they are reaped
            await trio.lowlevel.checkpoint()


def test_program_starts_as_a_module(tmp_path: Path) -> None:
    """`python -m agentkernel.cli` is the same program."""
    done = subprocess.run(
        [sys.executable, "-m", "agentkernel.cli", "--help"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("usage: agentkernel")
