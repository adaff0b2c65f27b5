"""The workspace tools on a real folder: what they do, and what they refuse."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import trio

from agentkernel import (
    JsonObject,
    TextBlock,
    ToolArgumentsError,
    ToolInvocation,
    ToolOutput,
    TurnSignal,
    UnknownNameError,
)
from agentkernel.testing.tool_check import check_tool
from agentkernel.tools import (
    READING,
    WORKSPACE,
    FunctionTool,
    WorkspaceError,
    workspace_tools,
)
from agentkernel.tools.folder import Folder

if TYPE_CHECKING:
    from agentkernel._loop.agent import Agent

GUARD = 60


class Work:
    """The tools of one folder, called by name."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = {tool.spec.name: tool for tool in workspace_tools(root)}

    async def run(self, name: str, **arguments: object) -> ToolOutput:
        made = self.tools[name]
        with trio.fail_after(GUARD):
            return await made.run(
                ToolInvocation(
                    agent=cast("Agent", None),
                    signal=TurnSignal(),
                    turn=1,
                    step=1,
                    call_id="c1",
                    name=name,
                    arguments=made.check(cast("JsonObject", arguments)),
                )
            )

    async def text(self, name: str, **arguments: object) -> str:
        (block,) = (await self.run(name, **arguments)).content
        assert isinstance(block, TextBlock)
        return block.text

    async def refused(self, problem: str, name: str, **arguments: object) -> None:
        with pytest.raises(WorkspaceError, match=problem):
            await self.run(name, **arguments)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the workspace, with a file that nobody must touch."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_text("secret")
    return folder


@pytest.fixture
def work(tmp_path: Path) -> Work:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "sub" / "b.py").write_text("def two():\n    return 2\n")
    return Work(root)


def put(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(data)
    return path


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def get(path: Path) -> bytes:
    return path.read_bytes()


def link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_tools_say_which_of_them_change_things(work: Work) -> None:
    """Approval and parallel calls depend on it."""
    assert tuple(work.tools) == WORKSPACE
    assert {n for n, tool in work.tools.items() if tool.parallel_safe} == set(READING)
    assert {n for n, tool in work.tools.items() if not tool.needs_approval} == (
        set(READING)
    )
    for made in work.tools.values():
        assert made.spec.description
        properties = cast("dict[str, JsonObject]", made.spec.parameters["properties"])
        assert all(entry.get("description") for entry in properties.values())


def test_only_the_tools_that_are_allowed_are_made(work: Work) -> None:
    """A name that is none of them is a mistake, not a smaller set."""
    made = workspace_tools(work.root, allow=["run_shell", "read_file"])
    assert [tool.spec.name for tool in made] == ["read_file", "run_shell"]
    assert workspace_tools(work.root, allow=[]) == []
    with pytest.raises(UnknownNameError, match="shell"):
        workspace_tools(work.root, allow=["shell"])
    with pytest.raises(FileNotFoundError):
        workspace_tools(work.root / "nowhere")


PATHS = [
    "../outside/secret",
    "sub/../../outside/secret",
    "/etc/passwd",
    "{outside}/secret",
    "file_link",
    "dir_link/secret",
    "chain/secret",
    "..",
    "/",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("read_file", {}),
        ("write_file", {"content": "x"}),
        ("edit_file", {"old": "secret", "new": "x"}),
        ("list_files", {}),
    ],
)
async def test_a_path_that_leads_out_is_refused(
    work: Work, outside: Path, path: str, name: str, arguments: dict[str, object]
) -> None:
    """By dots, by name, through a link to a file, to a folder, to a link."""
    link(work.root / "file_link", outside / "secret")
    link(work.root / "dir_link", outside)
    link(work.root / "chain", work.root / "dir_link")
    await work.refused(
        "outside of the workspace", name, path=path.format(outside=outside), **arguments
    )
    assert names(outside) == ["secret"]
    assert get(outside / "secret") == b"secret"


@pytest.mark.parametrize("path", ["../outside", "dir_link"])
async def test_a_search_that_leads_out_is_refused(
    work: Work, outside: Path, path: str
) -> None:
    """It runs in another process, by the same rule."""
    link(work.root / "dir_link", outside)
    with pytest.raises(Exception, match="outside of the workspace"):
        await work.run("search_files", pattern="s", path=path)


async def test_links_that_stay_inside_are_followed_and_stay_links(work: Work) -> None:
    """A project may link to its own files; writing changes the file, not the link."""
    link(work.root / "inner", work.root / "sub")
    assert await work.text("read_file", path="inner/b.py") == (
        "def two():\n    return 2\n"
    )
    link(work.root / "alias", work.root / "a.txt")
    await work.run("write_file", path="alias", content="new")
    assert get(work.root / "a.txt") == b"new"
    assert (work.root / "alias").is_symlink()
    absolute = str(work.root / "a.txt")
    assert await work.text("read_file", path=absolute) == "new"


async def test_a_link_put_in_the_way_after_the_check_is_not_followed(
    work: Work, outside: Path
) -> None:
    """Between the check of a path and its opening somebody may swap a folder or file.

    The race is played by hand: resolve, swap, open.
    """
    folder = Folder(work.root)
    put(work.root / "sub" / "secret", "mine")
    inside = folder.resolve("sub/secret")
    (work.root / "sub").rename(work.root / "moved")
    link(work.root / "sub", outside)
    with (
        pytest.raises(WorkspaceError, match="sub/secret"),
        folder.open_at("sub/secret", inside),
    ):
        pass
    with pytest.raises(OSError, match="sub"), folder.walk(("sub",), create=True):
        pass
    plain = folder.resolve("a.txt")
    (work.root / "a.txt").unlink()
    link(work.root / "a.txt", outside / "secret")
    with (
        pytest.raises(WorkspaceError, match=r"a\.txt"),
        folder.open_at("a.txt", plain),
    ):
        pass


async def test_a_pipe_a_device_and_a_folder_are_no_files(work: Work) -> None:
    """Opening a named pipe would hold the thread until somebody writes to it."""
    os.mkfifo(work.root / "pipe")
    await work.refused("special file", "read_file", path="pipe")
    await work.refused("not a regular file", "write_file", path="pipe", content="x")
    await work.refused("folder", "read_file", path="sub")
    await work.refused("not a regular file", "write_file", path="sub", content="x")
    await work.refused("folder", "read_file", path=".")
    await work.refused("No such file", "read_file", path="nope")
    await work.refused("NUL", "read_file", path="a\0b")
    await work.refused("a.txt", "write_file", path="a.txt/b", content="x")


async def test_lines_of_a_file_are_read_by_number(work: Work) -> None:
    """And the text says how to go on."""
    assert await work.text("read_file", path="a.txt") == "one\ntwo\nthree\n"
    assert await work.text("read_file", path="a.txt", start_line=3) == "three\n"
    assert await work.text("read_file", path="a.txt", start_line=2, max_lines=1) == (
        "two\n[more follows: go on with start_line=3]"
    )
    await work.refused("only 3 lines", "read_file", path="a.txt", start_line=5)
    put(work.root / "empty", "")
    assert await work.text("read_file", path="empty") == "[empty]"
    with pytest.raises(ToolArgumentsError, match=r"\$\.start_line"):
        await work.run("read_file", path="a.txt", start_line=0)


async def test_a_large_file_is_read_in_bounded_pieces_that_fit_together(
    work: Work,
) -> None:
    """Following the hints gives the whole file; no character is split."""
    lines = [f"{n} {'é' * (n % 97)}\n" for n in range(2000)]
    put(work.root / "large", "".join(lines))
    start, seen = 1, ""
    while True:
        text = await work.text("read_file", path="large", start_line=start)
        assert len(text.encode()) < 50_000
        body, mark, rest = text.rpartition("[more follows: go on with start_line=")
        if not mark:
            seen += text
            break
        seen += body
        start = int(rest.rstrip("]"))
    assert seen == "".join(lines)


async def test_a_line_that_is_too_long_is_cut_and_passed(work: Work) -> None:
    """The hint must lead past it, not to it again."""
    put(work.root / "long", "é" * 100_000 + "\nlast\n")
    text = await work.text("read_file", path="long")
    assert "[line 1 is longer than can be shown; go on with start_line=2]" in text
    assert "\ufffd" not in text
    assert await work.text("read_file", path="long", start_line=2) == "last\n"


async def test_what_is_no_text_is_not_shown_as_text(work: Work) -> None:
    """Binary content helps no model and hurts many a log."""
    put(work.root / "binary", b"\x7fELF\0\0")
    put(work.root / "latin", b"caf\xe9\n")
    await work.refused("binary", "read_file", path="binary")
    await work.refused("not UTF-8", "read_file", path="latin")
    await work.refused("binary", "edit_file", path="binary", old="ELF", new="x")
    await work.refused("not UTF-8", "edit_file", path="latin", old="caf", new="x")


async def test_a_file_is_written_whole_with_its_folders(work: Work) -> None:
    """New or replaced, and nothing else is left in the folder."""
    text = await work.text("write_file", path="new/deep/c.txt", content="ü\n")
    assert text == "created new/deep/c.txt (3 bytes)"
    assert get(work.root / "new/deep/c.txt") == "ü\n".encode()
    text = await work.text("write_file", path="new/deep/c.txt", content="")
    assert text == "replaced new/deep/c.txt (0 bytes)"
    assert names(work.root / "new/deep") == ["c.txt"]


async def test_a_file_that_is_written_again_keeps_its_permissions(work: Work) -> None:
    """A script stays executable, a private file private."""
    (work.root / "a.txt").chmod(0o750)
    await work.run("write_file", path="a.txt", content="x")
    await work.run("edit_file", path="a.txt", old="x", new="y")
    assert mode(work.root / "a.txt") == 0o750


async def test_a_write_that_is_stopped_at_the_last_moment_changes_nothing(
    work: Work,
) -> None:
    """The temporary file goes as well: a stop leaves the old content or the new."""

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    folder = Folder(work.root, check_cancelled=stop)
    with pytest.raises(Stop):
        folder.write("a.txt", b"new")
    assert get(work.root / "a.txt") == b"one\ntwo\nthree\n"
    assert names(work.root) == ["a.txt", "sub"]


async def test_an_edit_replaces_the_one_place_it_names(work: Work) -> None:
    """Byte for byte: line ends and the missing last one stay."""
    put(work.root / "crlf", b"a\r\nb\r\nc")
    text = await work.text("edit_file", path="crlf", old="b\r\n", new="B\r\n")
    assert text == "edited crlf at line 2"
    assert get(work.root / "crlf") == b"a\r\nB\r\nc"


async def test_an_edit_that_is_not_exact_is_refused_with_a_hint(work: Work) -> None:
    """The model gets told what to do better, and the file is as it was."""
    path = work.root / "e.txt"
    put(path, "aaa\n\tindented\nx\nx\n")
    put(work.root / "crlf", b"a\r\nb\r\n")
    edit = "edit_file"
    await work.refused("not in 'e.txt'$", edit, path="e.txt", old="zzz", new="")
    await work.refused(
        "line 2 is alike: compare the white space",
        edit,
        path="e.txt",
        old="    indented",
        new="",
    )
    await work.refused("CR LF", edit, path="crlf", old="a\nb", new="")
    await work.refused(r"lines 3 and 4", edit, path="e.txt", old="x", new="y")
    await work.refused("lines 1 and 1", edit, path="e.txt", old="aa", new="b")
    await work.refused("empty", edit, path="e.txt", old="", new="y")
    await work.refused("the same", edit, path="e.txt", old="x", new="x")
    assert get(path) == b"aaa\n\tindented\nx\nx\n"


async def test_a_file_that_changed_since_it_was_read_is_not_overwritten(
    work: Work,
) -> None:
    """Somebody else's change must not be lost to an edit of the old text."""

    def check() -> None:
        # The last moment before the rename; reading is over by then.
        put(work.root / "a.txt", "changed by another")

    plain = Folder(work.root, check_cancelled=lambda: None)
    _, version = plain.read("a.txt", 100)
    with pytest.raises(WorkspaceError, match="changed meanwhile"):
        Folder(work.root, check_cancelled=check).write("a.txt", b"new", expect=version)
    assert get(work.root / "a.txt") == b"changed by another"


async def test_files_are_listed_in_order_with_their_kinds(work: Work) -> None:
    """Links are named and not followed, package folders named and not entered."""
    link(work.root / "loop", work.root)
    (work.root / ".git").mkdir()
    put(work.root / ".git" / "config", "")
    assert await work.text("list_files") == ".git/\na.txt\nloop@\nsub/\nsub/b.py"
    assert await work.text("list_files", path="sub") == "sub/b.py"
    assert await work.text("list_files", pattern="*.py") == "sub/b.py"
    assert await work.text("list_files", pattern="*.rs") == "[nothing]"
    assert await work.text("list_files", max_entries=2) == (
        ".git/\na.txt\n[there are more than 2: not shown]"
    )
    await work.refused("Not a directory", "list_files", path="a.txt")


async def test_a_file_name_that_is_no_text_can_be_listed(work: Work) -> None:
    """Any bytes can be a name on Linux; a log takes only text."""
    put(Path(os.fsdecode(os.fsencode(work.root) + b"/\xff")), "")
    assert "\ufffd" in await work.text("list_files")


async def test_lines_are_found_by_expression_and_by_text(work: Work) -> None:
    """With their place, in order of paths; binary files are passed over."""
    put(work.root / "z.bin", b"\0two")
    found = await work.text("search_files", pattern=r"\btwo\b")
    assert found == "a.txt:2: two\nsub/b.py:1: def two():"
    assert await work.text("search_files", pattern="TWO", ignore_case=True) == found
    assert await work.text("search_files", pattern="two()") == found
    assert await work.text("search_files", pattern="two()", literal=True) == (
        "sub/b.py:1: def two():"
    )
    assert await work.text("search_files", pattern="two", files="*.txt") == (
        "a.txt:2: two"
    )
    assert await work.text("search_files", pattern="two", path="sub/b.py") == (
        "sub/b.py:1: def two():"
    )
    assert await work.text("search_files", pattern="nope") == "[no match]"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"pattern": "("}, "not a regular expression"),
        ({"pattern": "x", "path": "nope"}, "No such file"),
    ],
)
async def test_a_search_that_cannot_be_done_says_why(
    work: Work, arguments: dict[str, object], problem: str
) -> None:
    """No traceback of the other process, one sentence."""
    with pytest.raises(Exception, match=f"WorkspaceError.*{problem}"):
        await work.run("search_files", **arguments)


async def test_a_search_with_many_matches_is_bounded(work: Work) -> None:
    """Long lines are cut and the list ends."""
    put(work.root / "many", ("needle" + "x" * 1000 + "\n") * 500)
    text = await work.text("search_files", pattern="needle")
    assert text.endswith("[more than 100 matches: stopped]")
    assert len(text) < 40_000


@pytest.mark.case("TOOL-04")
async def test_an_expression_that_never_ends_is_stopped_by_a_limit(work: Work) -> None:
    """In a thread it would hold the interpreter lock, and with it every agent.

    This task goes on running while the search does not end: that is the proof.
    """
    put(work.root / "evil", "a" * 64 + "b")
    search = work.tools["search_files"].fn
    limited = FunctionTool(search, max_seconds=1.0)
    work.tools["search_files"] = limited
    output = await work.run("search_files", pattern="(a+)+$", path="evil")
    assert output.error is not None
    assert output.error.code == "TIMEOUT"


async def test_a_command_runs_in_the_folder_and_shows_how_it_ended(work: Work) -> None:
    """Exit code first, then what it printed, in order."""
    assert await work.text(
        "run_shell", command="ls; echo no >&2; echo end; exit 3"
    ) == ("[exit code 3]\na.txt\nsub\nno\nend")
    assert (
        await work.text("run_shell", command="echo yes; echo no >&2", separate=True)
        == "[exit code 0]\nyes\n[standard error]\nno"
    )
    assert await work.text("run_shell", command="true") == "[exit code 0]"


@pytest.mark.case("PROC-03")
async def test_a_command_that_leaves_something_behind_says_what_was_ended(
    work: Work,
) -> None:
    """The model learns that its server does not run any more."""
    output = await work.run("run_shell", command="sleep 98765 & echo ok")
    (block,) = output.content
    assert isinstance(block, TextBlock)
    assert block.text.startswith("[exit code 0]\nok\n[background process ")
    assert block.text.endswith(" ended: sleep 98765]")
    assert output.meta["exit_code"] == 0


@pytest.mark.case("PROC-03")
async def test_of_many_processes_left_behind_only_the_first_are_listed(
    work: Work,
) -> None:
    """A result stays within its bound whatever a command has started, and says so."""
    command = "for i in $(seq 30); do sh -c 'sleep 98765; : %s' & done" % ("y" * 180)
    output = await work.run("run_shell", command=command)
    (block,) = output.content
    assert isinstance(block, TextBlock)
    lines = [line for line in block.text.splitlines() if "background" in line]
    assert len(lines) == 21
    assert max(map(len, lines)) < 200
    assert lines[-1].endswith(" more background processes: not shown]")
    listed = output.meta["survivors"]
    assert isinstance(listed, tuple)
    assert len(listed) == 20


@pytest.mark.case("TOOL-04")
async def test_a_command_that_takes_too_long_is_an_error_with_its_output(
    work: Work,
) -> None:
    """What it said until then is worth showing."""
    output = await work.run(
        "run_shell", command="echo begun; sleep 98765", max_seconds=0.5
    )
    assert output.error is not None
    assert output.error.code == "TIMEOUT"
    (block,) = output.content
    assert isinstance(block, TextBlock)
    assert "within 0.5 s" in block.text
    assert block.text.endswith("\nbegun")
    with pytest.raises(ToolArgumentsError, match=r"\$\.max_seconds"):
        await work.run("run_shell", command="true", max_seconds=6000)


async def test_the_output_of_a_command_is_bounded(work: Work) -> None:
    """Both ends stay, and what is left out is counted."""
    output = await work.run("run_shell", command="seq 1 100000")
    (block,) = output.content
    assert isinstance(block, TextBlock)
    assert len(block.text) < 50_000
    assert "\n1\n2\n" in block.text
    assert block.text.endswith("\n100000")
    assert f"[... {output.meta['dropped_bytes']} bytes left out ...]" in block.text


async def test_a_command_does_not_see_secrets(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that prints the environment must not find a key in it."""
    monkeypatch.setenv("PROVIDER_API_KEY", "hidden")
    assert "hidden" not in await work.text("run_shell", command="env")


@pytest.mark.clause("C11b")
def test_file_work_of_a_stopped_turn_is_given_up_at_its_next_step(work: Work) -> None:
    """The thread asks before each folder and each piece of a file, and leaves."""
    asked: list[int] = []

    class Stop(Exception):
        pass

    def stop_at_third() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise Stop

    for n in range(9):
        (work.root / f"d{n}").mkdir()
    put(work.root / "large", bytes(500_000))
    folder = Folder(work.root, check_cancelled=stop_at_third)
    with pytest.raises(Stop):
        list(folder.iterate(".", frozenset()))
    assert len(asked) == 3
    asked.clear()
    with pytest.raises(Stop):
        folder.read("large", 10**6)
    assert len(asked) == 3


async def test_the_workspace_tools_keep_the_port_of_tools(work: Work) -> None:
    """Cancelled at each of their steps, with real files and processes."""
    for name, arguments in (
        ("write_file", {"path": "a", "content": "x"}),
        ("read_file", {"path": "a.txt"}),
        ("list_files", {}),
        ("run_shell", {"command": "echo x"}),
    ):
        await check_tool(work.tools[name], cast("JsonObject", arguments))
