"""What a scenario is played on: one kernel, one agent, and everything that is held.

A `Stage` is made anew for each run of a sweep. It keeps what the checks of that run
need afterwards (models, receipts, reported errors), and it knows every gate, so that
a run which fails opens them all instead of hanging.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from itertools import count
from typing import Protocol, TypeVar, final

import trio

import agentkernel as ak

from .models import Gate, ScriptedModel
from .schedules import mark

__all__ = ["Scenario", "Stage", "install_yielding_listeners"]

P = TypeVar("P")
D = TypeVar("D")

# The notifications beside `Appended`, which is counted by itself.
NOTIFICATIONS = (
    ak.AgentCreated,
    ak.AgentDisposed,
    ak.AgentStuck,
    ak.CancelRequested,
    ak.ErrorReported,
    ak.InboxClaimed,
    ak.InboxDiscarded,
    ak.InboxInserted,
    ak.SessionStarted,
    ak.StatusChanged,
)


class Scenario(Protocol):
    """A story with one agent: it starts a stage and plays on it to the end.

    It must come to its end whatever is done to its agent on the way: it waits with
    `stage.until` and `stage.settle`, and opens the gates that it holds.
    """

    async def __call__(self, stage: Stage, /) -> None:
        """Play the scenario once."""
        ...


class _Openable(Protocol):
    def open(self) -> None:
        """Let through what waits."""
        ...


@final
class Stage:
    """One run's kernel and agent; made by a sweep, handed to its scenario.

    Attributes:
      kernel, agent, handle: there once `start` has returned.
      scope: the cancel scope around the kernel's block.
      nursery: for tasks outside of the kernel's block; it ends with the run.
      model: the scripted model that `start` was given.
      receipts: what the cancels of this run returned.
      errors: what was published as `agent/error`.
      expects_errors: set by a scenario whose story includes reported errors.
      ended: whether the agent's end was asked for: by a dispose or a cancelled scope.

    """

    kernel: ak.Kernel
    agent: ak.Agent
    handle: ak.AgentHandle
    model: ScriptedModel
    store: ak.SessionStore

    def __init__(self, nursery: trio.Nursery, stack: AsyncExitStack) -> None:
        self.nursery = nursery
        self.scope: trio.CancelScope = trio.CancelScope()
        self.receipts: list[ak.CancelReceipt] = []
        self.errors: list[ak.ErrorReported] = []
        self.expects_errors = False
        self.ended: bool = False
        self.started: bool = False
        # Where the log stood at the last effective cancel, and what that left pending.
        self.stopped_at: int = 0
        self.kept: tuple[str, ...] = ()
        # Whether what that cancel parked was woken since; arrivals are in the log.
        self.woken: bool = False
        # Told of each `Appended` and of each other notification, by the kind's name.
        self.on_point: Callable[[str], None] | None = None
        self._stack = stack
        self._held: list[_Openable] = []

    async def start(
        self,
        model: ScriptedModel,
        *,
        store: ak.SessionStore | None = None,
        tools: Iterable[ak.Tool] = (),
        options: ak.AgentOptions | None = None,
        yielding: bool = True,
    ) -> ak.Agent:
        """Open the kernel and create the agent; from here on the sweep counts.

        Always a checkpoint.

        Cancellation:
          There is no agent.

        Args:
          model: what the agent asks.
          store: a memory store by default.
          tools: the agent's tools.
          options: the agent's options; its model is set here.
          yielding: whether every waterfall and serial event gets a listener that
            passes a checkpoint before and after it: a sweep over task steps sees
            only windows that hold one.

        """
        self.model = model
        self.store = ak.MemoryStore() if store is None else store
        numbers = count(1)
        self.kernel = await self._stack.enter_async_context(
            ak.open_kernel(
                self.store,
                clock=trio.current_time,
                make_id=lambda: f"id-{next(numbers)}",
                strict=True,
            )
        )
        self.kernel.models.register("scripted", model)
        if yielding:
            install_yielding_listeners(self.kernel)
        self._observe()
        self.handle = await self.kernel.create(
            "staged", model="scripted", tools=tools, options=options
        )
        self.agent = self.handle.agent
        self.started = True
        return self.agent

    def gate(self) -> Gate:
        """Make a gate that is opened at the latest when the scenario is left."""
        gate = Gate()
        self._held.append(gate)
        return gate

    def holds(self, held: _Openable) -> None:
        """Have something opened at the latest when the scenario is left."""
        self._held.append(held)

    def open_all(self) -> None:
        """Open everything that is held. Not a checkpoint."""
        for held in self._held:
            held.open()

    async def until(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Wait until `wait()` returns, or until the agent has settled without.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        async with trio.open_nursery() as nursery:

            async def first(wait: Callable[[], Awaitable[object]]) -> None:
                await wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(first, wait)
            nursery.start_soon(first, self.agent.when_idle)

    async def settle(self) -> None:
        """Wait until the agent is idle, or gone.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        await self.agent.when_idle()

    def cancel(self, *, keep_inbox: bool = False) -> ak.CancelReceipt:
        """Cancel the agent's work and keep the receipt for the checks."""
        stops = len(self.receipts)
        receipt = self.agent.cancel(ak.USER, keep_inbox=keep_inbox)
        # What its observers sent in that call, it has seen. A stop from inside this
        # one, by an observer, has the later word.
        if receipt.effective and len(self.receipts) == stops:
            self.stopped_at, self.kept = self.agent.session.last_seq, receipt.kept
            self.woken = False
        self.receipts.append(receipt)
        return receipt

    def send(self, text: str, *, verb: str = "followup") -> None:
        """Send a message, unless the agent has been disposed of meanwhile."""
        try:
            getattr(self.agent, verb)(text)
        except ak.AgentDisposedError:
            if not self.ended:
                raise

    def dispose(self) -> None:
        """Begin to dispose of the agent, in a task outside of the kernel's block."""
        self.ended = True
        self.nursery.start_soon(self.handle.dispose)

    def cancel_scope(self) -> None:
        """Cancel the scope around the kernel's block."""
        self.ended = True
        self.scope.cancel()

    def _observe(self) -> None:
        """Count appends and notifications, and mark their order."""

        def appended(payload: ak.Appended) -> None:
            mark(payload.event.type)
            self._point("append")

        def notified(payload: object) -> None:
            mark(type(payload).__name__)
            self._point("notification")

        self.kernel.on(ak.Appended, appended)
        for event in NOTIFICATIONS:
            self.kernel.on(event, notified)
        self.kernel.on(ak.ErrorReported, self.errors.append)

    def _point(self, kind: str) -> None:
        if self.on_point is not None and self.started:
            self.on_point(kind)


def install_yielding_listeners(kernel: ak.Kernel) -> None:
    """Put a checkpoint before and after every waterfall, and into every serial event.

    A stop can then fall into each seam of a turn, also where nothing of the
    application listens. Not a checkpoint.
    """

    async def around(payload: P, following: Callable[[P], Awaitable[D]]) -> D:
        await trio.lowlevel.checkpoint()
        decision = await following(payload)
        await trio.lowlevel.checkpoint()
        return decision

    async def pause(_payload: ak.TurnStopping) -> None:
        await trio.lowlevel.checkpoint()

    kernel.on(ak.Assemble, around)
    kernel.on(ak.PreStep, around)
    kernel.on(ak.Request, around)
    kernel.on(ak.RequestError, around)
    kernel.on(ak.PreExecute, around)
    kernel.on(ak.Approve, around)
    kernel.on(ak.Execute, around)
    kernel.on(ak.PostExecute, around)
    kernel.on(ak.TurnStopping, pause)
