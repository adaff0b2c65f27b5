"""What all agents of one kernel share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import final

import trio

from .._errors import WrongThreadError
from .._session.writer import Writer
from .._util import new_id, thread_id
from .dispatch import Listeners
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry
from .work import Watchdog

__all__ = ["Commons"]


@final
class Commons:
    """Made by `open_kernel`, handed to every driver; lives as long as the kernel.

    Attributes:
      nursery: where drivers run; shielded from the block that owns the kernel.
      contained: what observers raised, if the kernel is strict; else it stays empty.
      fatal: what must leave the kernel, once there is one.

    """

    def __init__(
        self,
        writer: Writer,
        *,
        now: Callable[[], float],
        make_id: Callable[[], str] = new_id,
        stuck_after: float = 5.0,
        strict: bool = False,
    ) -> None:
        self.writer = writer
        self.now = now
        self.make_id = make_id
        self.watchdog: Watchdog = Watchdog(stuck_after, self.crash)
        self.listeners: Listeners = Listeners()
        self.models: ModelRegistry = ModelRegistry()
        self.tools: ToolRegistry = ToolRegistry()
        self.prompt: Prompt = Prompt()
        self.nursery: trio.Nursery | None = None
        self.contained: list[Exception] = []
        self.fatal: BaseException | None = None
        self._strict = strict
        self._thread = thread_id()
        # The context of `open_kernel`: what drivers start from, whoever creates them.
        self._context: Context | None = None
        self._on_crash: Callable[[], None] | None = None

    def check_thread(self, verb: str, owner: str = "agent") -> None:
        """Refuse a verb that is called outside the kernel's thread.

        Raises:
          WrongThreadError: if it is.

        """
        if thread_id() != self._thread:
            raise WrongThreadError(verb, owner)

    def open(
        self, nursery: trio.Nursery, context: Context, on_crash: Callable[[], None]
    ) -> None:
        """Begin: from here on tasks can be started."""
        self.nursery = nursery
        self._context = context
        self._on_crash = on_crash

    def start(
        self,
        fn: Callable[[], Awaitable[object]],
        name: str,
        nursery: trio.Nursery | None = None,
    ) -> None:
        """Start a task in a copy of the kernel's own context. Not a checkpoint.

        Args:
          fn: what it runs.
          name: for people.
          nursery: where; that of the kernel by default.

        """
        where = nursery or self.nursery
        assert where is not None
        assert self._context is not None

        def start() -> None:
            where.start_soon(fn, name=name)

        self._context.copy().run(start)

    def contain(self, error: Exception) -> None:
        """Keep what an observer raised, if the kernel is strict about it."""
        if self._strict:
            self.contained.append(error)

    def crash(self, error: BaseException) -> None:
        """Have an error leave the kernel: its block ends. The first one counts."""
        if self.fatal is None:
            self.fatal = error
        if self._on_crash is not None:
            self._on_crash()
