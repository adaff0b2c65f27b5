"""`agentkernel sessions`: what a store holds, and what becomes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import agentkernel as ak
from tests.integration.cli_terminal import Command


@pytest.fixture
async def command(tmp_path: Path) -> Command:
    """A folder with one session of one turn, which called a tool."""
    command = Command(tmp_path)
    (tmp_path / "note.txt").write_text("hello\nworld\n")
    model = command.script(
        [{"call": "read_file", "arguments": {"path": "note.txt"}}], ["It greets."]
    )
    await command.run("run", "read it", "--model", model, "--session", "s")
    return command


async def test_list_shows_sessions_and_whether_they_are_open(command: Command) -> None:
    """Listing claims nothing, so it works while another kernel has one open."""
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        await kernel.create("open one")
        done = await command.run("sessions", "list")
    lines = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert {line[0]: line[-1] for line in lines} == {"open one": "open", "s": "closed"}


async def test_show_is_for_people(command: Command) -> None:
    done = await command.run("sessions", "show", "s")
    assert done.stdout.decode().splitlines() == [
        "> read it",
        '[tool read_file(path="note.txt", start_line=1, max_lines=1000)]',
        "[read_file gave 2 lines: hello]",
        "It greets.",
    ]


async def test_export_is_the_log_as_lines_of_json(command: Command) -> None:
    """What is exported decodes to what the store holds, long content included."""
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        handle = await kernel.resume("s", model="none")
        handle.agent.inject("long " * 20_000)
    done = await command.run("sessions", "export", "s")
    async with ak.SqliteStore(command.store) as store:
        stored = [*await store.read("s")]
    lines = done.stdout.splitlines()
    assert [ak.decode_event(line, _no_blob) for line in lines] == stored


def _no_blob(sha256: str) -> bytes:
    raise AssertionError(f"no event of this session has a blob, not {sha256}")


async def test_fork_begins_a_session_with_the_same_history(command: Command) -> None:
    """The new id is all of standard output; the source is as it was."""
    done = await command.run("sessions", "fork", "s", "t")
    assert (done.returncode, done.stdout) == (0, b"t\n")
    shown = [
        (await command.run("sessions", "show", name)).stdout for name in ("s", "t")
    ]
    assert shown[0] == shown[1]
    done = await command.run("sessions", "fork", "s")
    assert re.fullmatch(rb"\w+\n", done.stdout)


@pytest.mark.parametrize("at", ["999", "0", "-1"])
async def test_fork_at_an_event_that_is_not_there_is_a_wrong_argument(
    command: Command, at: str
) -> None:
    """It says how many there are, and makes no session."""
    exported = await command.run("sessions", "export", "s")
    count = len(exported.stdout.splitlines())
    done = await command.run("sessions", "fork", "s", "t", "--at", at)
    assert (done.returncode, done.stdout) == (2, b"")
    said = f"agentkernel: --at {at}: session 's' has {count} events, numbered from 1\n"
    assert done.stderr.decode() == said
    listed = await command.run("sessions", "list")
    assert [line.split(b"\t")[0] for line in listed.stdout.splitlines()] == [b"s"]


async def test_fork_at_the_last_event_takes_all_of_them(command: Command) -> None:
    """The number that a refusal names is one that can be given."""
    exported = await command.run("sessions", "export", "s")
    last = str(len(exported.stdout.splitlines()))
    done = await command.run("sessions", "fork", "s", "t", "--at", last)
    assert (done.returncode, done.stdout) == (0, b"t\n")


async def test_pending_input_is_shown(command: Command) -> None:
    """A message that waits for the next wake is part of what a session holds."""
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        handle = await kernel.resume("s", model="none")
        handle.agent.inject("by the way")
    done = await command.run("sessions", "show", "s")
    assert done.stdout.decode().splitlines()[-1] == "[queued: by the way]"


@pytest.mark.parametrize("action", ["show", "export", "fork", "resume"])
async def test_unknown_session_is_an_error_of_the_store(
    command: Command, action: str
) -> None:
    """It is never created by looking at it."""
    done = await command.run("sessions", action, "nobody")
    assert done.returncode == 6
    assert b"no session 'nobody'" in done.stderr
    assert b"nobody" not in (await command.run("sessions", "list")).stdout


async def test_session_that_another_kernel_holds_is_refused(command: Command) -> None:
    """Two writers of one log cannot be: the second is told who holds it."""
    async with ak.open_kernel(ak.SqliteStore(command.store)) as kernel:
        await kernel.resume("s", model="none")
        done = await command.run(
            "run", "go", "--session", "s", "--model", command.script()
        )
    assert done.returncode == 6
    assert b"is held by" in done.stderr


async def test_every_kind_of_store_can_be_named(command: Command) -> None:
    """The same commands work on JSONL segments, and in memory for one process."""
    model = command.script()
    store = ("--store", f"jsonl:{command.folder / 'log'}")
    await command.run("run", "x", "--model", model, "--session", "j", *store)
    done = await command.run("sessions", *store, "list")
    assert done.stdout.startswith(b"j\t")
    done = await command.run("sessions", "list", *store)
    assert done.stdout.startswith(b"j\t")
    done = await command.run("run", "x", "--model", model, "--store", "memory")
    assert done.returncode == 0


async def test_folder_of_a_new_store_is_its_owners_alone(command: Command) -> None:
    """Logs hold what was said: others on the machine must not read along."""
    del command.environment["AGENTKERNEL_STORE"]
    await command.run("run", "x", "--model", command.script())
    folder = command.folder / ".local/state/agentkernel"
    assert (folder / "sessions.db").exists()
    assert folder.stat().st_mode & 0o077 == 0
