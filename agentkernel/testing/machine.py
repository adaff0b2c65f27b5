"""A Hypothesis state machine that drives one agent by every verb, at any time.

    AgentMachine ─ verbs ─▶ agent ─▶ World (model and tools that wait to be told)
          │                   │
          └── Reference ◀── log and status

Subclass it to add what your application has: tools, listeners, bridges, rules of your
own. Whatever the rules do, the agent has to agree with the `Reference`, its log has to
be whole, and it must be running exactly as long as something holds it.

Needs Hypothesis: the extra `testing`. Nothing else of `agentkernel.testing` does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import trio

import agentkernel as ak

try:
    from hypothesis import strategies as st
    from hypothesis.stateful import precondition, rule
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "agentkernel.testing.machine needs Hypothesis:"
        " pip install 'trio-agentkernel[testing]'",
        name=_missing.name,
    ) from _missing

from .machine_life import LivingMachine
from .machine_reference import QueueName, Reference
from .machine_world import Answer, Waiting, World

__all__ = ["AgentMachine", "Answer", "QueueName", "Reference", "Waiting", "World"]

# How many may have to be told before a turn comes to a request.
_MOST_TOLD = 8

_SMALL = st.integers(0, 5)
_QUEUES: st.SearchStrategy[QueueName] = st.sampled_from(("next_turn", "next_step"))


def _answers_of(machine: AgentMachine) -> st.SearchStrategy[Answer]:
    return machine.answers()


_ANSWERS: st.SearchStrategy[Answer] = st.runner().flatmap(_answers_of)


class AgentMachine(LivingMachine):
    """One agent, one reference; every rule is one verb or some scheduling passes.

    A subclass overrides `install`, `revive` and `tools` to bring in what it has, `answers` to
    say what models and tools are told, `expects` and `expects_cancel` for what others
    than the machine send and stop, `held`, `working` and `release` for what waits for
    the machine outside of the world, `check_settled` for what must be true when every
    task waits, and `check_ended` for the log of an agent that has ended. Each calls `super()`, so that subclasses can be combined.

    Attributes:
      host: lets scheduling passes go by.
      world: the model `world` of the agent, and of every agent that uses it.
      reference: what the agent has to be like.
      kernel, handle, agent: there once it is opened; the last two change with a
        resume.
      sent: the ids of the machine's own messages.
      problems: what observers found; `agrees` fails if there are any.

    """

    # --- input

    def _send(self, verb: str, queue: QueueName) -> None:
        self.watch()
        message_id = f"m{len(self.sent) + 1}"
        self.sent.append(message_id)
        self.reference.accept(message_id, queue, passive=verb == "inject")
        sent = getattr(self.agent, verb)(_message(message_id))
        assert (sent.id, sent.duplicate) == (message_id, False), sent

    @rule()
    def followup(self) -> None:
        """Send what gets a turn of its own."""
        self._send("followup", "next_turn")

    @rule()
    def steer(self) -> None:
        """Send what joins the turn."""
        self._send("steer", "next_step")

    @rule()
    def inject(self) -> None:
        """Send what rides along."""
        self._send("inject", "next_step")

    @rule()
    def wake(self) -> None:
        """Drain what is parked."""
        self.watch()
        expected = self.reference.wake()
        started = self.agent.wake()
        assert started is expected, f"wake() is {started}, expected is {expected}"

    @precondition(lambda self: self.sent)
    @rule(which=_SMALL, same=st.booleans())
    def send_again(self, which: int, *, same: bool) -> None:
        """An id that was accepted is a duplicate with its body, else a conflict.

        A duplicate of a message that is still pending wakes, as its first send did.
        """
        self.watch()
        message_id = self.sent[which % len(self.sent)]
        if same:
            self.reference.send_again(message_id)
            sent = self.agent.followup(_message(message_id))
            assert sent.duplicate, f"accepted twice: {sent}"
        else:
            changed = _message(message_id, "something else")
            _refused(ak.MessageConflictError, lambda: self.agent.followup(changed))

    # --- the inbox

    def _chosen(self, which: int) -> tuple[str, QueueName | None]:
        """Choose one of the machine's messages, and find where it is pending."""
        self.watch()
        message_id = self.sent[-1 - which % len(self.sent)]
        return message_id, self.reference.place_of(message_id)

    @precondition(lambda self: self.sent)
    @rule(which=_SMALL)
    def remove(self, which: int) -> None:
        """Withdraw a message."""
        message_id, place = self._chosen(which)
        inbox = self.agent.inbox
        if place is None:
            _refused(ak.MessageNotPendingError, lambda: inbox.remove(message_id))
            return
        self.reference.remove(message_id, place)
        inbox.remove(message_id)

    @precondition(lambda self: self.sent)
    @rule(which=_SMALL, index=_SMALL, to=st.none() | _QUEUES)
    def move(self, which: int, index: int, to: QueueName | None) -> None:
        """Put a message elsewhere."""
        message_id, place = self._chosen(which)
        inbox = self.agent.inbox
        if place is None:
            _refused(
                ak.MessageNotPendingError,
                lambda: inbox.move(message_id, index, queue=to),
            )
            return
        self.reference.move(message_id, index, to)
        inbox.move(message_id, index, queue=to)

    @precondition(lambda self: self.sent)
    @rule(which=_SMALL)
    def replace(self, which: int) -> None:
        """Give a message another body."""
        message_id, place = self._chosen(which)
        inbox = self.agent.inbox
        if place is None:
            _refused(
                ak.MessageNotPendingError, lambda: inbox.replace(message_id, "instead")
            )
        else:
            inbox.replace(message_id, "instead")

    # --- stopping

    @rule(behind=st.none() | st.integers(-1, 1), keep=st.booleans())
    def cancel(self, behind: int | None, *, keep: bool) -> None:
        """Stop; a stop of a turn that is not the live one does nothing."""
        self.watch()
        turn = None if behind is None else len(self.reference.endings) + 1 + behind
        expected = self.reference.cancel(keep_inbox=keep, turn=turn)
        with self.own_cancel():
            receipt = self.agent.cancel(keep_inbox=keep, turn=turn)
        dropped = tuple(sorted(receipt.dropped))
        receipt = msgspec.structs.replace(receipt, dropped=dropped)
        dropped = tuple(sorted(expected.dropped))
        expected = msgspec.structs.replace(expected, dropped=dropped)
        assert receipt == expected, f"{receipt}, expected is {expected}"

    @rule()
    def cancel_and_replace(self) -> None:
        """Stop and send in one instant, as an interface does that interrupts."""
        self.cancel(None, keep=False)
        self.followup()

    # --- time

    @rule(passes=st.integers(1, 12))
    def tick(self, passes: int) -> None:
        """Let some scheduling passes go by."""
        for _ in range(passes):
            self.host.tick()

    @rule()
    def settle(self) -> None:
        """Let everything go on until every task waits."""
        self.host.settle()
        self.watch()
        self.check_settled()

    def _tell(self, waiting: Waiting, answer: Answer) -> None:
        self.watch()
        if waiting.told.is_set():
            return
        waiting.tell(answer)
        # A turn that is stopped first ends `aborted` all the same.
        own = (waiting.kind, waiting.agent) == ("request", self.agent.id)
        if own and any(isinstance(item, Exception) for item in answer):
            self.reference.failed = True

    @precondition(lambda self: self.world.waiting)
    @rule(which=_SMALL, answer=_ANSWERS)
    def tell(self, which: int, answer: Answer) -> None:
        """Tell one that waits how it goes on."""
        waiting = self.world.waiting
        self._tell(waiting[which % len(waiting)], answer)

    @rule(answers=st.lists(_ANSWERS, min_size=1, max_size=4))
    def go_on(self, answers: list[Answer]) -> None:
        """Let everything come as far as these answers carry it."""
        self.settle()
        for answer in answers:
            if self.world.waiting:
                self._tell(self.world.waiting[0], answer)
                self.settle()

    @rule(answer=_ANSWERS)
    def lead(self, answer: Answer) -> None:
        """Bring the agent to a request, of a new turn if it has none, and answer it.

        Rules of a subclass use this to come to what they are about.
        """
        self.settle()
        for _ in range(_MOST_TOLD):
            own = [one for one in self.world.waiting if one.agent == self.agent.id]
            requests = [one for one in own if one.kind == "request"]
            if self.agent.status == "idle":
                self.followup()
            elif requests:
                self._tell(requests[0], answer)
                self.settle()
                return
            elif own:
                self._tell(own[0], ("far",))
            else:
                return
            self.settle()

    @rule()
    def maintain(self) -> None:
        """Begin maintenance on an idle agent; it waits to be told."""
        agent = self.agent

        async def tidy(_signal: ak.TurnSignal) -> None:
            await self.world.wait("maintenance", agent.id)

        async def maintain() -> None:
            with suppress(ak.MaintenanceCancelled):
                await agent.run_maintenance(tidy)
            await trio.lowlevel.checkpoint()

        self.host.settle()
        if agent.status == "idle":
            self.watch()
            self.reference.maintain()
            self.host.start(maintain)
            self.host.settle()

    @rule(passes=st.integers(0, 5))
    def dispose_and_resume(self, passes: int) -> None:
        """Disposal keeps what is pending; a resume finds it, parked, and adds nothing."""
        self.host.start(self._dispose)
        for _ in range(passes):
            self.host.tick()
        self.host.run(self._dispose)
        self.watch()
        old = self.agent
        _refused(ak.AgentDisposedError, lambda: old.followup("too late"))
        late = old.cancel()
        assert not late.effective, f"a stop of what has ended: {late}"
        shown = tuple(old.session.messages)
        handle = self.host.run(self._resume)
        self.reference.resume()
        self._attach(handle)
        self.host.settle()
        added = self.agent.session.events
        assert not added, f"nothing is left to do after an end in order: {added}"
        again = tuple(self.agent.session.messages)
        assert again == shown, f"the history was {shown}, is {again}"
        self.check_settled()

    @rule(lost=st.integers(0, 40))
    def crash_a_copy(self, lost: int) -> None:
        """A copy of the session that a crash has cut is resumed whole, and once."""
        self.watch()
        self.host.run(partial(self._crash, lost))


def _message(message_id: str, text: str = "") -> ak.UserMessage:
    return ak.UserMessage(message_id, (ak.TextBlock(text or f"say {message_id}"),))


def _refused(error: type[Exception], verb: Callable[[], object]) -> None:
    """Check that a verb raises."""
    try:
        verb()
    except error:
        return
    raise AssertionError(f"{error.__name__} was to be raised")
