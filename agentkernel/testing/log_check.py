"""The invariants of a session's log, checked one event after the other.

`check_log` reads a log as a stranger would: it keeps books of its own and shares no
code with the kernel's folds, so that a fault in those cannot hide itself. What it
holds a log to is what the kernel promises of every log, whatever was stopped,
refused, retried or cut short on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Never, NoReturn, TypeAlias, final

import msgspec

from agentkernel import (
    ApprovalAsked,
    ApprovalDecided,
    AssistantReplied,
    ChunkStreamed,
    Ending,
    Fact,
    HookInvoked,
    HookReturned,
    InboxSpliced,
    MessageEntered,
    ReasoningChunk,
    RequestConfigured,
    RetryScheduled,
    SessionEvent,
    SessionHeader,
    StepEnded,
    StepStarted,
    TextBlock,
    TextChunk,
    ToolCall,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)

from .inbox_check import InboxBooks, MessageFate, Pairs

__all__ = ["LogReport", "MessageFate", "check_log"]


class LogReport(msgspec.Struct, frozen=True):
    """What `check_log` read, for a test to go on from.

    Attributes:
      turns: the ending of each turn, None for one that is open.
      messages: what became of each message, by its id.
      entered: the ids that entered each turn, in order.

    """

    turns: dict[int, Ending | None]
    messages: dict[str, MessageFate]
    entered: dict[int, tuple[str, ...]]


def check_log(
    events: Iterable[SessionEvent | Fact], *, whole: bool = True
) -> LogReport:
    """Check the invariants of a log, from its first event on. Not a checkpoint.

    Numbers are contiguous. Turns and steps are balanced, numbered, and end once;
    nothing of a turn follows its end. Every message that was accepted is in exactly
    one place. Every call has one result, behind its assistant message, and a
    `tool/call` only between the two. An answer holds what was streamed in its own
    attempt and nothing of a failed one. An aborted ending says no more than that.

    Args:
      events: the events of one session, or the bare facts of one; a session's whole
        log comes from `session.read()`.
      whole: whether nothing may be open at the end: True for the log of an idle
        agent or of a closed session, False for a log that was cut anywhere.

    Returns:
      What became of the turns and the messages.

    Raises:
      AssertionError: if a rule is broken; it names the event and the rule.

    """
    check = _LogCheck()
    for event in events:
        check.take(event)
    if whole:
        check.finish()
    return check.report()


@final
class _Step:
    """The open step: its attempt, what was streamed in it, and its calls."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.attempt = 1
        self.streamed: list[TextChunk | ReasoningChunk] = []
        # Whether anything was streamed, in this attempt or one before.
        self.chunked = False
        self.replied = False
        # Calls without a result, and whether their body was announced.
        self.open_calls: dict[str, ToolCall] = {}
        self.announced: set[str] = set()


@final
class _LogCheck:
    """The books of one check."""

    def __init__(self) -> None:
        self._seq = 0
        self._where = "the log"
        self._turn: int | None = None
        self._step: _Step | None = None
        self._steps = 0
        self._turns: dict[int, Ending | None] = {}
        self._entered: dict[int, list[str]] = {}
        self._call_ids: set[str] = set()
        self._inbox = InboxBooks(self._rule)
        self._request: RequestConfigured | None = None
        self._questions = Pairs("approval", self._rule)
        self._hooks = Pairs("hook", self._rule)
        self._handlers: dict[type[object], Callable[[Never], None]] = {
            TurnStarted: self._turn_started,
            TurnEnded: self._turn_ended,
            StepStarted: self._step_started,
            StepEnded: self._step_ended,
            MessageEntered: self._message_entered,
            ChunkStreamed: self._chunk,
            AssistantReplied: self._replied,
            ToolCalled: self._tool_called,
            ToolReturned: self._tool_returned,
            InboxSpliced: self._spliced,
            RequestConfigured: self._configured,
            RetryScheduled: self._retry,
            ApprovalAsked: self._asked,
            ApprovalDecided: self._decided,
            HookInvoked: self._hook_invoked,
            HookReturned: self._hook_returned,
        }

    def take(self, event: SessionEvent | Fact) -> None:
        """Check the next event."""
        self._seq += 1
        fact = event
        if isinstance(event, SessionEvent):
            fact = event.data
            self._where = f"event {event.seq} ({fact.TYPE})"
            self._rule(
                event.seq == self._seq,
                "numbers count from 1 without a gap",
                f"expected {self._seq}",
            )
        else:
            self._where = f"event {self._seq} ({event.TYPE})"
        self._rule(
            isinstance(fact, SessionHeader) == (self._seq == 1),
            "a log has one session/header, and begins with it",
        )
        handler = self._handlers.get(type(fact))
        if handler is not None:
            handler(fact)  # type: ignore[arg-type]  # the table pairs them  # pyright: ignore[reportArgumentType]

    def finish(self) -> None:
        """Check that nothing is left open."""
        self._where = f"the end, behind event {self._seq}"
        self._rule(self._turn is None, "every turn ends", f"turn {self._turn} is open")
        self._inbox.no_claims("at the end of a log")
        self._questions.none_open()
        self._hooks.none_open()

    def report(self) -> LogReport:
        """Say what was read."""
        entered = {turn: tuple(ids) for turn, ids in self._entered.items()}
        return LogReport(dict(self._turns), self._inbox.fates(), entered)

    def _rule(self, kept: bool, rule: str, detail: str = "") -> None:  # noqa: FBT001 - it reads as an assertion
        if not kept:
            self._fail(rule, detail)

    def _fail(self, rule: str, detail: str) -> NoReturn:
        raise AssertionError(
            f"{self._where}: {rule}" + (f": {detail}" if detail else "")
        )

    def _in_step(self, fact: _StepFact) -> _Step:
        """Find the open step that a fact says it belongs to."""
        step = self._step
        if step is None or (fact.turn, fact.step) != (self._turn, step.number):
            opened = "none" if step is None else f"step {step.number}"
            self._fail(
                "what belongs to a step stands inside it",
                f"turn {fact.turn} step {fact.step}, open is turn {self._turn}, {opened}",
            )
        return step

    def _turn_started(self, fact: TurnStarted) -> None:
        self._rule(self._turn is None, "turns do not overlap")
        self._rule(
            fact.turn == len(self._turns) + 1,
            "turns are numbered from 1",
            f"{fact.turn} follows {len(self._turns)}",
        )
        self._turn, self._steps = fact.turn, 0
        self._turns[fact.turn] = None
        self._entered[fact.turn] = []
        self._inbox.turn_started()

    def _turn_ended(self, fact: TurnEnded) -> None:
        self._rule(
            fact.turn == self._turn,
            "a turn ends once, and nothing of it follows",
            f"turn {fact.turn}, open is {self._turn}",
        )
        self._rule(self._step is None, "steps end before their turn")
        self._inbox.no_claims("when its turn ends")
        reason = fact.reason
        self._rule(
            reason.kind != "aborted" or reason == Ending("aborted"),
            "an aborted ending says nothing more",
        )
        self._turns[fact.turn] = reason
        self._turn = None

    def _step_started(self, fact: StepStarted) -> None:
        self._rule(self._step is None, "steps do not overlap")
        self._rule(fact.turn == self._turn, "a step stands inside its turn")
        self._steps += 1
        self._rule(
            fact.step == self._steps,
            "steps are numbered from 1 in their turn",
            f"{fact.step} follows {self._steps - 1}",
        )
        self._step = _Step(fact.step)
        self._inbox.step_started()

    def _step_ended(self, fact: StepEnded) -> None:
        step = self._in_step(fact)
        self._rule(
            not step.open_calls,
            "every call has its result before its step ends",
            ", ".join(step.open_calls),
        )
        shown = "".join(chunk.text for chunk in step.streamed)
        self._rule(
            step.replied or not shown.strip(),
            "what was shown is kept as an answer",
            repr(shown),
        )
        self._step = None

    def _message_entered(self, fact: MessageEntered) -> None:
        step, turn = self._step, self._turn
        if step is None or turn is None:
            self._fail("a message enters an open step", fact.message.id)
        self._rule(not step.replied, "input enters before its step's answer")
        self._inbox.entered(fact.message)
        self._entered[turn].append(fact.message.id)

    def _chunk(self, fact: ChunkStreamed) -> None:
        step = self._in_step(fact)
        self._rule(not step.replied, "chunks come before their message")
        self._rule(
            fact.attempt == step.attempt,
            "chunks belong to the open attempt",
            f"attempt {fact.attempt}, open is {step.attempt}",
        )
        if isinstance(fact.chunk, TextChunk | ReasoningChunk):
            step.streamed.append(fact.chunk)
            step.chunked = True

    def _replied(self, fact: AssistantReplied) -> None:
        step = self._in_step(fact)
        self._rule(not step.replied, "a step has one answer")
        step.replied = True
        message = fact.message
        self._rule(
            fact.interrupted == message.interrupted,
            "the event and its message agree on whether it was interrupted",
        )
        if step.chunked or fact.interrupted:
            self._same_as_streamed(step, fact)
        if fact.interrupted:
            self._rule(not message.calls, "an interrupted answer carries no calls")
        for call in message.calls:
            self._rule(
                call.call_id not in self._call_ids,
                "a call id is used once in a session",
                call.call_id,
            )
            self._call_ids.add(call.call_id)
            step.open_calls[call.call_id] = call

    def _same_as_streamed(self, step: _Step, fact: AssistantReplied) -> None:
        """Compare an answer with the chunks of its attempt, kind by kind."""
        said: dict[str, str] = {"text": "", "reasoning": ""}
        kept = dict(said)
        for chunk in step.streamed:
            said["text" if isinstance(chunk, TextChunk) else "reasoning"] += chunk.text
        for block in fact.message.content:
            if not isinstance(block, ToolCall):
                name = "text" if isinstance(block, TextBlock) else "reasoning"
                kept[name] += block.text
        self._rule(
            said == kept,
            "an answer holds what was streamed in its attempt",
            f"{kept}, streamed {said}",
        )
        self._rule(
            not fact.interrupted or bool("".join(said.values()).strip()),
            "an interrupted answer shows something",
        )

    def _tool_called(self, fact: ToolCalled) -> None:
        step = self._in_step(fact)
        call = step.open_calls.get(fact.call_id)
        if call is None:
            self._fail("tool/call stands between a call and its result", fact.call_id)
        self._rule(fact.call_id not in step.announced, "a call runs once", fact.call_id)
        self._rule(call.name == fact.name, "a call keeps its name", fact.name)
        self._rule(
            call.problem is None, "a call with a problem never runs", fact.call_id
        )
        step.announced.add(fact.call_id)

    def _tool_returned(self, fact: ToolReturned) -> None:
        step = self._in_step(fact)
        call = step.open_calls.pop(fact.call_id, None)
        if call is None:
            known = fact.call_id in self._call_ids
            self._fail(
                "every call has exactly one result, behind its message",
                f"{fact.call_id} {'has one already' if known else 'is no call'}",
            )
        self._rule(
            (fact.message.call_id, fact.message.name, fact.message.error)
            == (fact.call_id, call.name, fact.error),
            "a result and its message say the same",
            fact.call_id,
        )

    def _spliced(self, fact: InboxSpliced) -> None:
        if fact.outcome == "claimed":
            self._rule(
                self._turn is not None and self._step is None,
                "input is claimed inside a turn, between steps",
            )
        self._inbox.spliced(fact)

    def _configured(self, fact: RequestConfigured) -> None:
        self._rule(self._step is not None, "a request stands inside a step")
        self._rule(fact != self._request, "request/header is written on change")
        self._request = fact

    def _retry(self, fact: RetryScheduled) -> None:
        step = self._in_step(fact)
        self._rule(not step.replied, "a step with an answer is not tried again")
        self._rule(
            fact.attempt == step.attempt,
            "llm/retry closes the open attempt",
            f"attempt {fact.attempt}, open is {step.attempt}",
        )
        step.attempt += 1
        step.streamed.clear()

    def _asked(self, fact: ApprovalAsked) -> None:
        self._questions.opened(fact.approval_id)

    def _decided(self, fact: ApprovalDecided) -> None:
        self._questions.closed(fact.approval_id)

    def _hook_invoked(self, fact: HookInvoked) -> None:
        self._hooks.opened(fact.hook_id)

    def _hook_returned(self, fact: HookReturned) -> None:
        self._hooks.closed(fact.hook_id)


_StepFact: TypeAlias = (
    StepEnded
    | ChunkStreamed
    | AssistantReplied
    | ToolCalled
    | ToolReturned
    | RetryScheduled
)
