"""Commands as real processes: how they end, and that nothing of them is left.

Every test marks its processes with a number of its own and looks for it in `/proc`
afterwards. Waiting is done on pipes and named pipes, never on time; `fail_after` is a
guard against a hang and never an expectation.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
import trio
import trio.testing

from agentkernel.tools.process import (
    ProcessLimits,
    open_process_group,
    run_command,
)

GUARD = 60
QUICK = ProcessLimits(grace=0.2)


class Tag:
    """A number of seconds for `sleep` that no other process uses."""

    def __init__(self) -> None:
        self.seconds = f"{secrets.randbelow(10**6) + 10**6}.{secrets.randbelow(10**6)}"

    def live(self) -> list[str]:
        """The command lines of live processes that name the number."""
        found: list[str] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name != str(os.getpid()):
                try:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                except OSError:
                    continue
                if self.seconds.encode() in words and state not in {b"Z", b"X"}:
                    found.append(words.decode())
        return found


@pytest.fixture
def tag() -> Tag:
    return Tag()


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """A named pipe: a command writes to it once it is under way."""
    path = tmp_path / "started"
    os.mkfifo(path)
    return path


def real(path: Path) -> Path:
    return path.resolve()


def exists(path: Path) -> bool:
    return path.exists()


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode()
    except FileNotFoundError:
        return ""


def has_children() -> bool:
    """Whether this process has a child, dead or alive, that was not waited for."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


async def wait_started(path: Path) -> bytes:
    return await trio.to_thread.run_sync(path.read_bytes)


async def cancel_once_started(
    command: str | list[str], started: Path, limits: ProcessLimits = QUICK
) -> None:
    """Run a command, cancel it when it has said that it started, wait for its end."""
    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            cancelled = trio.Event()

            async def run() -> None:
                try:
                    await run_command(command, limits=limits)
                except trio.Cancelled:
                    cancelled.set()
                    raise

            nursery.start_soon(run)
            await wait_started(started)
            nursery.cancel_scope.cancel()
        assert cancelled.is_set()


async def test_output_exit_code_and_folder_are_those_of_the_command(
    tmp_path: Path,
) -> None:
    """The plain case, with both outputs apart."""
    with trio.fail_after(GUARD):
        result = await run_command("pwd; echo no >&2; exit 3", cwd=tmp_path)
    assert (result.exit_code, result.timed_out, result.forced) == (3, False, False)
    assert result.stdout.text == f"{real(tmp_path)}\n"
    assert result.stderr.text == "no\n"
    assert result.survivors == ()


async def test_merged_output_keeps_the_order_in_which_it_was_written() -> None:
    """A model reads a merged output as one story."""
    with trio.fail_after(GUARD):
        result = await run_command(
            "echo a; echo b >&2; echo c", merge_stderr=True, limits=QUICK
        )
    assert result.stdout.text == "a\nb\nc\n"
    assert result.stderr.size == 0


async def test_a_signal_that_ends_the_leader_is_a_negative_exit_code() -> None:
    """As Python has it everywhere else."""
    with trio.fail_after(GUARD):
        result = await run_command("kill -USR1 $$")
    assert result.exit_code == -signal.SIGUSR1


async def test_input_that_is_never_read_does_not_hold_the_call_up() -> None:
    """A megabyte does not fit into a pipe: the writer must let go of it."""
    with trio.fail_after(GUARD):
        result = await run_command("exit 4", stdin=b"x" * 1_000_000)
        echoed = await run_command(
            "cat",
            stdin=b"y" * 1_000_000,
            limits=ProcessLimits(max_bytes=2_000_000),
        )
    assert result.exit_code == 4
    assert echoed.stdout.head == b"y" * 1_000_000


async def test_input_that_a_background_process_holds_does_not_hold_the_call_up(
    tag: Tag,
) -> None:
    """The reading end stays open in a child that never reads."""
    with trio.fail_after(GUARD):
        result = await run_command(
            f"sleep {tag.seconds} <&0 & exit 0", stdin=b"x" * 1_000_000
        )
    assert result.exit_code == 0
    assert tag.live() == []


async def test_a_command_without_input_reads_an_empty_one() -> None:
    """It must neither wait for a person nor steal this process's input."""
    with trio.fail_after(GUARD):
        result = await run_command("cat; test -t 0 || echo none")
    assert result.stdout.text == "none\n"


async def test_more_output_than_is_kept_is_read_to_its_end() -> None:
    """The command ends by itself (it never blocks), with both ends of what it said."""
    with trio.fail_after(GUARD):
        result = await run_command(
            "seq 1 200000; echo end", limits=ProcessLimits(max_bytes=1000)
        )
    assert result.exit_code == 0
    assert result.stdout.head.startswith(b"1\n2\n")
    assert result.stdout.tail.endswith(b"200000\nend\n")
    assert len(result.stdout.head) + len(result.stdout.tail) == 1000
    assert result.stdout.size == 1_288_899


async def test_a_program_that_does_not_exist_is_an_error_of_the_caller() -> None:
    """Nothing was started, so there is nothing to report in a result."""
    with pytest.raises(FileNotFoundError):
        await run_command(["/nonexistent/program"])


async def test_a_command_does_not_see_secrets_unless_it_is_given_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The default environment is scrubbed; an explicit one is used as it is."""
    monkeypatch.setenv("SOME_API_KEY", "hidden")
    with trio.fail_after(GUARD):
        default = await run_command('echo "[$SOME_API_KEY]"')
        explicit = await run_command('echo "[$SOME_API_KEY]"', env=dict(os.environ))
    assert default.stdout.text == "[]\n"
    assert explicit.stdout.text == "[hidden]\n"


async def test_a_command_has_no_terminal_and_a_session_of_its_own() -> None:
    """Nothing can ask a question on the terminal of whoever runs the agent."""
    script = (
        "import os\n"
        "print(os.getsid(0) == os.getpgid(0) == os.getpid())\n"
        "try: os.open('/dev/tty', os.O_RDWR)\n"
        "except OSError: print('no tty')\n"
    )
    with trio.fail_after(GUARD):
        result = await run_command([sys.executable, "-c", script])
    assert result.stdout.text == "True\nno tty\n"


@pytest.mark.case("PROC-01")
@pytest.mark.clause("C11b")
async def test_cancelling_ends_the_shell_and_everything_it_started(
    tag: Tag, started: Path
) -> None:
    """A stopped shell whose children work on is a stop in name only."""
    await cancel_once_started(
        f"sleep {tag.seconds} | cat & {sys.executable} -c "
        f"'import time; time.sleep({tag.seconds})' & echo > {started}; wait",
        started,
    )
    assert tag.live() == []


@pytest.mark.case("PROC-01")
async def test_the_time_limit_ends_the_whole_family_and_is_a_value(tag: Tag) -> None:
    """What was said before the limit, and while it ended, is in the result."""
    limits = ProcessLimits(max_seconds=0.3, grace=30)
    with trio.fail_after(GUARD):
        result = await run_command(
            f"trap 'echo bye; exit 9' TERM; echo hi; sleep {tag.seconds} | cat & wait",
            limits=limits,
        )
    assert result.timed_out
    assert not result.forced
    assert result.exit_code == 9
    assert result.stdout.text == "hi\nbye\n"
    assert tag.live() == []


@pytest.mark.case("PROC-02", "PROC-03")
async def test_a_background_process_that_holds_the_output_open_is_not_waited_for(
    tag: Tag,
) -> None:
    """The leader's exit decides; what it left behind is ended and named."""
    with trio.fail_after(GUARD):
        result = await run_command(f"sleep {tag.seconds} & echo ok")
    assert result.exit_code == 0
    assert result.stdout.text == "ok\n"
    assert [s.command for s in result.survivors] == [f"sleep {tag.seconds}"]
    assert result.survivors[0].ended
    assert tag.live() == []


@pytest.mark.case("PROC-03")
async def test_a_background_process_that_never_stops_talking_is_not_waited_for() -> (
    None
):
    """It floods the pipe, memory stays bounded, the exit code is the leader's."""
    with trio.fail_after(GUARD):
        result = await run_command(
            "yes & echo ok; exit 0", limits=ProcessLimits(max_bytes=4000)
        )
    assert result.exit_code == 0
    assert [s.command for s in result.survivors] == ["yes"]
    assert len(result.stdout.head) + len(result.stdout.tail) <= 4000


@pytest.mark.case("PROC-03")
async def test_a_server_under_nohup_is_ended_and_its_port_is_free() -> None:
    """`server &` returns with the shell; nothing is left listening."""
    with trio.fail_after(GUARD):
        result = await run_command(
            f"nohup {sys.executable} -m http.server --bind 127.0.0.1 0 2>&1 & echo ok"
        )
    assert result.exit_code == 0
    assert "ok\n" in result.stdout.text
    assert len(result.survivors) == 1
    assert "http.server" in result.survivors[0].command
    assert "http.server" not in command_line(result.survivors[0].pid)


async def test_output_written_behind_the_leaders_back_is_still_collected() -> None:
    """A filter started by the shell may say the last word after the shell's exit."""
    with trio.fail_after(GUARD):
        result = await run_command("(read x; echo late $x) < /proc/self/stat & exit 0")
    assert result.stdout.text.startswith("late ")


@pytest.mark.case("PROC-04")
@pytest.mark.parametrize(
    "escape",
    [
        "setsid sleep {0} & :",
        "nohup bash -c 'setsid sleep {0} & exit' & wait",
        "(setsid setsid sleep {0} &)",
        "set -m; sleep {0} & :",
        "set -m; env -i sleep {0} & :",
    ],
)
async def test_a_process_that_leaves_the_group_is_found_and_ended(
    tag: Tag, escape: str
) -> None:
    """By its session, by its ancestry or by the mark in its environment."""
    # The pipe is closed by none of them: the leader's exit alone ends the call.
    with trio.fail_after(GUARD):
        result = await run_command(
            ["bash", "-c", escape.format(tag.seconds) + "; echo ok"]
        )
    assert result.stdout.text == "ok\n"
    assert [s.command for s in result.survivors if s.ended] == [f"sleep {tag.seconds}"]
    assert tag.live() == []


@pytest.mark.case("PROC-04")
@pytest.mark.clause("C11b")
async def test_cancelling_ends_a_process_that_left_the_group(
    tag: Tag, started: Path
) -> None:
    """A stop reaches what `setsid` and a double fork have put out of the group."""
    await cancel_once_started(
        f"(setsid sh -c 'echo > {started}; exec sleep {tag.seconds}' &) ;"
        f" sleep {tag.seconds}",
        started,
    )
    assert tag.live() == []


@pytest.mark.case("PROC-04")
async def test_a_descendant_without_mark_group_and_session_is_found_by_its_ancestry(
    tag: Tag, started: Path
) -> None:
    """As long as the leader lives, its children and theirs are known as such."""
    await cancel_once_started(
        f"env -i setsid sh -c 'echo > {started}; sleep {tag.seconds}' & wait", started
    )
    assert tag.live() == []


@pytest.mark.case("PROC-04")
async def test_a_mark_inside_a_mark_still_belongs_to_the_outer_command(
    tag: Tag,
) -> None:
    """A tool may itself run commands this way; the outer stop reaches them all."""
    script = (
        "import os, subprocess\n"
        "env = dict(os.environ, AGENTKERNEL_PROCESS="
        "os.environ['AGENTKERNEL_PROCESS'] + '/inner')\n"
        f"subprocess.Popen(['sleep', '{tag.seconds}'], env=env,"
        " start_new_session=True, stdout=2)\n"
        "os._exit(0)\n"
    )
    with trio.fail_after(GUARD):
        result = await run_command([sys.executable, "-c", script])
    assert len(result.survivors) == 1
    assert tag.live() == []


@pytest.mark.case("PROC-06", "PROC-01")
@pytest.mark.clause("C11b")
async def test_a_command_that_ignores_the_polite_signals_is_killed(
    tag: Tag, started: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TERM, grace, KILL; and a warning says that it came to that."""
    await cancel_once_started(
        f"trap '' TERM INT HUP; echo > {started}; sleep {tag.seconds}; sleep 1000",
        started,
    )
    assert tag.live() == []
    assert "had to be killed" in caplog.text


async def test_a_stopped_process_is_killed_as_well(tag: Tag) -> None:
    """SIGSTOP holds SIGTERM back, not SIGKILL."""
    limits = ProcessLimits(max_seconds=0.2, grace=0.2)
    with trio.fail_after(GUARD):
        result = await run_command(
            f"sleep {tag.seconds} & kill -STOP $!; kill -STOP $$", limits=limits
        )
    assert (result.timed_out, result.forced) == (True, True)
    assert result.exit_code == -signal.SIGKILL
    assert tag.live() == []


@contextlib.contextmanager
def no_descriptors() -> Generator[None]:
    """Have this process open no more files than it has open now."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for number in taken:
            os.close(number)


async def test_a_family_ends_although_no_file_can_be_opened(
    tag: Tag, started: Path
) -> None:
    """To look somebody up takes a descriptor; to signal a group takes none."""
    stubborn = (
        f"(trap '' TERM; echo > {started}; while :; do sleep {tag.seconds}; done)"
    )
    with trio.fail_after(GUARD):
        async with open_process_group(
            f"sleep {tag.seconds} & {stubborn}", limits=QUICK
        ) as group:
            await wait_started(started)
            with no_descriptors():
                await group.end()
            assert tag.live() == []
    assert group.exit_code in {-signal.SIGTERM, -signal.SIGKILL}
    assert group.forced
    assert not has_children()


async def test_a_leader_is_waited_for_although_no_file_can_be_opened() -> None:
    """What ends by itself is not reported as a program that cannot be started."""
    with trio.fail_after(GUARD):
        async with open_process_group("read x; exit 7") as group:
            assert group.stdin is not None
            with no_descriptors():
                await group.stdin.send_all(b"\n")
                assert await group.wait() == 7
    assert not has_children()


async def test_the_leader_is_reaped_when_the_call_returns() -> None:
    """No zombie of ours is left, in any way of ending."""
    with trio.fail_after(GUARD):
        await run_command("exit 0")
        await run_command("sleep 1000", limits=ProcessLimits(max_seconds=0.1))
        async with open_process_group(["sleep", "1000"]):
            pass
    assert not has_children()


async def test_a_call_that_is_cancelled_before_it_starts_runs_nothing(
    tmp_path: Path,
) -> None:
    """A scope that is over already leaves no trace in the world."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await run_command(["touch", str(tmp_path / "trace")])
    assert scope.cancelled_caught
    assert not exists(tmp_path / "trace")


async def test_a_group_is_talked_to_over_its_pipes_and_ends_with_its_block(
    tag: Tag,
) -> None:
    """The long-lived kind: a conversation, then the end of the whole family."""
    with trio.fail_after(GUARD):
        async with open_process_group(
            f"sleep {tag.seconds} & read x; echo got $x; read y"
        ) as group:
            assert group.stdin is not None
            await group.stdin.send_all(b"this\n")
            assert await group.stdout.receive_some() == b"got this\n"
            codes = [group.exit_code]
        codes.append(group.exit_code)
        assert [code is None for code in codes] == [True, False]
        assert tag.live() == []


async def test_a_group_may_leave_by_itself_when_its_input_closes(
    tmp_path: Path,
) -> None:
    """`hangup` is its time to put things in order before it is told to go."""
    done = tmp_path / "done"
    with trio.fail_after(GUARD):
        async with open_process_group(
            f"trap 'exit 9' TERM; cat > /dev/null; sleep 0.3; echo > {done}; exit 5",
            limits=ProcessLimits(hangup=30),
        ) as group:
            pass
    assert group.exit_code == 5
    assert exists(done)
    assert not group.forced


async def test_an_error_in_the_block_ends_the_group_and_stays_itself(tag: Tag) -> None:
    """No exception group of an inner nursery, no process left."""
    with trio.fail_after(GUARD):
        with pytest.raises(ZeroDivisionError):
            async with open_process_group(["sleep", tag.seconds]):
                raise ZeroDivisionError
    assert tag.live() == []


async def test_several_tasks_may_wait_for_one_leader() -> None:
    """A watcher and a reader both want to know; the exit code is the same."""
    codes: list[int] = []
    with trio.fail_after(GUARD):
        async with open_process_group("read x; exit 7") as group:

            async def watch() -> None:
                codes.append(await group.wait())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                nursery.start_soon(watch)
                await trio.testing.wait_all_tasks_blocked()
                assert group.stdin is not None
                await group.stdin.send_all(b"\n")
    assert codes == [7, 7]
    assert group.exit_code == 7


async def test_the_time_limit_holds_for_a_start_that_waits_for_a_thread() -> None:
    """Tools that hold every thread make a command late, not its time limit."""
    release = trio.Event()
    limiter = trio.to_thread.current_default_thread_limiter()

    async def hog() -> None:
        async with limiter:
            await release.wait()

    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            for _ in range(int(limiter.total_tokens)):
                nursery.start_soon(hog)
            await trio.testing.wait_all_tasks_blocked()
            result = await run_command("exit 0", limits=ProcessLimits(max_seconds=0.1))
            release.set()
    assert (result.timed_out, result.exit_code) == (True, None)
    assert not has_children()


async def test_commands_end_although_the_default_threads_are_all_blocked(
    tag: Tag,
) -> None:
    """A stop needs a thread to look around in; it does not queue behind tools."""
    release = trio.Event()
    limiter = trio.to_thread.current_default_thread_limiter()

    async def hog() -> None:
        async with limiter:
            await release.wait()

    with trio.fail_after(GUARD):
        async with trio.open_nursery() as nursery:
            async with open_process_group(["sleep", tag.seconds]):
                for _ in range(int(limiter.total_tokens)):
                    nursery.start_soon(hog)
                await trio.testing.wait_all_tasks_blocked()
                assert limiter.available_tokens == 0
            assert tag.live() == []
            release.set()
