"""Remote agents that break the protocol: nothing they write raises, hangs or floods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest
import trio

from agentkernel.bridges.subagents import RemoteAgent, RemoteUpdate
from tests.integration.scripted_remote import (
    NEVER,
    outcomes,
    problem,
    received,
    run,
    scripted,
)

UPDATE = (
    b'{"method": "session/update", "params": {"sessionId": "s", "update": '
    b'{"sessionUpdate": "agent_message_chunk", "content": {"text": "%s"}}}}'
)


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    """The file that the program writes what it is told to."""
    return tmp_path / "wire"


# ---------------------------------------------------------------- what never hangs


@pytest.mark.parametrize("is_current", [False, True])
async def test_a_folder_that_is_gone_is_a_program_that_cannot_be_started(
    tmp_path: Path, wire: Path, monkeypatch: pytest.MonkeyPatch, *, is_current: bool
) -> None:
    """A failure like any other, also where this process itself has no folder."""
    gone = tmp_path / "gone"
    if is_current:
        await trio.Path(gone).mkdir()
        monkeypatch.chdir(gone)
        await trio.Path(gone).rmdir()
    remote = scripted(wire, "", cwd=None if is_current else gone)
    assert "cannot be started" in problem(await run(remote))


async def test_arguments_that_no_program_can_have_are_a_failure() -> None:
    """A NUL character in a word is an error of the operating system's."""
    assert "cannot be started" in problem(await run(RemoteAgent(("a\0b",))))


async def test_half_a_character_in_a_prompt_is_replaced(wire: Path) -> None:
    """As the kernel does with every text that goes to a log or a model."""
    script = """
    def prompted():
        say("yes")
        end()
    """
    report = await run(scripted(wire, script), "read \udcff.txt")
    assert report.text == "yes"
    assert "read \ufffd.txt" in str(received(wire)[-1].params)


@pytest.mark.case("PROC-02")
async def test_a_remote_that_dies_is_not_waited_for_because_a_child_holds_its_pipe(
    wire: Path,
) -> None:
    """The exit of the program itself decides; its child is ended and told of."""
    script = f"""
    import os, subprocess
    def prompted():
        say("working")
        subprocess.Popen(["sleep", "{NEVER}"])
        os._exit(3)
    """
    report = await run(scripted(wire, script))
    assert "ended during session/prompt with exit code 3" in problem(report)
    assert report.text == "working"
    assert [(s.command, s.ended) for s in report.survivors] == [
        (f"sleep {NEVER}", True)
    ]


async def test_a_remote_that_dies_at_once_says_why_in_the_report(wire: Path) -> None:
    """What it wrote to standard error is all that anybody ever hears of it."""
    script = """
    import sys
    def started():
        sys.exit("FATAL: no config file")
    """
    message = problem(await run(scripted(wire, script)))
    assert "during initialize with exit code 1: FATAL: no config file" in message


# ------------------------------------------------------------- what it may write


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            UPDATE % b"a\xff",
            "a\ufffd-after",
        ),
        (b'{"method": "$/cancel_request", "params": {"requestId": "\xff"}}', "-after"),
        (b'{"id": true, "result": 1}', "-after"),
        (b'{"id": 99, "result": 1}', "-after"),
        (b'{"id": null, "method": "session/update"}', "-after"),
        (b"\xff\xfe", "-after"),
    ],
)
async def test_bytes_that_are_no_message_are_passed_over(
    wire: Path, tmp_path: Path, line: bytes, text: str
) -> None:
    """Text that is not quite UTF-8 is kept as far as it goes."""
    (tmp_path / "line").write_bytes(line)
    script = f"""
    def prompted():
        raw(open({str(tmp_path / "line")!r}, "rb").read())
        say("-after")
        end()
    """
    report = await run(scripted(wire, script))
    assert (report.ok, report.text) == (True, text)


@pytest.mark.parametrize(
    "line",
    [
        b'{"method": "session/update", "params": ' + b"[" * 20000 + b"]" * 20000 + b"}",
        b'{"a":' * 20000,
    ],
)
async def test_a_line_that_is_nested_too_deeply_ends_the_run_as_a_failure(
    wire: Path, line: bytes, tmp_path: Path
) -> None:
    """It may have been the answer that everybody waits for."""
    (tmp_path / "line").write_bytes(line)
    script = f"""
    def prompted():
        raw(open({str(tmp_path / "line")!r}, "rb").read())
    """
    assert "nested too deeply" in problem(await run(scripted(wire, script)))


async def test_a_character_whose_halves_come_in_two_messages_is_whole(
    wire: Path,
) -> None:
    """An agent that cuts its text by code units may cut there."""
    script = r"""
    def prompted():
        say("hello \ud83d")
        say("\ude00!")
        say("\ud83d")
        end()
    """
    seen: list[str] = []

    def follow(update: RemoteUpdate) -> None:
        seen.append(update.text)

    report = await run(scripted(wire, script), on_update=follow)
    assert report.text == "hello \U0001f600!\ufffd"
    assert seen == ["hello ", "\U0001f600!", ""]


@pytest.mark.parametrize(
    "answer",
    [
        '{"id": %d, "error": {"code": "E_FAIL", "message": "no"}}',
        '{"id": %d, "error": {"code": -32603, "message": null}}',
        '{"id": %d, "result": {"stopReason": 7}}',
        '{"id": %d}',
    ],
)
async def test_an_answer_that_cannot_be_read_is_an_answer_all_the_same(
    wire: Path, answer: str
) -> None:
    """There will be no other."""
    script = f"""
    def prompted():
        raw(({answer!r} % prompt).encode())
    """
    assert "did not finish" in problem(await run(scripted(wire, script)))


async def test_an_answer_that_gives_our_number_back_as_a_string_is_taken(
    wire: Path,
) -> None:
    """Some languages have no other keys."""
    script = """
    def prompted():
        send(id=str(prompt), result={"stopReason": "end_turn"})
    """
    assert (await run(scripted(wire, script))).ok


@pytest.mark.parametrize("part", ["reason", "error"])
async def test_what_goes_to_the_model_is_cut(wire: Path, part: str) -> None:
    """Eight million characters of a reason are no reason."""
    script = f"""
    def prompted():
        long = "x" * 8_000_000
        if {part!r} == "reason":
            end(long)
        else:
            send(id=prompt, error={{"code": -1, "message": long}})
    """
    message = problem(await run(scripted(wire, script)))
    assert len(message) < 10_000
    assert "characters left out" in message


# -------------------------------------------------------------------- its questions


async def test_a_question_that_is_taken_back_in_the_next_line_is_taken_back(
    wire: Path,
) -> None:
    """Whatever Trio's order of tasks is, and whatever the id is: 0 is one too."""
    script = """
    import io, sys
    def prompted():
        out, sys.stdout = sys.stdout, io.TextIOWrapper(io.BytesIO())
        for number in range(8):
            ask(number, ("allow_once",))
            send(method="$/cancel_request", params={"requestId": number})
        ask(8, ("allow_once",))
        send(method="$/cancel_request", params={"requestId": None})
        send(method="$/cancel_request", params=[])
        say("all")
        lines, sys.stdout = sys.stdout.buffer.getvalue(), out
        raw(lines)  # in one write
    def answered(message):
        if message["id"] == 8:
            end()
    """
    said = trio.Event()

    def follow(_update: RemoteUpdate) -> None:
        said.set()

    async def decide(_what: str) -> bool:
        await said.wait()
        return True

    remote = scripted(wire, script, "ask")
    assert (await run(remote, decide=decide, on_update=follow)).ok
    answers = [m for m in received(wire) if m.method is None]
    codes = {m.id: m.error and m.error["code"] for m in answers}
    assert codes == {**dict.fromkeys(range(8), -32800), 8: None}


@pytest.mark.parametrize(
    ("permission", "allowed", "offered", "chosen"),
    [
        ("ask", True, ("allow_always", "allow_once"), "allow_once"),
        ("ask", True, ("allow_always", "reject_once"), "cancelled"),
        ("allow", True, ("allow_always",), "allow_always"),
        ("ask", False, ("allow_once", "reject_always"), "reject_always"),
        ("ask", False, ("allow_once",), "cancelled"),
    ],
)
async def test_a_yes_for_once_is_never_given_for_always(
    wire: Path,
    permission: Literal["allow", "ask"],
    offered: tuple[str, ...],
    chosen: str,
    *,
    allowed: bool,
) -> None:
    """Nobody was asked about ever after; a policy of ours is a rule already."""
    script = f"""
    def prompted():
        ask(7, {offered!r})
    def answered(message):
        end()
    """

    async def decide(_what: str) -> bool:
        await trio.lowlevel.checkpoint()
        return allowed

    assert (await run(scripted(wire, script, permission), decide=decide)).ok
    assert outcomes(wire) == [chosen]


@pytest.mark.parametrize("what", ["questions", "garbage", "requests"])
async def test_a_flood_is_refused_in_bounded_memory_and_can_be_stopped(
    wire: Path, what: str
) -> None:
    """It writes as fast as it can and reads nothing that it is answered."""
    script = f"""
    def prompted():
        say("begun")
        number = 0
        while True:
            number += 1
            if {what!r} == "questions":
                ask(f"q{{number}}", ("allow_once",))
            elif {what!r} == "garbage":
                raw(b"x\\n" * 10)
            else:
                send(id=number, method="nope/" + "x" * 1000)
            if number == 3000:
                say("many")
    """
    asked = 0

    async def decide(_what: str) -> bool:
        nonlocal asked
        asked += 1
        await trio.sleep_forever()
        raise AssertionError

    tasks: list[int] = []
    with trio.CancelScope() as scope:

        def follow(told: RemoteUpdate) -> None:
            if told.text == "many":
                tasks.append(trio.lowlevel.current_statistics().tasks_living)
                scope.cancel()

        remote = scripted(wire, script, "ask", cancel_seconds=0.2)
        await run(remote, decide=decide, on_update=follow)
    assert scope.cancelled_caught
    assert tasks[0] < 50
    assert asked <= 16


async def test_an_environment_without_keys_is_the_default(
    wire: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that needs one is handed it by `env`."""
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    script = """
    import os
    def prompted():
        say(os.environ.get("SOME_API_KEY", "none"))
        end()
    """
    assert (await run(scripted(wire, script))).text == "none"
    handed = scripted(wire, script, env=dict(os.environ))
    assert (await run(handed)).text == "hidden"
