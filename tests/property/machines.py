"""One agent against a reference model, every verb at any time.

`Host` is a host loop with Trio as its guest: the verbs are called from its thread
between two scheduling passes, as a callback of an application's loop would, and a
rule can let one pass go by, or all that there are. `Reference` says what the inbox
holds, what a cancel answers, and which turns there may be. It follows the contract,
not the code: it learns from the log only *when* a turn starts or ends, which depends
on how many passes went by, and knows by itself *what* has to be in it.
"""

from __future__ import annotations

import queue
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Literal, TypeAlias, TypeVar

import outcome
import trio
import trio.testing

import agentkernel as ak
from agentkernel._session.fold import Fold

T = TypeVar("T")
QueueName: TypeAlias = Literal["next_turn", "next_step"]
Answer: TypeAlias = Literal["text", "call", "error"]


# Far above what any rule takes to come to rest.
MOST_PASSES = 20_000


class Host:
    """Runs Trio as a guest, one scheduling pass at a time."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._result: outcome.Outcome[None] | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._due.put,
            done_callback=self._done,
            clock=trio.testing.MockClock(autojump_threshold=0),
            host_uses_signal_set_wakeup_fd=True,
        )
        self._until(lambda: self._nursery is not None)

    def tick(self) -> None:
        """Let one scheduling pass go by."""
        assert self._token is not None
        self._token.run_sync_soon(int)
        self._due.get()()

    def settle(self) -> None:
        """Let passes go by until every task waits."""
        self.run(trio.testing.wait_all_tasks_blocked)

    def start(self, fn: Callable[[], Awaitable[object]]) -> None:
        """Start a task; it runs as passes go by."""
        assert self._nursery is not None
        self._nursery.start_soon(fn)

    def run(self, fn: Callable[[], Awaitable[T]]) -> T:
        """Run an async function to its end, and return what it returned."""
        results: list[outcome.Outcome[T]] = []

        async def catch() -> None:
            try:
                results.append(outcome.Value(await fn()))
            except Exception as error:  # noqa: BLE001 - raised in the host
                results.append(outcome.Error(error))

        self.start(catch)
        self._until(lambda: bool(results))
        return results[0].unwrap()

    def close(self) -> None:
        """End the guest run; raise what it raised."""
        assert self._nursery is not None
        self._nursery.cancel_scope.cancel()
        self._until(lambda: self._result is not None)
        assert self._result is not None
        self._result.unwrap()

    def _until(self, reached: Callable[[], bool]) -> None:
        for _ in range(MOST_PASSES):
            if reached():
                return
            self._due.get(timeout=20)()
        raise AssertionError("the agent spins: its tasks never come to rest")

    def _done(self, result: outcome.Outcome[None]) -> None:
        self._result = result

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()


class Waiting:
    """A request or a body that waits to be told how it goes on."""

    def __init__(self, turn: int, kind: Literal["request", "tool"]) -> None:
        self.turn = turn
        self.kind = kind
        self.answer: Answer | None = None
        self.told = trio.Event()

    def tell(self, answer: Answer) -> None:
        self.answer = answer
        self.told.set()


class World:
    """The agent's model and tool: what they are asked, and who waits."""

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.requests: list[tuple[ak.Message, ...]] = []
        # The log as the agent's memory holds it, told by the machine.
        self.log: Callable[[], Iterable[ak.SessionEvent]] = tuple
        self.problems: list[str] = []
        self.open = True
        self.spec = ak.ToolSpec("look", "Look.", {"type": "object"})
        self.parallel_safe = True
        self.max_seconds = None

    async def wait(self, turn: int, kind: Literal["request", "tool"]) -> Answer:
        if not self.open:
            await trio.lowlevel.checkpoint()
            return "text"
        waiting = Waiting(turn, kind)
        self.waiting.append(waiting)
        try:
            await waiting.told.wait()
        finally:
            self.waiting.remove(waiting)
        assert waiting.answer is not None
        return waiting.answer

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
        messages = tuple(request.messages)
        self.requests.append(messages)
        rebuilt = tuple(Fold.over(e.data for e in self.log()).history.view())
        if rebuilt != messages:
            self.problems.append(f"the log gives {rebuilt}, the request had {messages}")
        yield self._answer(request.turn)

    async def _answer(self, turn: int) -> AsyncIterator[ak.Chunk]:
        yield ak.TextChunk("so ")
        answer = await self.wait(turn, "request")
        if answer == "error":
            raise ak.ModelError("refused", code="invalid-request")
        yield ak.TextChunk("far")
        if answer == "call":
            yield ak.ToolCallChunk("look", "{}")
            yield ak.FinishChunk("tool-calls")
        else:
            yield ak.FinishChunk("stop")

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, call: ak.ToolInvocation) -> ak.ToolOutput:
        if await self.wait(call.turn, "tool") == "error":
            raise ValueError("the tool failed")
        return ak.ToolOutput.of("seen")


class Reference:
    """What the contract says of one agent's inbox, turns and stops."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, list[str]] = {"next_turn": [], "next_step": []}
        self.claimed: dict[str, QueueName] = {}
        self.passive: set[str] = set()
        self.gone: dict[str, str] = {}
        self.entered_in: dict[str, int] = {}
        self.endings: dict[int, str] = {}
        self.status = "idle"
        self.turn: int | None = None
        self.step_seen = False
        # Whether the holder of the next or the current turn can still be stopped.
        self.holder = False
        self.wanted = False
        # A turn, or maintenance, was stopped, and the agent is not idle yet.
        self.converging = False
        self.latch: set[str] = set()
        self.latched_wake = False
        self.disposing = False
        self.stopped = False
        self.failed = False
        self.maintaining = False

    # --- what can be seen

    @property
    def pending(self) -> list[str]:
        """In the order in which they would be claimed."""
        return [*self.queues["next_step"], *self.queues["next_turn"]]

    @property
    def owes_step(self) -> bool:
        return any(i not in self.passive for i in self.queues["next_step"])

    @property
    def has_work(self) -> bool:
        return bool(self.queues["next_turn"]) or self.owes_step

    def place_of(self, message_id: str) -> QueueName | None:
        for name, ids in self.queues.items():
            if message_id in ids:
                return name
        return None

    # --- the verbs

    def accept(self, message_id: str, queue_name: QueueName, *, passive: bool) -> None:
        if passive:
            self.passive.add(message_id)
        elif self.converging:
            queue_name = "next_turn"
            self.latch.add(message_id)
        else:
            self.want()
        self.queues[queue_name].append(message_id)

    def wake(self) -> bool:
        if not self.has_work:
            return False
        if self.converging:
            first, self.latched_wake = not self.latched_wake, True
            return first
        already = self.wanted
        self.want()
        return not already

    def want(self) -> None:
        self.wanted = True
        if self.status == "idle":
            self.status = "running"
            self.holder = True

    def cancel(self, *, keep_inbox: bool, turn: int | None) -> ak.CancelReceipt:
        # A stop of one turn has nothing to do once that turn was stopped or has ended.
        stoppable = self.turn if self.holder else None
        if turn is not None and turn != stoppable:
            return ak.CancelReceipt(effective=False)
        prospective = (self.wanted or self.latched) and self.has_work
        droppable = not keep_inbox and bool(self.pending or self.claimed)
        if not (self.holder or prospective or droppable):
            return ak.CancelReceipt(effective=False)
        dropped: list[str] = []
        if keep_inbox:
            self.put_back()
        else:
            dropped = [*self.claimed, *self.pending]
            self.gone.update(dict.fromkeys(dropped, "discarded"))
            self.claimed.clear()
            self.queues = {"next_turn": [], "next_step": []}
        self.wanted = False
        self.latch.clear()
        self.latched_wake = False
        stopped = None
        if self.holder:
            self.holder = False
            stopped = self.turn
            self.stopped = stopped is not None
            self.converging = stopped is not None or self.maintaining
        return ak.CancelReceipt(
            effective=True,
            turn=stopped,
            dropped=tuple(dropped),
            kept=tuple(self.pending),
        )

    @property
    def latched(self) -> bool:
        return self.latched_wake or bool(self.latch & set(self.pending))

    def put_back(self) -> None:
        for name in self.queues:
            back = [i for i, origin in self.claimed.items() if origin == name]
            self.queues[name] = back + self.queues[name]
        self.claimed.clear()

    # --- what the log says has happened

    def turn_started(self, turn: int) -> None:
        assert self.status == "running", "a turn starts only on a running agent"
        assert self.turn is None, "turns do not overlap"
        assert self.wanted, "nothing parked is drained without a wake"
        assert self.has_work, "no turn without input"
        assert turn == len(self.endings) + 1
        assert not self.disposing
        self.turn = turn
        self.holder = True
        self.stopped = self.failed = False
        self.step_seen = False
        self._claim("next_step", None)
        self._claim("next_turn", 1)

    def spliced(self, fact: ak.InboxSpliced) -> None:
        """A claim; other changes are consequences of verbs that are known here."""
        if fact.outcome != "claimed":
            return
        if self.step_seen:
            expected = self._claim("next_step", None)
        else:
            expected = [i for i, name in self.claimed.items() if name == fact.target]
        assert list(fact.removed) == expected, f"{fact} instead of {expected}"

    def _claim(self, name: QueueName, count: int | None) -> list[str]:
        taken = self.queues[name][:count]
        del self.queues[name][:count]
        self.claimed.update(dict.fromkeys(taken, name))
        return taken

    def entered(self, message_id: str) -> None:
        del self.claimed[message_id]
        assert self.turn is not None
        self.entered_in[message_id] = self.turn

    def turn_ended(self, turn: int, kind: str) -> None:
        assert turn == self.turn
        if self.disposing:
            assert kind == "disposed", kind
            self.put_back()
        elif self.stopped:
            assert kind == "aborted", kind
            self.put_back()
        elif self.failed:
            assert kind == "error", kind
            self.put_back()
            self.wanted = False
        else:
            assert kind == "completed", kind
            assert not self.owes_step, "a turn ends when it owes no step"
        assert not self.claimed
        self.endings[turn] = kind
        self.turn = None
        self.holder = False

    def became(self, status: str) -> None:
        if status == "running":
            assert self.status == "running", "running is a consequence of a wake"
            return
        assert self.turn is None, "an agent with a turn is not idle"
        waking = [i for i in self.pending if i not in self.passive]
        assert self.disposing or not (self.wanted and waking), "a wake was lost"
        self.status = "idle"
        self.holder = self.wanted = self.converging = self.maintaining = False
        again = self.latched and self.has_work and not self.disposing
        self.latch.clear()
        self.latched_wake = False
        if again:
            self.want()
