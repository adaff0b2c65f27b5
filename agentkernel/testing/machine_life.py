"""The life of a state machine's agent: what is opened, observed and checked.

`LivingMachine` is the half of `AgentMachine` that has no verbs. It needs Hypothesis.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, nullcontext, suppress

import trio
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

import agentkernel as ak

from .log_check import check_log
from .machine_crash import check_crash, read_all
from .machine_host import Host
from .machine_reference import QueueName, Reference
from .machine_world import Answer, World
from .models import call
from .settled import check_messages
from .stage import install_yielding_listeners

__all__ = ["LivingMachine"]

_SESSION = "machine"
_MOST_ROUNDS = 100


class LivingMachine(RuleBasedStateMachine):
    """One agent and one reference, opened, observed and ended.

    Made to be subclassed by `AgentMachine`, which says what there is to override.

    """

    kernel: ak.Kernel
    handle: ak.AgentHandle
    agent: ak.Agent

    def __init__(self) -> None:
        super().__init__()
        self.host: Host = Host()
        self.world: World = World()
        self.reference: Reference = Reference()
        self.sent: list[str] = []
        self.problems: list[str] = []
        self._store = ak.MemoryStore()
        # What was followed of the log, from its first event on.
        self._log: list[ak.SessionEvent] = []
        self._cancelling = False
        self._opened = self._ended = False
        self._leave = trio.Event()

    # --- what a subclass says

    def install(self, kernel: ak.Kernel) -> None:
        """Put things into the kernel, before it has an agent."""
        install_yielding_listeners(kernel)

    def revive(self, kernel: ak.Kernel) -> None:
        """Put into another kernel what sees to sessions that a crash has cut off.

        A copy of the agent's session is resumed there, and ends without a turn.
        """
        kernel.models.register("world", self.world)

    def tools(self) -> Iterable[ak.Tool]:
        """Make the tools of the agent; asked again at each resume."""
        return (self.world.tool("look"),)

    def answers(self) -> st.SearchStrategy[Answer]:
        """Say what whoever waits may be told."""
        refused = ak.ModelError("refused", code="invalid-request")
        return st.sampled_from([("far",), ("far", call("look")), (refused,)])

    def expects(self, message: ak.UserMessage) -> bool:
        """Whether somebody else may have sent a message to the agent."""
        return False

    def expects_cancel(self, payload: ak.CancelRequested) -> bool:
        """Whether somebody else may have asked for a stop of the agent."""
        return False

    def working(self) -> set[str]:
        """Name the agents whose work the agent's turn waits for, itself included."""
        return {self.agent.id}

    def held(self) -> list[tuple[str, object]]:
        """List what waits for the machine, each with the id of the agent it is for."""
        return [(waiting.agent, waiting) for waiting in self.world.waiting]

    def release(self) -> None:
        """Let what is held come to its end; called until nothing is held any more."""
        self.world.close()

    def check_settled(self) -> None:
        """Check what must be true whenever every task waits.

        Raises:
          AssertionError: if it is not.

        """
        working = self.working()
        holders = [held for agent, held in self.held() if agent in working]
        status = self.agent.status
        assert (status == "running") is bool(holders), f"{status}, held by {holders}"
        expected = self.reference.status
        assert status == expected, f"{status}, expected is {expected}"
        blockers = self.agent.blockers()
        assert bool(blockers) is bool(holders), f"{blockers}, held by {holders}"

    def check_ended(self, agent: ak.Agent, log: Sequence[ak.SessionEvent]) -> None:
        """Check the log of an agent, anybody's, that has just ended.

        Raises:
          AssertionError: if it breaks a rule.

        """
        check_log(log)

    # --- the kernel

    @initialize()
    def open(self) -> None:
        """Open kernel and agent."""
        self.host.start(self._live)
        self.host.settle()

    async def _live(self) -> None:
        """Be the kernel's block, which is entered and left in one task.

        Always a checkpoint.

        Cancellation:
          As `open_kernel`.

        """
        async with ak.open_kernel(
            self._store, clock=lambda: 0.0, strict=True
        ) as self.kernel:
            self.kernel.models.register("world", self.world)
            self.kernel.on(ak.AgentDisposed, self._agent_gone)
            self.install(self.kernel)
            self._attach(
                await self.kernel.create(_SESSION, model="world", tools=self.tools())
            )
            self._opened = True
            await self._leave.wait()
            self.watch(self.reference.dispose)
        self._ended = True

    def _attach(self, handle: ak.AgentHandle) -> None:
        self.handle = handle
        self.agent = agent = handle.agent
        self.world.on_request = self._asked
        agent.on(ak.StatusChanged, self._status_changed)
        agent.on(ak.Appended, lambda _payload: self.watch())
        agent.on(ak.InboxInserted, lambda _payload: self.watch())
        agent.on(ak.CancelRequested, self._cancel_requested)
        self.watch()

    # --- what the machine sees

    @property
    def log(self) -> tuple[ak.SessionEvent, ...]:
        """The agent's whole log as far as it was followed, earlier lives included."""
        return tuple(self._log)

    def watch(self, note: Callable[[], object] | None = None) -> None:
        """Tell the reference what the log says, then do `note`.

        What either objects to becomes a problem: observers must not raise.
        """
        try:
            seen = len(self._log)
            for event in self.agent.session.events:
                if event.seq > seen:
                    self._log.append(event)
                    self._follow(event.data)
            if note is not None:
                note()
        except AssertionError as error:
            self.problems.append(f"{error!r}")

    def _follow(self, fact: ak.Fact) -> None:
        known = self.reference.known
        if isinstance(fact, ak.InboxSpliced) and fact.outcome is None:
            strange = [m for m in fact.inserted if m.id not in known]
        elif isinstance(fact, ak.MessageEntered):
            strange = [fact.message] if fact.message.id not in known else []
        else:
            strange = []
        for message in strange:
            assert self.expects(message), f"nobody was to send {message}"
        self.reference.follow(fact)

    @contextmanager
    def own_cancel(self) -> Generator[None]:
        """Stop the agent in here; the reference was told before."""
        self._cancelling = True
        try:
            yield
        finally:
            self._cancelling = False

    def _status_changed(self, payload: ak.StatusChanged) -> None:
        self.watch(lambda: self.reference.became(payload.status))

    def _cancel_requested(self, payload: ak.CancelRequested) -> None:
        def note() -> None:
            assert self.expects_cancel(payload), f"nobody was to stop it: {payload}"
            self.reference.cancel(keep_inbox=payload.keep_inbox)

        if not self._cancelling:
            self.watch(note)

    def _agent_gone(self, payload: ak.AgentDisposed) -> None:
        def note() -> None:
            agent = payload.agent
            own = agent is self.agent
            log = self.log if own else agent.session.events
            if log and log[0].seq == 1:
                self.check_ended(agent, log)

        self.watch(note)

    def _asked(self, request: ak.ModelRequest) -> None:
        def note() -> None:
            check_messages(request.messages)
            if request.session_id == self.agent.id:
                users = (m for m in request.messages if isinstance(m, ak.UserMessage))
                shown, entered = [m.id for m in users], [*self.reference.entered_in]
                assert shown == entered, f"{entered} have entered, shown is {shown}"

        self.watch(note)

    @invariant()
    def agrees(self) -> None:
        """The agent is what the reference says, after every rule."""
        self.watch()
        assert not self.problems, self.problems
        inbox, reference = self.agent.inbox, self.reference
        found: dict[QueueName, list[str]] = {
            "next_turn": [message.id for message in inbox.next_turn],
            "next_step": [message.id for message in inbox.next_step],
        }
        expected = reference.queues
        assert found == expected, f"pending is {found}, expected is {expected}"
        status = self.agent.status
        assert status == reference.status, f"{status}, expected is {reference.status}"

    # --- ends

    async def _dispose(self) -> None:
        """Dispose of the agent.

        Always a checkpoint.

        Cancellation:
          As `AgentHandle.dispose`.

        """
        # It begins when this task first runs; until then everything goes on.
        self.watch()
        self.reference.dispose()
        await self.handle.dispose()

    async def _resume(self) -> ak.AgentHandle:
        """Resume the agent's session.

        Always a checkpoint.

        Cancellation:
          As `Kernel.resume`.

        """
        return await self.kernel.resume(_SESSION, tools=self.tools())

    async def _crash(self, lost: int) -> None:
        """Have a copy of the session, less its last events, go on after a crash.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        log = self.log
        events = log[: max(1, len(log) - lost)]
        await check_crash(self.agent.id, events, self.revive, self.check_ended)

    def teardown(self) -> None:
        """Let everything end, and read what is left.

        After a failure there is no more to be learned: that one is to be seen.
        """
        failed = sys.exc_info()[0] is not None
        try:
            if self._opened and not failed:
                self._end()
        finally:
            with suppress(Exception) if failed else nullcontext():
                self.host.close()

    def _end(self) -> None:
        for _ in range(_MOST_ROUNDS):
            self.host.settle()
            self.release()
            if not self.held():
                break
        self.host.settle()
        self.agrees()
        self.check_settled()
        assert self.agent.status == "idle", f"held by {self.held()}"
        self._leave.set()
        self.host.settle()
        assert self._ended, "the kernel's block does not end"
        assert not self.problems, self.problems
        report = check_log(self._log)
        for message_id, turn in self.reference.entered_in.items():
            assert message_id in report.entered[turn], f"{message_id} is not in {turn}"
        fates: dict[str, str] = dict.fromkeys(self.reference.known, "pending")
        fates |= dict.fromkeys(self.reference.entered_in, "entered")
        fates |= self.reference.gone
        found = dict(report.messages)
        assert found == fates, f"the fates are {found}, expected are {fates}"
        self.host.run(self._check_stored)

    async def _check_stored(self) -> None:
        """Resume the session elsewhere, and find there what was here, once.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        shown = tuple(self.agent.session.messages)
        async with ak.open_kernel(self._store, clock=lambda: 0.0) as kernel:
            kernel.models.register("world", self.world)
            agent = (await kernel.resume(_SESSION)).agent
            stored = await read_all(agent.session)
            assert stored == self._log, "the store has what happened, and no more"
            again = tuple(agent.session.messages)
            assert again == shown, f"the history was {shown}, is {again}"
            pending = [m.id for m in (*agent.inbox.next_step, *agent.inbox.next_turn)]
            expected = self.reference.pending
            assert pending == expected, f"{pending}, expected are {expected}"
