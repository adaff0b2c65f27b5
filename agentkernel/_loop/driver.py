"""The driver: the one task that drains an agent's inbox, and the state it keeps.

The verbs (in `verbs`, and `begin_disposal` here) are synchronous decisions over that
state; the task (`run`) only waits: for a wake, for a turn, for a flush.

The state, besides what the log's fold says:

- `status`: `running` from the wake until the driver has converged.
- `holder`: the authority over the next or the current turn. There from before
  `running` is published until immediately before `turn/end` is appended.
- `wanted`: whether pending input is to be drained; if not, it is parked.
- `converging`: a turn that had started was stopped, and the agent is not idle yet.
  Waking input that arrives meanwhile is kept in `latch` and drained afterwards.
- `lifecycle`: `live`, then `disposing`, then `closed`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, final

import trio
from trio.lowlevel import ParkingLot, disable_ki_protection, enable_ki_protection

from .._errors import AgentDisposedError, StorageError
from .._messages import UserMessage
from .._session.events import Ending, Queue, SessionEvent
from .._session.log import Log
from .background import Background
from .cancellation import TurnCancellation
from .commons import Commons
from .dispatch import Dispatcher, Listeners, initiator
from .failure import fatal_leaf, fault
from .inbox import put_back
from .maintenance import Maintenance, perform
from .options import AgentOptions
from .payload import (
    AgentDisposed,
    AgentStuck,
    Appended,
    InboxDiscarded,
    InboxInserted,
    Status,
    StatusChanged,
)
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry
from .turn import end_open_turn, run_turn
from .verbs import CancelCall, stop_holder
from .work import Work

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Driver"]


@final
class Driver:
    """One agent's live state and the task that moves it; users hold an `Agent`."""

    def __init__(
        self,
        log: Log,
        commons: Commons,
        options: AgentOptions,
        *,
        parent: Driver | None,
    ) -> None:
        self.log = log
        self.commons = commons
        self.options = options
        self.parent = parent
        # Added by the kernel once they are sure to run, removed by themselves.
        self.children: dict[Driver, None] = {}
        self.work: Work = Work()
        self.background: Background = Background(self)
        self.models: ModelRegistry = ModelRegistry(commons.models)
        self.tools: ToolRegistry = ToolRegistry(commons.tools)
        self.prompt: Prompt = Prompt(commons.prompt)
        self.status: Status = "idle"
        self.holder: TurnCancellation | None = None
        self.wanted: bool = False
        self.converging: bool = False
        self.latch: set[str] = set()
        self.latch_wake: bool = False
        self.lifecycle: Literal["live", "disposing", "closed"] = "live"
        # Set when the driver has exited and the session is closed.
        self.gone: trio.Event = trio.Event()
        # What could not be written at the end, and whether who disposed was told.
        self.close_failure: StorageError | None = None
        self.failure_told = False
        # The last turn whose flush has settled: outcomes up to here are final.
        self.settled_turn: int = log.fold.last_turn
        # Where callers wait: for outcomes that may have become final, for idle.
        self.outcome_waiters: ParkingLot = ParkingLot()
        self.idle_waiters: ParkingLot = ParkingLot()
        self.cancelling: CancelCall | None = None
        self.maintenance: Maintenance[object] | None = None
        self._wakes, self._wake_receiver = trio.open_memory_channel[None](1)
        self.task: trio.lowlevel.Task | None = None
        # Whether code of a turn or of maintenance may be running below the task.
        self.busy_inside = False
        # Set by the kernel: told when the agent leaves.
        self.on_gone: Callable[[], object] = bool

    def bind(self, agent: Agent) -> None:
        """Become the driver of an agent: events carry it from here on."""
        self.agent = agent
        self.dispatch: Dispatcher = Dispatcher(
            agent, self.commons.listeners, Listeners(), self.commons.contain
        )
        self.log.publish = self._publish
        self.log.audience = self.dispatch.hears_appended
        self.log.on_recovered = self._recovered

    # --- stopping

    @enable_ki_protection
    def begin_disposal(self) -> None:
        """Mark the agent as disposing and interrupt what runs; done at most once."""
        if self.lifecycle != "live":
            return
        self.lifecycle = "disposing"
        self.park()
        self._signal_wake()
        try:
            if self.holder is not None:
                stop_holder(self, self.holder, "disposed")
        finally:
            for child in tuple(self.children):
                child.begin_disposal()

    @property
    def stoppable_turn(self) -> int | None:
        """The live turn, unless it has been stopped: a late stop has nothing to do."""
        stopped = self.holder is not None and self.holder.reason is not None
        return None if stopped else self.live_turn

    @property
    def live_turn(self) -> int | None:
        """The turn that has started and not ended; it may be stopping."""
        return self.log.fold.open_turn if self.holder is not None else None

    def park(self) -> None:
        """Leave pending input where it is until the next wake."""
        self.wanted = False
        self.latch.clear()
        self.latch_wake = False

    # --- the task

    @enable_ki_protection
    async def run(self) -> None:
        """Drain whenever woken, until disposal; then close the session.

        Always a checkpoint.

        Cancellation:
          The kernel never cancels it: a stop comes through the holder, the end
          through `begin_disposal`.

        """
        self.task = trio.lowlevel.current_task()
        initiator.set(self.agent)
        try:
            await self._serve()
        except BaseException as error:  # noqa: ASYNC103, BLE001  # nothing may stop the agent's closing; it leaves the kernel
            leaf = fatal_leaf(error) or fault(error, stopped=True)
            if leaf is not None:
                self.commons.crash(leaf)
                end_open_turn(self, leaf)
                self.log.deliver()
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    @disable_ki_protection
    async def _serve(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Drain whenever woken, as long as the agent lives.

        Always a checkpoint.

        Cancellation:
          As `run`.

        """
        while self.lifecycle == "live":
            await self._wake_receiver.receive()
            if self.status == "running":
                await self._drain()

    async def _drain(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Run turns until nothing is wanted, then become idle.

        A checkpoint if a turn ran; the wake before it is one in any case.

        Cancellation:
          As `run`.

        """
        if self.maintenance is not None:
            await perform(self, self.maintenance)
        while self.lifecycle == "live":
            inbox = self.log.fold.inbox
            if self.wanted and not inbox.has_work:
                self.wanted = False
            if self.wanted:
                if self.commons.writer.failure(self.log) and not await self.flush():
                    break
                await self._take_turn()
                continue
            self.holder = None
            if self.log.durable_seq == self.log.last_seq or not await self.flush():
                break
        self._become_idle()

    async def _take_turn(self) -> None:
        """Run one turn, under a fresh holder if the one that is there was stopped.

        Always a checkpoint.

        Cancellation:
          As `run`.

        """
        holder = self.holder
        if holder is not None and holder.reason is not None:
            # Cancelled before it began, and replaced since: nothing ran, so this is
            # the only checkpoint of the interval.
            self.holder = None
            await trio.lowlevel.cancel_shielded_checkpoint()
        elif holder is None:
            self.holder = TurnCancellation()
            await run_turn(self, self.holder)
        else:
            await run_turn(self, holder)

    def end_turn(self, ending: Ending) -> None:
        """Draw the consequences of an ending for what waits, within its one act."""
        self.holder = None
        if ending.kind in {"error", "blocked"}:
            self.wanted = False

    async def flush(self) -> bool:
        """Make the log durable; a failure has been reported, and is the answer False.

        A checkpoint only if the store waits for something.

        Cancellation:
          Shielded where it waits: a store that hangs is reported, and waited for.

        """
        writer = self.commons.writer
        try:
            if writer.immediate:
                await writer.write_now(self.log)
            else:
                with trio.CancelScope(shield=True):
                    with self.work.doing("flush", self.log.id):
                        await writer.flush(self.log, self.log.last_seq)
        except StorageError:
            return False  # noqa: ASYNC910  # waits only if it must
        return True

    def settle_turn(self, turn: int) -> None:
        """Make the outcomes of a turn final: its flush has settled."""
        self.settled_turn = turn
        if self.outcome_waiters:
            self.outcome_waiters.unpark_all()

    def _become_idle(self) -> None:
        """Publish `idle`; then, if a latched message is still there, start again."""
        self.holder = None
        self.status = "idle"
        self.converging = False
        self.commons.watchdog.forget(self)
        self.idle_waiters.unpark_all()
        self.dispatch.notify(StatusChanged, "idle")
        replay = self.latched()
        self.latch.clear()
        self.latch_wake = False
        if replay and self.lifecycle == "live" and self.want():
            self.start()

    async def _finish(self) -> None:
        """Wait for children and tasks, close the session, leave: the agent's end.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        self.begin_disposal()
        for child in tuple(self.children):
            with self.work.doing("child", child.log.id):
                await child.gone.wait()
        await self.background.end()
        if self.maintenance is not None:
            # The end came before the driver's first look at it: it never began.
            self.maintenance.done.set()
        put_back(self.log)
        try:
            with self.work.doing("flush", self.log.id):
                await self.commons.writer.close(self.log)
        except StorageError as error:
            self.close_failure = error
        except BaseException as error:  # noqa: ASYNC103, BLE001  # the agent leaves, whatever its store does
            self.commons.crash(error)
        self.lifecycle = "closed"
        if self.status == "running":
            self._become_idle()
        if self.parent is not None:
            self.parent.children.pop(self, None)
        self.idle_waiters.unpark_all()
        self.on_gone()
        self.dispatch.notify(AgentDisposed)
        self.dispatch.own.clear()
        self.log.audience = bool
        self._wakes.close()
        self._wake_receiver.close()
        self.gone.set()
        self.settle_turn(self.settled_turn)

    # --- waking

    def want(self) -> bool:
        """Want a drain; true if that made an idle agent running."""
        self.wanted = True
        if self.status == "running":
            return False
        self.status = "running"
        self.holder = TurnCancellation()
        return True

    def start(self) -> None:
        """Publish `running` and wake the task."""
        self.dispatch.notify(StatusChanged, "running")
        self._signal_wake()

    def _signal_wake(self) -> None:
        """Wake the task; a full channel is a wake that is latched already."""
        try:
            self._wakes.send_nowait(None)
        except (trio.WouldBlock, trio.ClosedResourceError):
            return

    def latched(self) -> bool:
        """Whether a message that arrived while converging is still pending."""
        inbox = self.log.fold.inbox
        if self.latch_wake and inbox.has_work:
            return True
        return bool(self.latch) and not self.latch.isdisjoint(inbox.pending_ids)

    def _recovered(self) -> None:
        """Run what was asked for while the store could not be written."""
        ready = self.wanted and self.status == "idle" and self.lifecycle == "live"
        if ready and self.log.fold.inbox.has_work and self.want():
            self.start()

    # --- for the parts

    def refuse_if_closed(self, verb: str) -> None:
        """Check the thread and that the agent is not closed."""
        self.commons.check_thread(verb)
        if self.log.closed:
            raise AgentDisposedError(self.agent.id)

    def kick(self) -> None:
        """Send what was appended on its way to the store."""
        self.commons.writer.kick(self.log)

    def note_inserted(self, queue: Queue, message: UserMessage) -> None:
        """Notify `agent/inbox/inserted`."""
        self.dispatch.notify(InboxInserted, queue, (message,))

    def note_discarded(self, messages: tuple[UserMessage, ...]) -> None:
        """Notify `agent/inbox/discarded` and release who waits for an outcome."""
        self.dispatch.notify(InboxDiscarded, messages)
        self.outcome_waiters.unpark_all()

    @property
    def stopping_since(self) -> float | None:
        """When the stop that is going on began; see `Watched`."""
        return None if self.holder is None else self.holder.stopped_at

    @property
    def writing_since(self) -> float | None:
        """When the write began that this agent waits for; see `Watched`."""
        if self.log.last_seq == self.log.durable_seq:
            return None
        return self.commons.writer.writing_since

    def report_stuck(self) -> None:
        """Publish `agent/stuck`."""
        self.dispatch.notify(AgentStuck, self.work.blockers())

    def _publish(self, event: SessionEvent) -> None:
        self.dispatch.notify(Appended, event)
