"""The kernel: creates, resumes and forks agents, and knows those that live."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, final, overload

import msgspec
import trio
from trio.lowlevel import enable_ki_protection

from .._errors import (
    AgentDisposedError,
    KernelClosedError,
    SessionBusyError,
    SessionNotFoundError,
    StorageError,
    UnknownNameError,
)
from .._session.log import Log
from .._session.session import Session
from .._util import new_id
from ..abc import Claim, SessionStore, Tool
from .agent import Agent
from .commons import Commons
from .dispatch import Listener
from .driver import Driver
from .handle import AgentHandle
from .opening import Opening, load, with_model
from .options import AgentOptions
from .payload import AgentCreated, Notification, Serial, SessionStarted, Waterfall
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry
from .roster import Roster

__all__ = ["Kernel"]

P = TypeVar("P")
D = TypeVar("D")


@final
class Kernel:
    """Owns agents; made by `open_kernel`, of use only inside its block.

    Its methods belong to the thread that opened it.

    Attributes:
      models, tools, prompt: what every agent can use.

    """

    def __init__(self, commons: Commons, roster: Roster, store: SessionStore) -> None:
        self._commons = commons
        self._roster = roster
        self._store = store
        self._token = new_id()

    @property
    def models(self) -> ModelRegistry:
        """Models by name: `kernel.models.register("name", model)`."""
        return self._commons.models

    @property
    def tools(self) -> ToolRegistry:
        """Tools that every agent may call."""
        return self._commons.tools

    @property
    def prompt(self) -> Prompt:
        """Prompt sections that every agent has."""
        return self._commons.prompt

    @property
    def store(self) -> SessionStore:
        """Where sessions live."""
        return self._store

    @property
    def agents(self) -> tuple[Agent, ...]:
        """The agents that live now, in the order in which they were opened."""
        return tuple(self._roster.agents.values())

    def get(self, session_id: str) -> Agent:
        """Find a live agent.

        Raises:
          UnknownNameError: if there is none of that id.
          WrongThreadError: if this is not the kernel's thread.

        """
        self._commons.check_thread("get", "kernel")
        agent = self._roster.agents.get(session_id)
        if agent is None:
            raise UnknownNameError("agent", session_id, tuple(self._roster.agents))
        return agent

    @asynccontextmanager
    async def open(
        self,
        session_id: str | None = None,
        *,
        model: str = "",
        tools: Iterable[Tool] = (),
        options: AgentOptions | None = None,
        parent: Agent | None = None,
        takeover: bool = False,
    ) -> AsyncGenerator[Agent, None]:
        """Open an agent for the length of a block: resume its session or create it.

        Entry and exit are checkpoints.

        Cancellation:
          On entry as `create`; leaving is shielded and disposes of the agent.

        """
        handle: AgentHandle | None = None
        if session_id is not None:
            with suppress(SessionNotFoundError):
                handle = await self.resume(
                    session_id,
                    model=model,
                    tools=tools,
                    options=options,
                    parent=parent,
                    takeover=takeover,
                )
        if handle is None:
            handle = await self.create(
                session_id, model=model, tools=tools, options=options, parent=parent
            )
        async with handle as agent:
            yield agent

    async def create(
        self,
        session_id: str | None = None,
        *,
        model: str = "",
        tools: Iterable[Tool] = (),
        options: AgentOptions | None = None,
        parent: Agent | None = None,
    ) -> AgentHandle:
        """Create a session and its agent; it is idle, and its header is durable.

        Always a checkpoint.

        Cancellation:
          There is no agent, and its claim is given back.

        Args:
          session_id: a new id is made if none is given.
          model: the name of a registered model; shorthand for the option.
          tools: tools of this agent alone.
          options: kept in the session's header.
          parent: the agent that this one works for: it starts with a copy of the
            parent's tools, models and prompt, and ends before the parent does.

        Raises:
          SessionExistsError: if there is such a session.
          KernelClosedError: if the kernel's block is ending.

        """
        opening = Opening("create", with_model(options, model), parent, takeover=False)
        return await self._start(session_id or self._commons.make_id(), opening, tools)

    async def resume(
        self,
        session_id: str,
        *,
        model: str = "",
        tools: Iterable[Tool] = (),
        options: AgentOptions | None = None,
        parent: Agent | None = None,
        takeover: bool = False,
    ) -> AgentHandle:
        """Open the agent of a stored session; pending input stays parked.

        What a crash left open is closed first, once: see `docs/stop.md`. Always a
        checkpoint.

        Cancellation:
          There is no agent, and its claim is given back.

        Args:
          session_id: which session.
          model: replaces the model that the session's header names.
          tools: tools of this agent alone; they are not in the log.
          options: replace those of the session's header, for this opening.
          parent: as in `create`.
          takeover: take the session from an owner that seems to be alive.

        Raises:
          SessionNotFoundError: if there is no such session.
          SessionBusyError: if another kernel, or this one, has it open.
          SessionFormatError: if it cannot be read.
          KernelClosedError: if the kernel's block is ending.

        """
        opening = Opening("resume", options, parent, takeover=takeover, model=model)
        return await self._start(session_id, opening, tools)

    async def fork(
        self,
        source: Agent | str,
        session_id: str | None = None,
        *,
        at: int | None = None,
        tools: Iterable[Tool] = (),
        options: AgentOptions | None = None,
        parent: Agent | None = None,
    ) -> AgentHandle:
        """Create a session that begins with the history of another one.

        Calls that were open are closed as left to the original, an open turn ends
        `interrupted`, pending input is not taken over. The source is not touched,
        and is not waited for, except for its flush. Always a checkpoint.

        Cancellation:
          There is no agent; a half-copied session is given back.

        Args:
          source: a live agent or the id of a stored session.
          session_id: a new id is made if none is given.
          at: the last event to take over; the newest one by default.
          tools: tools of this agent alone.
          options: those of the source by default.
          parent: as in `create`.

        Raises:
          SessionExistsError, SessionNotFoundError: as their names say.
          StorageError: if the source cannot be flushed or read.
          ValueError: if the source has no event `at`.

        """
        if isinstance(source, Agent):
            last, source_id = source.session.last_seq, source.id
        else:
            last, source_id = await self._last_seq(source), source
        end = last if at is None else at
        if not 1 <= end <= last:
            raise ValueError(f"event {end} does not exist in {source_id!r}")
        if isinstance(source, Agent):
            await source.session.flush(end)
        opening = Opening(
            "fork", options, parent, takeover=False, source=source_id, at=end
        )
        return await self._start(session_id or self._commons.make_id(), opening, tools)

    @overload
    def on(
        self, event: type[Notification[P]], listener: Callable[[P], object], /
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self, event: type[Serial[P]], listener: Callable[[P], Awaitable[object]], /
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        event: type[Waterfall[P, D]],
        listener: Callable[[P, Callable[[P], Awaitable[D]]], Awaitable[D]],
        /,
    ) -> Callable[[], None]: ...
    def on(self, event: type, listener: Listener, /) -> Callable[[], None]:
        """Register a listener for all agents; see `Agent.on`."""
        self._commons.check_thread("on", "kernel")
        return self._commons.listeners.add(event, listener)

    async def _start(
        self, session_id: str, opening: Opening, tools: Iterable[Tool]
    ) -> AgentHandle:
        """Claim the session, bring its log up to date, and start its driver.

        Always a checkpoint.

        Cancellation:
          There is no agent, and its claim is given back.

        """
        self._commons.check_thread(opening.source_kind, "kernel")
        roster = self._roster
        if roster.ending:
            raise KernelClosedError(opening.source_kind)
        resumes = opening.source_kind == "resume"
        if session_id in roster.opening or (resumes and roster.is_live(session_id)):
            # Not by a takeover either: it would end an agent of this very kernel.
            raise SessionBusyError(session_id, None)
        own = ToolRegistry()
        for tool in tools:
            own.add(tool)
        roster.opening.add(session_id)
        try:
            claim = await self._store.claim(
                session_id,
                token=self._token,
                create=not resumes,
                takeover=opening.takeover,
            )
            return await self._load(claim, opening, tuple(own.effective().values()))
        finally:
            roster.opening.discard(session_id)

    async def _load(
        self, claim: Claim, opening: Opening, tools: tuple[Tool, ...]
    ) -> AgentHandle:
        """Bring the log of a claimed session up to date, and start its driver.

        Always a checkpoint.

        Cancellation:
          There is no agent, and the claim is given back.

        """
        log: Log | None = None
        try:
            log = await load(self._store, claim, opening, self._commons.now)
            await self._commons.writer.flush(log, log.last_seq)
            return self._install(log, opening, tools)
        except BaseException:
            agent = self._roster.agents.get(claim.session_id)
            with trio.CancelScope(shield=True):
                if agent is not None:
                    # It lives already, and somebody who was told so raised this.
                    driver = self._roster.drivers[agent]
                    driver.begin_disposal()
                    await driver.gone.wait()
                    raise
                if log is not None:
                    self._commons.writer.forget(log)
                await self._store.release(claim)
            raise

    @enable_ki_protection
    def _install(
        self, log: Log, opening: Opening, tools: tuple[Tool, ...]
    ) -> AgentHandle:
        """Make the agent of a log that is up to date, and start its driver."""
        if self._roster.ending:
            raise KernelClosedError(opening.source_kind)
        parent = (
            None if opening.parent is None else self._roster.drivers.get(opening.parent)
        )
        if opening.parent is not None and (
            parent is None or parent.lifecycle != "live"
        ):
            raise AgentDisposedError(opening.parent.id)
        assert log.fold.header is not None
        options = opening.options or AgentOptions.from_json(log.fold.header.options)
        if opening.model:
            options = msgspec.structs.replace(options, model=opening.model)
        driver = Driver(log, self._commons, options, parent=parent)
        agent = Agent(driver, Session(log, self._commons.writer), self)
        driver.bind(agent)
        for tool in tools:
            driver.tools.add(tool)
        if parent is not None:
            driver.models.adopt(parent.models)
            driver.tools.adopt(parent.tools)
            driver.prompt.adopt(parent.prompt)
            parent.children[driver] = None
        if options.tools is not None:
            driver.tools.keep({*options.tools, *(tool.spec.name for tool in tools)})
        self._roster.add(agent, driver)
        driver.dispatch.notify(AgentCreated)
        driver.dispatch.notify(SessionStarted, opening.source_kind)
        for notice in log.claim.notices:
            driver.dispatch.report(StorageError(notice), "opening the session")
        return AgentHandle(agent, driver)

    async def _last_seq(self, session_id: str) -> int:
        """Ask the store how long a session is.

        Always a checkpoint.

        Cancellation:
          Nothing happened.

        """
        for info in await self._store.sessions():
            if info.session_id == session_id:
                return info.last_seq
        raise SessionNotFoundError(session_id)
