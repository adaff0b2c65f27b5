"""The built-in tools: read, write, edit, list and search files, and run a shell.

All of them work in one folder. File tools refuse paths that lead out of it; the shell
starts in it and goes where it likes, which is why it needs approval: a workspace is no
sandbox. Reading tools may run side by side; changing ones ask first (`needs_approval`)
and run one at a time. Nothing that a tool returns exceeds about 48 kB, whatever is on
the disk or printed.

The docstrings of the functions below are what a model is told. POSIX only.
"""

from __future__ import annotations

import codecs
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Final, cast, final

from msgspec import Meta, to_builtins

from agentkernel import (
    JsonObject,
    TextBlock,
    ToolFailure,
    ToolOutput,
    UnknownNameError,
    clean_text,
)

from .folder import Folder, WorkspaceError
from .function import FunctionTool
from .isolated import call_in_process, import_name
from .process import CommandResult, ProcessLimits, run_command
from .search import Query, matches_name, search
from .survivors import list_survivors, show_survivors

__all__ = ["READING", "WORKSPACE", "workspace_tools"]

# The names of the tools; the first three change nothing.
READING: Final = ("read_file", "list_files", "search_files")
WORKSPACE: Final = (*READING, "write_file", "edit_file", "run_shell")

# Folders that listing and searching do not enter.
SKIPPED: Final = frozenset(
    {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"}
)
_MAX_TEXT = 48_000
_MAX_EDIT_BYTES = 8 * 1024 * 1024
_SEARCH_SECONDS = 30.0
_SNIFF = 8192

Line = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=600)]


def workspace_tools(
    root: str | Path,
    *,
    allow: Collection[str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[FunctionTool]:
    """Make the tools that work in one folder.

    Not a checkpoint.

    Args:
      root: the folder; it must exist.
      allow: the names of the tools to make; None for all of `WORKSPACE`.
      env: the environment of the shell; None for this process's own without what
        looks secret.

    Raises:
      UnknownNameError: if `allow` names something else.
      OSError: if `root` is no folder.

    """
    for name in allow or ():
        if name not in WORKSPACE:
            raise UnknownNameError("tool", name, WORKSPACE)
    if os.name != "posix":
        raise NotImplementedError("the workspace tools need a POSIX system")
    work = _Workspace(Folder(root), env)
    tools = (
        FunctionTool(work.read_file, parallel_safe=True),
        FunctionTool(work.list_files, parallel_safe=True),
        FunctionTool(
            work.search_files, parallel_safe=True, max_seconds=_SEARCH_SECONDS
        ),
        FunctionTool(work.write_file, needs_approval=True),
        FunctionTool(work.edit_file, needs_approval=True),
        FunctionTool(work.run_shell, needs_approval=True),
    )
    return [tool for tool in tools if allow is None or tool.spec.name in allow]


@final
class _Workspace:
    """The functions behind the tools, and the folder they work in."""

    def __init__(self, folder: Folder, env: Mapping[str, str] | None) -> None:
        self._folder = folder
        self._env = env
        self._shell = shutil.which("bash") or "/bin/sh"

    def read_file(
        self,
        path: str,
        start_line: Line = 1,
        max_lines: Annotated[int, Meta(ge=1, le=5000)] = 1000,
    ) -> str:
        """Read a text file, or some lines of it.

        Args:
          path: The file, from the workspace folder.
          start_line: The first line to read, counted from 1.
          max_lines: How many lines to read at most.

        """
        with self._folder.open(path) as (handle, _):
            with open(handle, "rb", closefd=False) as stream:
                if b"\0" in stream.peek(_SNIFF)[:_SNIFF]:
                    raise WorkspaceError(f"{path!r} is a binary file")
                number = 1
                while number < start_line:
                    piece = stream.readline(_MAX_TEXT)
                    if not piece:
                        raise WorkspaceError(f"{path!r} has only {number - 1} lines")
                    number += piece.endswith(b"\n")
                lines: list[bytes] = []
                room = _MAX_TEXT
                while len(lines) < max_lines and (line := stream.readline(room)):
                    lines.append(line)
                    room -= len(line)
                    if room == 0:
                        break
                more = stream.peek(1)[:1]
        text = _decode(path, b"".join(lines), final=not more)
        if not more:
            return text or "[empty]"
        whole, _, cut = text.rpartition("\n")
        following = start_line + text.count("\n")
        if not cut:
            return f"{text}[more follows: go on with start_line={following}]"
        if whole:
            return f"{whole}\n[more follows: go on with start_line={following}]"
        return (
            f"{cut}\n[line {following} is longer than can be shown; "
            f"go on with start_line={following + 1}]"
        )

    def list_files(
        self,
        path: str = ".",
        pattern: str = "",
        max_entries: Annotated[int, Meta(ge=1, le=2000)] = 500,
    ) -> str:
        """List files and folders below a folder.

        Folders end in `/`, symbolic links in `@`. Folders of version control and of
        installed packages are named and not entered.

        Args:
          path: The folder, from the workspace folder.
          pattern: Only names or paths that fit this shell pattern, such as `*.py`.
          max_entries: How many to list at most.

        """
        lines: list[str] = []
        room = _MAX_TEXT
        for entry in self._folder.iterate(path, SKIPPED):
            if not matches_name(entry, pattern):
                continue
            mark = "@" if entry.is_link else "/" if entry.is_directory else ""
            line = clean_text(f"{entry.path}{mark}")
            room -= len(line.encode()) + 1
            if len(lines) == max_entries or room < 0:
                lines.append(f"[there are more than {len(lines)}: not shown]")
                break
            lines.append(line)
        return "\n".join(lines) if lines else "[nothing]"

    async def search_files(
        self,
        pattern: str,
        path: str = ".",
        files: str = "",
        *,
        literal: bool = False,
        ignore_case: bool = False,
    ) -> ToolOutput:
        """Search text files for lines that match, shown as `path:line: text`.

        Args:
          pattern: A Python regular expression.
          path: A file or folder, from the workspace folder.
          files: Only files whose name or path fits this shell pattern.
          literal: Take the pattern as plain text.
          ignore_case: Let upper and lower case match each other.

        """
        query = Query(
            root=str(self._folder.root),
            path=path,
            pattern=pattern,
            files=files,
            literal=literal,
            ignore_case=ignore_case,
            skip=tuple(sorted(SKIPPED)),
        )
        return await call_in_process(import_name(search), _to_json(query))

    def write_file(self, path: str, content: str) -> str:
        """Write a text file: make a new one, or replace what is there.

        Args:
          path: The file, from the workspace folder. Its folder is made if needed.
          content: The whole new content.

        """
        data = content.encode()
        is_new = self._folder.write(path, data)
        return f"{'created' if is_new else 'replaced'} {path} ({len(data)} bytes)"

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replace one piece of a text file by another.

        Args:
          path: The file, from the workspace folder.
          old: The exact text to replace, with its white space; it must be there once.
          new: The text to put in its place.

        """
        if not old:
            raise WorkspaceError("old is empty: name the text to replace")
        if old == new:
            raise WorkspaceError("old and new are the same: nothing to change")
        data, version = self._folder.read(path, _MAX_EDIT_BYTES)
        if b"\0" in data[:_SNIFF]:
            raise WorkspaceError(f"{path!r} is a binary file")
        text = _decode(path, data, final=True)
        at = text.find(old)
        if at < 0:
            raise WorkspaceError(f"old is not in {path!r}{_hint(text, old)}")
        again = text.find(old, at + 1)
        line = text.count("\n", 0, at) + 1
        if again >= 0:
            other = text.count("\n", 0, again) + 1
            raise WorkspaceError(
                f"old is in {path!r} more than once (lines {line} and {other}): take "
                "in more of what is around it"
            )
        changed = text[:at] + new + text[at + len(old) :]
        self._folder.write(path, changed.encode(), expect=version)
        return f"edited {path} at line {line}"

    async def run_shell(
        self, command: str, max_seconds: Seconds = 120, *, separate: bool = False
    ) -> ToolOutput:
        """Run a shell command in the workspace folder and wait for its end.

        There is no terminal and no input. Processes it leaves in the background are
        ended with it.

        Args:
          command: What to run, by bash if there is one, else by sh.
          max_seconds: After this the command and all it started are ended.
          separate: Show standard error apart, not mixed with standard output.

        """
        limits = ProcessLimits(
            max_seconds=max_seconds, max_bytes=_MAX_TEXT // (2 if separate else 1)
        )
        result = await run_command(
            [self._shell, "-c", command],
            cwd=self._folder.root,
            env=self._env,
            merge_stderr=not separate,
            limits=limits,
        )
        return _show(result, max_seconds)


def _show(result: CommandResult, max_seconds: float) -> ToolOutput:
    """Make the text of a command's result."""
    error: ToolFailure | None = None
    parts: list[str] = []
    if result.timed_out:
        message = f"stopped: the command did not end within {max_seconds:g} s"
        error = ToolFailure("TIMEOUT", message)
        parts.append(f"[{message}]")
    else:
        parts.append(f"[exit code {result.exit_code}]")
    parts.append(result.stdout.text)
    if result.stderr.size:
        parts += ["[standard error]", result.stderr.text]
    parts += show_survivors(result.survivors)
    text = "\n".join(part.removesuffix("\n") for part in parts if part)
    return ToolOutput(
        (TextBlock(clean_text(text)),),
        error,
        {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "dropped_bytes": result.stdout.dropped + result.stderr.dropped,
            "survivors": list_survivors(result.survivors),
        },
    )


def _to_json(query: Query) -> JsonObject:
    return cast("JsonObject", to_builtins({"query": query}))


def _decode(path: str, data: bytes, *, final: bool) -> str:
    """Decode text; unless it is final it may end in the middle of a character."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final)
    except UnicodeDecodeError:
        raise WorkspaceError(f"{path!r} is not UTF-8 text") from None


def _hint(text: str, old: str) -> str:
    """Say what is near, if only white space keeps `old` from being found."""
    if "\r\n" in text and "\r" not in old and old.replace("\n", "\r\n") in text:
        return ": its lines end in CR LF"
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    for number, line in enumerate(text.split("\n"), 1):
        if first and line.strip() == first:
            return f"; line {number} is alike: compare the white space"
    return ""
