"""The entry of the command line: arguments in, exit code out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentkernel import Model, SessionStore, Tool

from .application import serve
from .exits import Exit
from .opening import Extras
from .settings import read_arguments

__all__ = ["main"]


def main(
    arguments: Sequence[str] | None = None,
    *,
    tools: Iterable[Tool] = (),
    models: Mapping[str, Model] | None = None,
    store: SessionStore | None = None,
) -> int:
    """Run the command line, as the program `agentkernel` does.

    A program of yours may call it to offer its own tools and models on a terminal. To
    be called in the main thread, outside of any event loop, as the last thing that the
    program does: SIGINT is ignored when it returns.

    Args:
      arguments: those behind the program's name; None for those of this process.
      tools: offered to the agent beside those of the workspace. Tools with a true
        `needs_approval` are asked about.
      models: names that `--model` knows besides its own; the first is the default.
      store: used instead of the one that `--store` names.

    Returns:
      The exit code; see `docs/cli.md`.

    Raises:
      SystemExit: if help was asked for, or the arguments are wrong.

    """
    extras = Extras(tuple(tools), dict(models or {}), store)
    try:
        settings = read_arguments(arguments, [tool.spec.name for tool in extras.tools])
        return serve(settings, extras)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
