"""The driver: the one task that drains an agent's inbox, and the state it keeps.

The verbs (`accept`, `wake`, `cancel`, `begin_disposal`) are synchronous decisions
over that state; the task (`run`) only waits: for a wake, for a turn, for a flush.

The state, besides what the log's fold says:

- `status`: `running` from the wake until the driver has converged.
- `holder`: the authority over the next or the current turn. There from before
  `running` is published until immediately before `turn/end` is appended.
- `wanted`: whether pending input is to be drained; if not, it is parked.
- `converging`: a turn that had started was stopped, and the agent is not idle yet.
  Waking input that arrives meanwhile is kept in `latch` and drained afterwards.
- `lifecycle`: `live`, then `disposing`, then `closed`.

Log first: a verb commits its fact, then changes this state, then notifies; durable
events are delivered last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, final

import msgspec
import outcome
import trio
from trio.lowlevel import enable_ki_protection

from .._errors import (
    AgentBusyError,
    AgentDisposedError,
    MaintenanceCancelled,
    MessageConflictError,
    OwnTurnError,
    StorageError,
)
from .._messages import UserMessage
from .._session.events import Ending, InboxSpliced, Queue, SessionEvent
from .._session.log import Log
from .._signal import CancelCause, StopKind, TurnSignal
from .cancellation import TurnCancellation
from .commons import Commons
from .dispatch import Dispatcher, Listeners, initiator
from .failure import fatal_leaf, fault
from .inbox import MessageLike, as_message, discard_all, put_back, same_body
from .options import AgentOptions
from .payload import (
    AgentDisposed,
    AgentStuck,
    Appended,
    CancelRequested,
    InboxDiscarded,
    InboxInserted,
    Status,
    StatusChanged,
)
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry
from .turn import run_turn
from .work import Work

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["CancelReceipt", "Driver", "Sent"]

T = TypeVar("T")


class Sent(msgspec.Struct, frozen=True):
    """A message was accepted.

    Attributes:
      id: the message's id.
      seq: once `session.flush(seq)` returns, the acceptance survives a crash.
      duplicate: whether the session had accepted the same message before.

    """

    id: str
    seq: int
    duplicate: bool = False


class CancelReceipt(msgspec.Struct, frozen=True):
    """What a cancel did.

    Attributes:
      effective: whether it stopped, dropped or parked anything.
      turn: the turn that it stopped, None if no turn had started.
      dropped: ids that were discarded, claimed input first.
      kept: ids that are pending now, in the order in which they would be claimed.

    """

    effective: bool
    turn: int | None = None
    dropped: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()


class _CancelCall:
    """The cancel whose notification is going on; nested ones may widen it."""

    __slots__ = ("keep_inbox",)

    def __init__(self, *, keep_inbox: bool) -> None:
        self.keep_inbox = keep_inbox


class _Maintenance(Generic[T]):
    """A maintenance function on its way to the driver, and its result back."""

    __slots__ = ("done", "fn", "holder", "result")

    def __init__(
        self, fn: Callable[[TurnSignal], Awaitable[T]], holder: TurnCancellation
    ) -> None:
        self.fn = fn
        self.holder = holder
        self.result: outcome.Outcome[T] | None = None
        self.done = trio.Event()


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
        self.children: dict[Driver, None] = {}
        if parent is not None:
            parent.children[self] = None
        self.work = Work()
        self.models = ModelRegistry(commons.models)
        self.tools = ToolRegistry(commons.tools)
        self.prompt = Prompt(commons.prompt)
        self.status: Status = "idle"
        self.holder: TurnCancellation | None = None
        self.wanted = False
        self.converging = False
        self.latch: set[str] = set()
        self.latch_wake = False
        self.lifecycle: Literal["live", "disposing", "closed"] = "live"
        # Set when the driver has exited and the session is closed.
        self.gone = trio.Event()
        # What could not be written when the session was closed.
        self.close_failure: StorageError | None = None
        # The last turn whose flush has settled: outcomes up to here are final.
        self.settled_turn = log.fold.last_turn
        # Replaced each time: an outcome may have become final; the agent is idle.
        self.outcomes_changed = trio.Event()
        self.became_idle = trio.Event()
        self._cancelling: _CancelCall | None = None
        self._maintenance: _Maintenance[object] | None = None
        self._wakes, self._wake_receiver = trio.open_memory_channel[None](1)
        self._task: trio.lowlevel.Task | None = None
        # Whether code of a turn or of maintenance may be running below the task.
        self.busy_inside = False

    def bind(self, agent: Agent) -> None:
        """Become the driver of an agent: events carry it from here on."""
        self.agent = agent
        self.dispatch = Dispatcher(
            agent, self.commons.listeners, Listeners(), self.commons.contain
        )
        self.log.publish = self._publish
        self.log.on_recovered = self._recovered

    # --- verbs: input

    @enable_ki_protection
    def accept(
        self, message: MessageLike, queue: Queue, *, verb: str, passive: bool = False
    ) -> Sent:
        """Accept a message into a queue, and wake unless it is passive."""
        self.refuse_if_closed(verb)
        body = as_message(message, self.commons.make_id, passive=passive)
        record = self.log.fold.messages.get(body.id)
        if record is not None:
            if not same_body(record.body, body):
                raise MessageConflictError(body.id)
            return Sent(body.id, self.log.last_seq, duplicate=True)
        latched = self.converging and not passive and self.lifecycle == "live"
        if latched and body.kind == "user":
            queue = "next_turn"
        log = self.log
        with log.holding:
            end = len(log.fold.inbox.queue(queue))
            seq = log.commit(InboxSpliced(queue, end, inserted=(body,)))
            started = False
            if latched:
                self.latch.add(body.id)
            elif not passive:
                started = self._want()
            self.note_inserted(queue, body)
            if started:
                self._start()
        self.commons.writer.kick(log)
        return Sent(body.id, seq)

    def wake(self) -> bool:
        """Drain what is parked; true if that started or latched a drain."""
        self.refuse_if_closed("wake")
        if self.lifecycle != "live" or not self.log.fold.inbox.has_work:
            return False
        if self.converging:
            latched, self.latch_wake = not self.latch_wake, True
            return latched
        already = self.wanted
        if self._want():
            self._start()
            return True
        return not already

    # --- verbs: stop

    @enable_ki_protection
    def cancel(
        self, cause: CancelCause, *, keep_inbox: bool, turn: int | None
    ) -> CancelReceipt:
        """Stop what runs and drop or park what waits; see `Agent.cancel`."""
        self.commons.check_thread("cancel")
        if turn is not None and turn != self.live_turn:
            return CancelReceipt(effective=False)
        if self._cancelling is not None:
            if not keep_inbox:
                self._cancelling.keep_inbox = False
            return CancelReceipt(effective=False)
        if not self._can_cancel(keep_inbox=keep_inbox):
            return CancelReceipt(effective=False)
        call = self._cancelling = _CancelCall(keep_inbox=keep_inbox)
        stopped: int | None = None
        dropped: tuple[UserMessage, ...] = ()
        with self.log.holding:
            try:
                self.dispatch.notify(CancelRequested, cause, keep_inbox, self.live_turn)
            finally:
                self._cancelling = None
            if call.keep_inbox:
                put_back(self.log)
            else:
                dropped = discard_all(self.log)
            kept = self.log.fold.inbox.pending_ids
            self._park()
            holder = self.holder
            if holder is not None and holder.reason is None:
                stopped = self.live_turn
                self.converging = stopped is not None or self._maintenance is not None
                self._stop(holder, cause.kind)
        if dropped:
            self.note_discarded(dropped)
        return CancelReceipt(
            effective=True,
            turn=stopped,
            dropped=tuple(message.id for message in dropped),
            kept=kept,
        )

    def begin_disposal(self) -> None:
        """Mark the agent as disposing and interrupt what runs; done at most once."""
        if self.lifecycle != "live":
            return
        self.lifecycle = "disposing"
        self._park()
        if self.holder is not None:
            self._stop(self.holder, "disposed")
        self._signal_wake()
        for child in tuple(self.children):
            child.begin_disposal()

    @property
    def live_turn(self) -> int | None:
        """The turn that can still be stopped: it has started and not ended."""
        return self.log.fold.open_turn if self.holder is not None else None

    def _can_cancel(self, *, keep_inbox: bool) -> bool:
        inbox = self.log.fold.inbox
        if self.holder is not None and self.holder.reason is None:
            return True
        if not keep_inbox and (inbox.pending_ids or inbox.claimed):
            return True
        return (self.wanted or self._latched()) and inbox.has_work

    def _park(self) -> None:
        self.wanted = False
        self.latch.clear()
        self.latch_wake = False

    def _stop(self, holder: TurnCancellation, kind: StopKind) -> None:
        """Stop a holder, tell its signal's observers, and have the stop watched."""
        if not holder.stop(kind):
            return
        assert holder.reason is not None
        for observer in holder.take_observers():
            try:
                observer(holder.reason)
            except Exception as error:  # noqa: BLE001  # observers may be anybody's; none may veto a stop
                self.commons.contain(error)
                self.dispatch.report(error, "an observer of the turn's signal")
        self.commons.watchdog.watch(self)

    # --- maintenance

    async def maintain(self, fn: Callable[[TurnSignal], Awaitable[T]]) -> T:
        """Run a function as the agent's only work; see `Agent.run_maintenance`."""
        self.refuse_if_closed("run_maintenance")
        if self.status != "idle" or self.lifecycle != "live":
            raise AgentBusyError(self.agent.id)
        holder = self.holder = TurnCancellation()
        job = _Maintenance(fn, holder)
        self._maintenance = job  # type: ignore[assignment]  # the driver only passes the result on
        self.status = "running"
        self._start()
        try:
            await job.done.wait()
        except trio.Cancelled:
            self._stop(holder, "user")
            with trio.CancelScope(shield=True):
                await job.done.wait()
            raise
        if job.result is None:
            raise MaintenanceCancelled(self.agent.id)
        return job.result.unwrap()

    async def _run_maintenance(self, job: _Maintenance[object]) -> None:
        """Run the function in the driver's task, under its own holder.

        Always a checkpoint.

        Cancellation:
          The holder's scope ends here; what the function returned or raised after a
          stop is dropped, a fault among it is reported.

        """
        holder = job.holder
        result: outcome.Outcome[object] | None = None
        error: BaseException | None = None
        self.busy_inside = True
        try:
            with holder.scope, self.work.doing("maintenance", repr(job.fn)):
                if holder.reason is None:
                    result = outcome.Value(await job.fn(holder.signal))
        except BaseException as caught:  # noqa: BLE001  # it is the caller's, whatever it is
            error = caught
            result = outcome.Error(caught)
        finally:
            self.busy_inside = False
        stopped = holder.reason is not None
        self.holder = self._maintenance = None
        if stopped:
            coincident = None if error is None else fault(error, stopped=True)
            if coincident is not None:
                self.dispatch.report(coincident, "maintenance, while it was stopped")
            result = None
        job.result = result
        self.converging = stopped and self.lifecycle == "live"
        await self.flush()
        job.done.set()

    # --- the task

    async def run(self) -> None:
        """Drain whenever woken, until disposal; then close the session.

        Always a checkpoint.

        Cancellation:
          The kernel never cancels it: a stop comes through the holder, the end
          through `begin_disposal`.

        """
        self._task = trio.lowlevel.current_task()
        initiator.set(self.agent)
        try:
            while self.lifecycle == "live":
                await self._wake_receiver.receive()
                await self._drain()
        except BaseException as error:  # noqa: BLE001  # nothing may stop the agent's closing; it leaves the kernel
            self.commons.crash(fatal_leaf(error) or error)
        finally:
            with trio.CancelScope(shield=True):
                await self._finish()

    async def _drain(self) -> None:
        """Run turns until nothing is wanted, then become idle.

        Always a checkpoint.

        Cancellation:
          As `run`.

        """
        if self._maintenance is not None:
            await self._run_maintenance(self._maintenance)
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
        await trio.lowlevel.cancel_shielded_checkpoint()

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

        Always a checkpoint.

        Cancellation:
          Shielded: a store that hangs keeps the agent running, and is reported.

        """
        with trio.CancelScope(shield=True), self.work.doing("flush", self.log.id):
            try:
                await self.commons.writer.flush(self.log, self.log.last_seq)
            except StorageError:
                return False
        return True

    def settle_turn(self, turn: int) -> None:
        """Make the outcomes of a turn final: its flush has settled."""
        self.settled_turn = turn
        self.outcomes_changed.set()
        self.outcomes_changed = trio.Event()

    def _become_idle(self) -> None:
        """Publish `idle`; then, if a latched message is still there, start again."""
        self.holder = None
        self.status = "idle"
        self.converging = False
        self.commons.watchdog.forget(self)
        self.became_idle.set()
        self.became_idle = trio.Event()
        self.dispatch.notify(StatusChanged, "idle")
        replay = self._latched()
        self.latch.clear()
        self.latch_wake = False
        if replay and self.lifecycle == "live" and self._want():
            self._start()

    async def _finish(self) -> None:
        """Wait for children, close the session, leave: the end of the agent.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller.

        """
        self.begin_disposal()
        for child in tuple(self.children):
            await child.gone.wait()
        put_back(self.log)
        try:
            with self.work.doing("flush", self.log.id):
                await self.commons.writer.close(self.log)
        except StorageError as error:
            self.close_failure = error
        self.lifecycle = "closed"
        if self.status == "running":
            self._become_idle()
        if self.parent is not None:
            self.parent.children.pop(self, None)
        self.agent.forget()
        self.dispatch.notify(AgentDisposed)
        self.dispatch.own.clear()
        self.log.publish = None
        self._wakes.close()
        self._wake_receiver.close()
        self.gone.set()
        self.settle_turn(self.settled_turn)

    # --- waking

    def _want(self) -> bool:
        """Want a drain; true if that made an idle agent running."""
        self.wanted = True
        if self.status == "running":
            return False
        self.status = "running"
        self.holder = TurnCancellation()
        return True

    def _start(self) -> None:
        """Publish `running` and wake the task."""
        self.dispatch.notify(StatusChanged, "running")
        self._signal_wake()

    def _signal_wake(self) -> None:
        """Wake the task; a full channel is a wake that is latched already."""
        try:
            self._wakes.send_nowait(None)
        except (trio.WouldBlock, trio.ClosedResourceError):
            return

    def _latched(self) -> bool:
        """Whether a message that arrived while converging is still pending."""
        pending = self.log.fold.inbox.pending_ids
        if self.latch_wake and self.log.fold.inbox.has_work:
            return True
        return bool(self.latch) and not self.latch.isdisjoint(pending)

    def _recovered(self) -> None:
        """Run what was asked for while the store could not be written."""
        if self.wanted and self.status == "idle" and self.lifecycle == "live":
            if self.log.fold.inbox.has_work and self._want():
                self._start()

    # --- for the parts

    def refuse_if_closed(self, verb: str) -> None:
        """Check the thread and that the agent is not closed."""
        self.commons.check_thread(verb)
        if self.log.closed:
            raise AgentDisposedError(self.agent.id)

    def refuse_own_turn(self, verb: str) -> None:
        """Refuse to wait, inside a turn of this agent, for that turn's end."""
        if self.inside_own_turn():
            raise OwnTurnError(self.agent.id, verb)

    def inside_own_turn(self) -> bool:
        """Whether the current task is the driver in a turn, or below it."""
        if not self.busy_inside:
            return False
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None:
            if task is self._task:
                return True
            nursery = task.parent_nursery
            task = None if nursery is None else nursery.parent_task
        return False

    def note_inserted(self, queue: Queue, message: UserMessage) -> None:
        """Notify `agent/inbox/inserted`."""
        self.dispatch.notify(InboxInserted, queue, (message,))

    def note_discarded(self, messages: tuple[UserMessage, ...]) -> None:
        """Notify `agent/inbox/discarded` and release who waits for an outcome."""
        self.dispatch.notify(InboxDiscarded, messages)
        self.outcomes_changed.set()
        self.outcomes_changed = trio.Event()

    @property
    def stopping_since(self) -> float | None:
        """When the stop or the write that is going on began; see `Watched`."""
        if self.status != "running" and self.gone.is_set():
            return None
        stopped = None if self.holder is None else self.holder.stopped_at
        return stopped if stopped is not None else self.commons.writer.writing_since

    def report_stuck(self) -> None:
        """Publish `agent/stuck`."""
        self.dispatch.notify(AgentStuck, self.work.blockers())

    def _publish(self, event: SessionEvent) -> None:
        self.dispatch.notify(Appended, event)


