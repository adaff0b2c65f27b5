"""`open_kernel`: the block that owns every agent, their store and their end.

Inside the block two nurseries are at work. The outer one holds the body and a
sentinel; the drivers run in a task of their own, in a nursery that is shielded from
whatever cancels the block. A cancellation from outside therefore reaches the
sentinel, which disposes of all agents: turns learn of it through their signals, in
the same pass of the scheduler, and record it. Only then does it go on its way.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar, final, overload

import msgspec
import trio
from trio.lowlevel import enable_ki_protection

from .._errors import (
    AgentDisposedError,
    KernelClosedError,
    SessionNotFoundError,
    StorageError,
    UnknownNameError,
)
from .._session.log import Log
from .._session.session import Session
from .._session.writer import Writer
from .._util import new_id, wall_clock
from ..abc import SessionStore, Tool
from .agent import Agent, AgentHandle
from .commons import Commons
from .dispatch import Listener
from .driver import Driver
from .failure import fatal_leaf
from .opening import Opening, load, with_model
from .options import AgentOptions
from .payload import AgentCreated, Notification, Serial, SessionStarted, Waterfall
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry

__all__ = ["Kernel", "open_kernel"]

P = TypeVar("P")
D = TypeVar("D")


@asynccontextmanager
@enable_ki_protection
async def open_kernel(
    store: SessionStore,
    *,
    clock: Callable[[], float] = wall_clock,
    make_id: Callable[[], str] = new_id,
    stuck_after: float = 5.0,
    strict: bool = False,
) -> AsyncGenerator[Kernel, None]:
    """Open a kernel for the length of a block; nothing it starts outlives the block.

    Leaving the block disposes of every agent: all are interrupted at once, and the
    store is closed when the last one has gone. An exception of the body leaves the
    block as itself. Entry and exit are checkpoints.

    Cancellation:
      A cancellation of the block disposes of every agent, is recorded by their
      turns as `disposed`, and then passes through. Work that ignores its
      cancellation delays it.

    Args:
      store: where sessions live; the kernel enters and leaves it.
      clock: gives Unix time in seconds, for the dates of events.
      make_id: gives a new id, for messages and sessions that come without one.
      stuck_after: seconds after which a stop, or a write, is reported as stuck.
      strict: raise what observers raised, as a group, when the block ends: for tests.

    Raises:
      StorageError: when the block ends, if the last events of an agent could not be
        written and the body raised nothing itself.

    """
    commons = Commons(
        Writer(store),
        now=clock,
        make_id=make_id,
        stuck_after=stuck_after,
        strict=strict,
    )
    kernel = Kernel(commons, store)
    body_error: BaseException | None = None
    async with store:
        try:
            async with trio.open_nursery() as nursery:
                context = contextvars.copy_context()
                nursery.start_soon(kernel.host, context, nursery.cancel_scope.cancel)
                try:
                    await kernel.hosted.wait()
                    nursery.start_soon(kernel.watch_for_cancellation)
                    yield kernel
                except BaseException as error:  # noqa: BLE001  # raised below, outside of the nursery that would wrap it
                    body_error = error
                with trio.CancelScope(shield=True):
                    body_error = await kernel.see_to_the_end(body_error)
                nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # Nothing is left to wait for but the sentinel: an interruption came then.
            body_error = body_error or fatal_leaf(group) or group
    if commons.fatal is not None:
        raise commons.fatal
    if body_error is not None:
        raise body_error
    if commons.contained:
        raise ExceptionGroup("observers raised", commons.contained)
    for failure in kernel.close_failures:
        raise failure


@final
class Kernel:
    """Owns agents; made by `open_kernel`, of use only inside its block.

    Its methods belong to the thread that opened it.

    Attributes:
      models, tools, prompt: what every agent can use.
      close_failures: what could not be written when the kernel ended.

    """

    def __init__(self, commons: Commons, store: SessionStore) -> None:
        self._commons = commons
        self._store = store
        self._token = new_id()
        self._agents: dict[str, Agent] = {}
        self._drivers: dict[Agent, Driver] = {}
        self._ending = False
        self._ended = trio.Event()
        # Whether drivers can be started, and whether their nursery has been left.
        self.hosted = trio.Event()
        self.left = trio.Event()
        self.close_failures: list[StorageError] = []

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
        return tuple(self._agents.values())

    def get(self, session_id: str) -> Agent:
        """Find a live agent.

        Raises:
          UnknownNameError: if there is none of that id.

        """
        agent = self._agents.get(session_id)
        if agent is None:
            raise UnknownNameError("agent", session_id, tuple(self._agents))
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

        """
        if isinstance(source, Agent):
            end = source.session.last_seq if at is None else at
            await source.session.flush(end)
            source_id = source.id
        else:
            source_id = source
            end = await self._last_seq(source) if at is None else at
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
        return self._commons.listeners.add(event, listener)

    # --- the kernel's own side

    @enable_ki_protection
    async def host(
        self,
        context: contextvars.Context,
        on_crash: Callable[[], None],
    ) -> None:
        """Run drivers, writer and watchdog until the kernel has ended.

        Always a checkpoint.

        Cancellation:
          Shielded: the end comes through `end`.

        """
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    self._commons.open(nursery, context, on_crash)
                    nursery.start_soon(self._commons.writer.run)
                    nursery.start_soon(self._commons.watchdog.run)
                    self._commons.writer.on_failure = self._storage_failed
                    self._commons.writer.on_write = self._write_began
                    self.hosted.set()
                    await self._ended.wait()
                    nursery.cancel_scope.cancel()
        except BaseException as error:  # noqa: BLE001  # a fault of the kernel's own tasks leaves the block as itself
            self._commons.crash(fatal_leaf(error) or error)
        finally:
            self.left.set()

    @enable_ki_protection
    async def watch_for_cancellation(self) -> None:
        """Turn a cancellation of the block into the disposal of every agent.

        Always a checkpoint.

        Cancellation:
          That is what it waits for; it passes through.

        """
        try:
            await trio.sleep_forever()
        finally:
            self._begin_end()

    async def see_to_the_end(
        self, error: BaseException | None
    ) -> BaseException | None:
        """End the kernel, whatever comes; return what the block has to raise.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        while not self.left.is_set():
            try:
                await self.end()
            except KeyboardInterrupt as interrupt:
                # It reaches the main task wherever it waits; the end goes on.
                error = error or interrupt
        return error

    async def end(self) -> None:
        """Dispose of every agent and wait until all have gone.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        self._begin_end()
        while self._drivers:
            driver = next(iter(self._drivers.values()))
            await driver.gone.wait()
            if driver.close_failure is not None:
                self.close_failures.append(driver.close_failure)
            self._drivers.pop(driver.agent, None)
        self._ended.set()
        await self.left.wait()

    def forget(self, agent: Agent) -> None:
        """Let an agent leave the registry; its driver calls this when it is gone."""
        self._agents.pop(agent.id, None)
        if not self._ending:
            self._drivers.pop(agent, None)

    def _begin_end(self) -> None:
        self._ending = True
        for driver in tuple(self._drivers.values()):
            driver.begin_disposal()

    async def _start(
        self, session_id: str, opening: Opening, tools: Iterable[Tool]
    ) -> AgentHandle:
        """Claim the session, bring its log up to date, and start its driver.

        Always a checkpoint.

        Cancellation:
          There is no agent, and its claim is given back.

        """
        self._commons.check_thread(opening.source_kind)
        if self._ending:
            raise KernelClosedError(opening.source_kind)
        own = ToolRegistry()
        for tool in tools:
            own.add(tool)
        claim = await self._store.claim(
            session_id,
            token=self._token,
            create=opening.source_kind != "resume",
            takeover=opening.takeover,
        )
        log: Log | None = None
        try:
            log = await load(self._store, claim, opening, self._commons.now)
            await self._commons.writer.flush(log, log.last_seq)
            return self._install(log, opening, tuple(own.effective().values()))
        except BaseException:
            if log is not None:
                self._commons.writer.forget(log)
            with trio.CancelScope(shield=True):
                await self._store.release(claim)
            raise

    @enable_ki_protection
    def _install(
        self, log: Log, opening: Opening, tools: tuple[Tool, ...]
    ) -> AgentHandle:
        """Make the agent of a log that is up to date, and start its driver."""
        if self._ending:
            raise KernelClosedError(opening.source_kind)
        parent = None if opening.parent is None else self._drivers.get(opening.parent)
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
        self._agents[agent.id] = agent
        self._drivers[agent] = driver
        self._commons.start(driver.run, name=f"agent {agent.id}")
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

    def _driver_of(self, log: Log) -> Driver | None:
        agent = self._agents.get(log.id)
        return None if agent is None else self._drivers.get(agent)

    def _storage_failed(self, log: Log, error: StorageError) -> None:
        """Report a failed write to the agent; one that was displaced ends."""
        driver = self._driver_of(log)
        if driver is not None:
            driver.dispatch.report(error, "writing the session")
            if log.displaced:
                driver.begin_disposal()

    def _write_began(self) -> None:
        """Have a write watched, for every agent that waits for one."""
        for driver in self._drivers.values():
            if driver.log.last_seq > driver.log.durable_seq:
                self._commons.watchdog.watch(driver)
