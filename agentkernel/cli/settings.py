"""The arguments of the command line: how they are written, and as one frozen value."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

import msgspec

from agentkernel import JsonlStore, MemoryStore, SessionStore, SqliteStore
from agentkernel.tools import WORKSPACE

from .exits import Complaint
from .models import SYNTAX

__all__ = ["HELP_WIDTH", "Settings", "build_parser", "open_store", "read_arguments"]

# The help is the same on every terminal, so that its documented form is true.
HELP_WIDTH = 80
_ALIASES = {"write": "write_file", "edit": "edit_file", "shell": "run_shell"}

_ENDINGS = """exit codes:
  0 completed, 1 error, 2 usage, 3 blocked, 4 max-steps, 5 max-tokens,
  6 storage, 129 SIGHUP, 130 stopped (Ctrl-C), 141 broken pipe, 143 SIGTERM
"""
_CHAT_KEYS = """keys:
  Enter     send; while the agent works: queue
  !text     steer: join the turn that is running
  Esc       stop the turn, keep the queue
  Ctrl-C    the same; when idle: leave. Again while it stops: say what it waits
            for, then leave. A third time: leave at once
  Ctrl-D    leave when idle
commands:
  /queue /drop [N] /wake /help /quit; a message that begins with / or !
  is written //... or !!... (the first of the two is dropped)
"""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. Empty texts were not given."""

    command: Literal["run", "chat", "sessions"]
    action: Literal["", "list", "show", "resume", "fork", "export"] = ""
    prompt: str = ""
    session: str = ""
    new_session: str = ""
    at: int | None = None
    model: str = ""
    base_url: str = ""
    workspace: Path = Path()
    allow: frozenset[str] = frozenset()
    store: str = ""
    system: str | None = None
    max_steps: int | None = None
    json: bool = False


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=HELP_WIDTH)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser. Not a checkpoint."""
    parser = argparse.ArgumentParser(
        prog="agentkernel",
        description="Talk to an agent, stop it, and find it again.",
        epilog=_ENDINGS,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    store, agent, session = _store_options(), _agent_options(), _session_option()
    run = commands.add_parser(
        "run",
        help="ask one thing; the answer streams to standard output",
        description="Ask one thing. The answer streams to standard output; what else"
        "\nhappens is told on standard error.",
        epilog=_ENDINGS,
        parents=[session, agent, store],
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    run.add_argument("prompt", metavar="PROMPT", help="the text; - reads it from stdin")
    run.add_argument(
        "--json", action="store_true", help="print each event as a line of JSON instead"
    )
    commands.add_parser(
        "chat",
        help="talk on a terminal",
        description="Talk on a terminal.",
        epilog=_CHAT_KEYS,
        parents=[session, agent, store],
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    sessions = commands.add_parser(
        "sessions",
        help="list, show, resume, fork or export sessions",
        description="Look after stored sessions.",
        parents=[store],
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    _add_actions(sessions, store, agent)
    return parser


def _add_actions(
    sessions: argparse.ArgumentParser,
    store: argparse.ArgumentParser,
    agent: argparse.ArgumentParser,
) -> None:
    actions = sessions.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add(
        name: str, text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            parents=[*parents, store],
            formatter_class=_Formatter,
            allow_abbrev=False,
        )

    add("list", "list the sessions, the last changed first")
    add("show", "print a session for people to read").add_argument("session")
    resume = add("resume", "go on with a session: chat --session", agent)
    resume.add_argument("session")
    fork = add("fork", "begin a new session with the history of another one")
    fork.add_argument("session")
    fork.add_argument("new_session", nargs="?", default="", help="its id; else made up")
    fork.add_argument("--at", type=int, metavar="SEQ", help="the last event to take")
    add("export", "print a session as lines of JSON").add_argument("session")


def _session_option() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--session", default="", metavar="ID", help="resume this one, or create it"
    )
    return options


def _store_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--store",
        default=argparse.SUPPRESS,
        help="where sessions are kept: a SQLite file, jsonl:FOLDER, or memory "
        "(default: $AGENTKERNEL_STORE, else sessions.db in the state folder)",
    )
    return options


def _agent_options() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument(
        "--model",
        default="",
        help=f"{SYNTAX} (default: $AGENTKERNEL_MODEL, else local)",
    )
    options.add_argument(
        "--base-url", default="", metavar="URL", help="of the model's server"
    )
    options.add_argument(
        "--workspace",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the folder that the tools work in (default: this one)",
    )
    options.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="TOOLS",
        help="run these without asking: write, edit, shell, with commas between; "
        "without a terminal they are off unless they are named here",
    )
    options.add_argument("--system", metavar="TEXT", help="the system prompt")
    options.add_argument(
        "--max-steps", type=_count, metavar="N", help="model requests in one turn"
    )
    return options


def read_arguments(
    arguments: Sequence[str] | None, tools: Collection[str] = ()
) -> Settings:
    """Read arguments. Not a checkpoint.

    Args:
      arguments: None for those of the process.
      tools: names of tools that there are besides those of the workspace.

    Raises:
      SystemExit: if help was asked for, or the arguments are wrong.

    """
    parser = build_parser()
    found: dict[str, object] = vars(parser.parse_args(arguments))
    try:
        if "allow" in found:
            found["allow"] = _allowed(found["allow"], {*WORKSPACE, *tools})
    except Complaint as complaint:
        parser.error(str(complaint))
    return msgspec.convert(found, Settings, dec_hook=_as_it_is)


def _count(text: str) -> int:
    """Read a number that is at least 1; argparse says what is wrong."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def _as_it_is(wanted: type, value: object) -> object:
    """Let a path be a path."""
    if not isinstance(value, wanted):
        raise TypeError(wanted.__name__)
    return value


def _allowed(given: object, known: set[str]) -> frozenset[str]:
    words = ",".join(cast("list[str]", given))
    names = [name.strip() for name in words.split(",") if name.strip()]
    names = [_ALIASES.get(name, name) for name in names]
    for name in names:
        if name not in known:
            raise Complaint(f"--allow: there is no tool {name!r}")
    return frozenset(names)


def open_store(text: str, environ: Mapping[str, str]) -> SessionStore:
    """Make the store that `--store` names; its folder is made, for its owner alone.

    Not a checkpoint.

    Raises:
      Complaint: if the folder cannot be made.

    """
    text = text or environ.get("AGENTKERNEL_STORE", "")
    if text == "memory":
        return MemoryStore()
    if not text:
        state = environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        text = os.fspath(Path(state) / "agentkernel" / "sessions.db")
    kind, _, rest = text.partition(":")
    jsonl = kind == "jsonl" and bool(rest)
    path = Path(rest if jsonl else text)
    try:
        folder = path if jsonl else path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Complaint(f"--store {text}: {error.strerror}") from None
    return JsonlStore(path) if jsonl else SqliteStore(path)
