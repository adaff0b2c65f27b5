"""Arbitrary interleavings of all verbs, against the reference model."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

import agentkernel as ak
from agentkernel.testing import (
    check_log,
    check_messages,
    install_yielding_listeners,
)
from tests.property.machines import Answer, Host, QueueName, Reference, World

pytestmark = pytest.mark.clause(
    "C5a", "C6b", "C6d", "C7a", "C7b", "C7c", "C8a", "C8c", "C12a", "C12b", "C13c",
    "I2a", "I2b", "I3a", "I3b", "I3c", "I4a", "I4b", "I4c", "T9",
)  # fmt: skip

SMALL = st.integers(0, 5)
QUEUES: st.SearchStrategy[QueueName] = st.sampled_from(["next_turn", "next_step"])
ANSWERS: st.SearchStrategy[Answer] = st.sampled_from(["text", "call", "error"])


def message(message_id: str, text: str = "") -> ak.UserMessage:
    return ak.UserMessage(message_id, (ak.TextBlock(text or f"say {message_id}"),))


class AgentMachine(RuleBasedStateMachine):
    """One agent, one reference; every rule is one verb or some scheduling passes."""

    kernel: ak.Kernel
    handle: ak.AgentHandle
    agent: ak.Agent

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.world = World()
        self.reference = Reference()
        self.stack = AsyncExitStack()
        self.store = ak.MemoryStore()
        self.sent: list[str] = []
        self.read = 0
        self.maintained: list[str] = []
        self.opened = self.ended = False
        self.leave = trio.Event()
        # The events of earlier lives, which a resumed agent's memory has not.
        self.earlier: tuple[ak.SessionEvent, ...] = ()

    @initialize()
    def open(self) -> None:
        async def opened() -> None:
            self.kernel = await self.stack.enter_async_context(
                ak.open_kernel(self.store, clock=lambda: 0.0, strict=True)
            )
            self.kernel.models.register("world", self.world)
            install_yielding_listeners(self.kernel)
            self.attach(
                await self.kernel.create("s", model="world", tools=[self.world])
            )

        # The kernel's block is entered and left in one task that waits in between.
        async def life() -> None:
            async with self.stack:
                await opened()
                self.opened = True
                await self.leave.wait()
            self.ended = True

        self.host.start(life)
        self.host.settle()

    def attach(self, handle: ak.AgentHandle) -> None:
        self.handle = handle
        self.agent = handle.agent
        self.world.log = self.whole_log
        self.agent.on(ak.StatusChanged, self.status_changed)

    def whole_log(self) -> list[ak.SessionEvent]:
        """What memory holds: the events of earlier lives are in the store."""
        tail = list(self.agent.session.events)
        return [*self.earlier, *tail]

    def status_changed(self, payload: ak.StatusChanged) -> None:
        self.watch(lambda: self.reference.became(payload.status))

    def watch(self, note: object = None) -> None:
        """Tell the reference what the log says; keep what it objects to."""
        try:
            self.follow()
            if callable(note):
                note()
        except AssertionError as error:
            self.world.problems.append(f"{error!r}")

    def follow(self) -> None:
        events = self.whole_log()
        new, self.read = events[self.read :], len(events)
        for event in new:
            match event.data:
                case ak.TurnStarted(turn):
                    self.reference.turn_started(turn)
                case ak.InboxSpliced() as fact:
                    self.reference.spliced(fact)
                case ak.StepStarted():
                    self.reference.step_seen = True
                case ak.MessageEntered(entering):
                    self.reference.entered(entering.id)
                case ak.TurnEnded(turn, reason):
                    self.reference.turn_ended(turn, reason.kind)
                case _:
                    pass

    # --- input

    def send(self, verb: str, queue: QueueName) -> None:
        self.watch()
        message_id = f"m{len(self.sent) + 1}"
        self.sent.append(message_id)
        self.reference.accept(message_id, queue, passive=verb == "inject")
        sent = getattr(self.agent, verb)(message(message_id))
        assert (sent.id, sent.duplicate) == (message_id, False)

    @rule()
    def followup(self) -> None:
        self.send("followup", "next_turn")

    @rule()
    def steer(self) -> None:
        self.send("steer", "next_step")

    @rule()
    def inject(self) -> None:
        self.send("inject", "next_step")

    @rule()
    def wake(self) -> None:
        self.watch()
        expected = self.reference.wake()
        assert self.agent.wake() is expected

    @precondition(lambda self: self.sent)
    @rule(which=SMALL, same=st.booleans())
    def send_again(self, which: int, *, same: bool) -> None:
        """An id that was accepted is a duplicate with its body, else a conflict.

        A duplicate of a message that is still pending wakes, as its first send did.
        """
        self.watch()
        message_id = self.sent[which % len(self.sent)]
        if same:
            if self.reference.place_of(message_id):
                self.reference.wake()
            assert self.agent.followup(message(message_id)).duplicate
        else:
            with pytest.raises(ak.MessageConflictError):
                self.agent.followup(message(message_id, "something else"))

    # --- the inbox

    @precondition(lambda self: self.sent)
    @rule(which=SMALL)
    def remove(self, which: int) -> None:
        self.watch()
        message_id = self.sent[-1 - which % len(self.sent)]
        place = self.reference.place_of(message_id)
        if place is None:
            with pytest.raises(ak.MessageNotPendingError):
                self.agent.inbox.remove(message_id)
            return
        self.reference.queues[place].remove(message_id)
        self.reference.gone[message_id] = "discarded"
        self.agent.inbox.remove(message_id)

    @precondition(lambda self: self.sent)
    @rule(which=SMALL, index=SMALL, to=st.none() | QUEUES)
    def move(self, which: int, index: int, to: QueueName | None) -> None:
        self.watch()
        message_id = self.sent[-1 - which % len(self.sent)]
        place = self.reference.place_of(message_id)
        if place is None:
            with pytest.raises(ak.MessageNotPendingError):
                self.agent.inbox.move(message_id, index, queue=to)
            return
        self.reference.queues[place].remove(message_id)
        self.reference.queues[to or place].insert(index, message_id)
        self.agent.inbox.move(message_id, index, queue=to)

    @precondition(lambda self: self.sent)
    @rule(which=SMALL)
    def replace(self, which: int) -> None:
        self.watch()
        message_id = self.sent[-1 - which % len(self.sent)]
        if self.reference.place_of(message_id) is None:
            with pytest.raises(ak.MessageNotPendingError):
                self.agent.inbox.replace(message_id, "instead")
        else:
            self.agent.inbox.replace(message_id, "instead")

    # --- stopping

    @rule(behind=st.none() | st.integers(-1, 1), keep=st.booleans())
    def cancel(self, behind: int | None, *, keep: bool) -> None:
        """A cancel of a turn that is not the live one does nothing."""
        self.watch()
        turn = None if behind is None else len(self.reference.endings) + 1 + behind
        expected = self.reference.cancel(keep_inbox=keep, turn=turn)
        receipt = self.agent.cancel(keep_inbox=keep, turn=turn)
        assert (receipt.effective, receipt.turn, receipt.kept) == (
            expected.effective,
            expected.turn,
            expected.kept,
        )
        assert sorted(receipt.dropped) == sorted(expected.dropped)

    @rule()
    def cancel_and_replace(self) -> None:
        """Stop and send in one instant, as an interface does that interrupts."""
        self.cancel(None, keep=False)
        self.followup()

    # --- time

    @rule(passes=st.integers(1, 12))
    def tick(self, passes: int) -> None:
        for _ in range(passes):
            self.host.tick()

    @rule()
    def settle(self) -> None:
        self.host.settle()
        self.watch()
        reference = self.reference
        held = bool(self.world.waiting)
        assert (self.agent.status == "running") is held
        assert reference.status == self.agent.status
        assert bool(self.agent.blockers()) is held

    @precondition(lambda self: self.world.waiting)
    @rule(which=SMALL, answer=ANSWERS)
    def tell(self, which: int, answer: Answer) -> None:
        """Open one gate: a request or a tool goes on."""
        self.watch()
        waiting = self.world.waiting[which % len(self.world.waiting)]
        if waiting.told.is_set():
            return
        waiting.tell(answer)
        # A turn that is stopped first ends `aborted` all the same.
        if answer == "error" and waiting.kind == "request":
            self.reference.failed = True

    @rule(answers=st.lists(ANSWERS, min_size=1, max_size=4))
    def go_on(self, answers: list[Answer]) -> None:
        """Let the agent come as far as these answers carry it."""
        self.settle()
        for answer in answers:
            if self.world.waiting:
                self.tell(0, answer)
                self.settle()

    @precondition(lambda self: self.agent.status == "idle")
    @rule()
    def maintain(self) -> None:
        """Maintenance waits at a gate of its own; what it is told ends it."""

        async def tidy(_signal: ak.TurnSignal) -> None:
            await self.world.wait(0, "tool")

        async def maintain() -> None:
            try:
                await self.agent.run_maintenance(tidy)
                self.maintained.append("done")
            except ak.MaintenanceCancelled:
                self.maintained.append("cancelled")

        self.host.settle()
        if self.agent.status == "idle":
            self.watch()
            self.reference.status = "running"
            self.reference.holder = self.reference.maintaining = True
            self.host.start(maintain)
            self.host.settle()

    @rule(passes=st.integers(0, 5))
    def dispose_and_resume(self, passes: int) -> None:
        """Disposal keeps what is pending; a resume finds it, parked."""

        async def dispose() -> None:
            # It begins when this task first runs; until then everything goes on.
            self.watch()
            self.reference.disposing = True
            await self.handle.dispose()

        self.host.start(dispose)
        for _ in range(passes):
            self.host.tick()
        self.host.run(dispose)
        self.watch()
        old = self.agent
        with pytest.raises(ak.AgentDisposedError):
            old.followup("too late")
        assert not old.cancel().effective
        self.earlier = tuple(self.whole_log())
        check_log(self.earlier)

        async def resume() -> ak.AgentHandle:
            return await self.kernel.resume("s", tools=[self.world])

        handle = self.host.run(resume)
        assert not handle.agent.session.events, "a resume has nothing to repair"
        self.attach(handle)
        self.reference.disposing = False
        self.reference.status = "idle"

    # --- always

    @invariant()
    def agrees(self) -> None:
        """The inbox is what the reference says, after every rule."""
        self.watch()
        assert not self.world.problems, self.world.problems
        inbox, reference = self.agent.inbox, self.reference
        assert [m.id for m in inbox.next_turn] == reference.queues["next_turn"]
        assert [m.id for m in inbox.next_step] == reference.queues["next_step"]
        assert self.agent.status == reference.status

    def teardown(self) -> None:
        """Open every gate, let all end, and read the whole log."""
        try:
            if self.opened:
                self.end()
        finally:
            self.host.close()

    def end(self) -> None:
        self.world.open = False
        for waiting in self.world.waiting:
            waiting.tell("text")
        self.host.settle()
        assert self.agent.status == "idle"
        log = self.whole_log()
        self.leave.set()
        self.host.settle()
        assert self.ended, "the kernel's block does not end"
        report = check_log(log)
        for message_id, turn in self.reference.entered_in.items():
            assert report.messages[message_id] == "entered"
            assert message_id in report.entered[turn]
        assert set(report.messages) == set(self.sent)
        for messages in self.world.requests:
            check_messages(messages)


AgentMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAgent = AgentMachine.TestCase


class LongAgentMachine(AgentMachine):
    """The same, for minutes."""


LongAgentMachine.TestCase.settings = settings(
    AgentMachine.TestCase.settings, max_examples=1500
)
TestAgentAtLength = pytest.mark.long(LongAgentMachine.TestCase)
