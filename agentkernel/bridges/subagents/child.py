"""The life of one awaited child, from its opening to its report.

    parent's call ─▶ Task ─▶ open ─▶ say ─▶ (stop) ─▶ dispose ─▶ Report

A child is an ordinary agent whose parent is the agent that asked for it. Its session
begins when the call does and is closed when the call ends; the store keeps it, and it
can be resumed there.

Invariants. A stop of the parent's turn reaches the child within the same call of
`cancel`, as `PARENT`, and so do the child's own children. Whoever waits here leaves
only when the child's turn has recorded its ending and the child is gone. The parent's
log names each child, durably, before it is told anything, and again, with its ending,
once it is gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import final

import msgspec
import trio

import agentkernel as ak

from .answer import ANSWER, AnswerTool
from .parked import look_after
from .schema import AnswerSchema
from .values import NO_ANSWER, ChildRefusedError, Persona, Report, add_usage, failure_of

__all__ = ["Task", "run_child"]

_PAGE = 500
_log = logging.getLogger(__name__)


class Task(msgspec.Struct, frozen=True, eq=False):
    """What a child is to do.

    Attributes:
      prompt: what it is told.
      persona: who it is.
      schema: what its answer has to look like; None for text.
      signal: of the turn that waits for it; None outside of one.
      call_id: the call that asked for it, if one did.
      description: a few words for people.
      detached: whether it goes on without the turn that started it.
      hidden: names of its parent's tools that it must not see.
      tools: tools of its own.
      on_open: called with the child before it is told anything.

    """

    prompt: str
    persona: Persona = Persona()
    schema: AnswerSchema | None = None
    signal: ak.TurnSignal | None = None
    call_id: str | None = None
    description: str | None = None
    detached: bool = False
    hidden: frozenset[str] = frozenset()
    tools: tuple[ak.Tool, ...] = ()
    on_open: Callable[[ak.Agent], object] | None = None


async def run_child(parent: ak.Agent, task: Task) -> Report:
    """Run a child of an agent until its work has ended, and end it.

    Always a checkpoint.

    Cancellation:
      The child's turn is cancelled as `PARENT`; the cancellation passes through once
      that turn has recorded its ending and the child is gone.

    Raises:
      ChildRefusedError: if its persona names tools that its parent has not.
      AgentDisposedError: if the parent has ended.
      KernelClosedError: if the kernel is ending.
      TurnCancelled: if the signal fired before the child began, or before it was
        reminded of its answer.
      StorageError: if the child's session cannot be opened, if the parent's log
        cannot be written before the child begins, or if the child has no outcome
        because its own cannot.

    """
    life = _Child(task)
    if task.signal is not None:
        # Whoever called may have waited for a place, out of the turn's own reach.
        task.signal.raise_if_cancelled()
    try:
        handle = await life.open(parent)
    except (ak.AgentDisposedError, ak.KernelClosedError):
        # If the turn that waits is being ended as well, that is all there is to say.
        if task.signal is not None:
            task.signal.raise_if_cancelled()
        raise
    child = handle.agent
    life.name_in(parent, child)
    try:
        async with handle:
            if task.on_open is not None:
                task.on_open(child)
            # A crash must not leave a child at work that no log names.
            await parent.session.flush()
            await life.work(child)
    except ak.StorageError as error:
        if not life.done:
            raise
        # The work is done: that its session could not be closed takes nothing away.
        _tell(parent, child, error)
    return life.report(child.id)


@final
class _Child:
    """What is known of one child while it lives; used by one task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._tool = None if task.schema is None else AnswerTool(task.schema)
        self._outcome: ak.Outcome | None = None
        # How the child's last turn ended, since it was last told something.
        self._turn: ak.Ending | None = None
        self._usage: ak.Usage | None = None
        self._problem: str | None = None
        # Whether the work has come to its end, well or not.
        self.done: bool = False

    async def open(self, parent: ak.Agent) -> ak.AgentHandle:
        """Create the child's session and agent.

        Always a checkpoint.

        Cancellation:
          There is no child.

        Raises:
          ChildRefusedError: if its persona names tools that its parent has not.

        """
        task = self._task
        own: Iterable[ak.Tool] = task.tools
        if self._tool is not None:
            own = (*task.tools, self._tool)
        names = {tool.spec.name for tool in own}
        allowed, limited = self._allowed(parent, names)
        options = msgspec.structs.replace(
            task.persona.options(parent.options),
            # In the header, so that a resume does not lift the limit.
            tools=tuple(sorted(allowed)) if limited else None,
        )
        if task.persona.fork:
            at = await _last_turn_end(parent.session)
            handle = await parent.kernel.fork(
                parent, at=at, tools=own, options=options, parent=parent
            )
        else:
            handle = await parent.kernel.create(
                tools=own, options=options, parent=parent
            )
        handle.agent.tools.keep(allowed | names)
        handle.agent.on(ak.Appended, self._observe)
        return handle

    def _allowed(self, parent: ak.Agent, own: set[str]) -> tuple[set[str], bool]:
        """Choose among the parent's tools; say also whether that leaves any out.

        Raises:
          ChildRefusedError: if the persona names tools that the parent has not.

        """
        persona = self._task.persona
        found = parent.tools.effective()
        allowed = set(found) if persona.tools is None else set(persona.tools) - own
        if unknown := allowed.difference(found):
            raise ChildRefusedError(
                f"the agent {persona.name!r} is to have tools that its parent has not: "
                f"{', '.join(sorted(unknown))}"
            )
        limited = persona.tools is not None or parent.options.tools is not None
        limited = limited or not allowed.isdisjoint(self._task.hidden)
        # A parent's own way to answer is not its child's.
        answers = {n for n, tool in found.items() if isinstance(tool, AnswerTool)}
        return allowed - self._task.hidden - answers, limited

    def _observe(self, payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.StepEnded):
            self._usage = add_usage(self._usage, fact.usage)
        elif isinstance(fact, ak.TurnEnded):
            self._turn = fact.reason

    def name_in(self, parent: ak.Agent, child: ak.Agent) -> None:
        """Name the child in its parent's log, and again when it has gone.

        The parent may be ending before whoever waits here gets to run; its session
        closes behind the child, so the ending is written when the child goes.
        Not a checkpoint.
        """
        task = self._task
        begun = ak.SubagentDescribed(
            child.id,
            "fork" if task.persona.fork else "spawn",
            call_id=task.call_id,
            detached=task.detached,
            description=task.description,
        )

        def gone(_payload: ak.AgentDisposed) -> None:
            with suppress(ak.AgentDisposedError):
                parent.session.append(
                    msgspec.structs.replace(begun, ending=self.ending)
                )

        child.on(ak.AgentDisposed, gone)
        parent.session.append(begun)

    async def work(self, child: ak.Agent) -> None:
        """Tell the child its task, and ask again if its answer does not fit.

        Always a checkpoint.

        Cancellation:
          As `run_child`.

        """
        task = self._task
        release: Callable[[], None] | None = None
        if task.signal is not None:
            release = task.signal.on_cancel(lambda _reason: child.cancel(ak.PARENT))
            task.signal.raise_if_cancelled()
        try:
            await self._say(child, self._prompt())
            if self._unanswered():
                if task.signal is not None:
                    # A stop does not undo what is done, but nothing is begun after it.
                    task.signal.raise_if_cancelled()
                await self._say(child, self._reminder())
                self._unanswered()
            self.done = True
        finally:
            if release is not None:
                release()

    async def _say(self, child: ak.Agent, text: str) -> None:
        """Send one message and wait for its outcome, whatever happens.

        Always a checkpoint.

        Cancellation:
          As `run_child`.

        """
        self._outcome = self._turn = None
        sent = child.followup(text)
        unregister = child.on(ak.StatusChanged, partial(look_after, sent.id))
        try:
            self._outcome = await child.outcome(sent.id)
        except trio.Cancelled:
            child.cancel(ak.PARENT)
            # In-process work is waited for, however long it takes: it is reported
            # as stuck by its own agent, and nothing of it is left behind.
            with trio.CancelScope(shield=True):  # noqa: ASYNC912  # waits for an outcome, which is sure to come
                with suppress(ak.AgentDisposedError):
                    self._outcome = await child.outcome(sent.id)
            raise
        finally:
            unregister()

    def _prompt(self) -> str:
        if self._tool is None:
            return self._task.prompt
        return (
            f"{self._task.prompt}\n\nWhen you are done, give your answer by calling "
            f"the tool `{ANSWER}`."
        )

    def _reminder(self) -> str:
        return (
            f"That is not an answer of the form that is needed ({self._problem}). "
            f"Call the tool `{ANSWER}` with your answer now."
        )

    def _unanswered(self) -> bool:
        """Whether a child that has ended well still owes its structured answer."""
        outcome = self._outcome
        if self._tool is None or outcome is None or outcome.kind != "completed":
            return False
        self._problem = self._tool.take_text(outcome.text)
        return self._problem is not None

    @property
    def ending(self) -> ak.Ending:
        """How the child ended, as its parent's log says it."""
        outcome = self._outcome
        if outcome is None:
            return self._turn or ak.Ending("disposed")
        if outcome.kind == "discarded":
            return ak.Ending("aborted")
        return ak.Ending(outcome.kind, outcome.code, outcome.detail)

    def report(self, child_id: str) -> Report:
        """Say what became of the work."""
        outcome, tool = self._outcome, self._tool
        assert outcome is not None
        failure = failure_of(outcome.kind, outcome.detail)
        if failure is None and tool is not None and not tool.given:
            failure = ak.ToolFailure(
                NO_ANSWER, f"The agent gave no answer that fits: {self._problem}."
            )
        return Report(
            child_id,
            outcome.kind,
            outcome.text,
            answer=None if tool is None else tool.value,
            failure=failure,
            usage=self._usage,
        )


def _tell(parent: ak.Agent, child: ak.Agent, error: ak.StorageError) -> None:
    """Report an error as one of the parent that changes no outcome."""

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise error

    where = f"closing the session of {child.id}"
    try:
        parent.start_soon(fail, name=where)
    except ak.AgentDisposedError:
        # One that is ending reports nothing any more.
        _log.error("agent %s: %s: %s", parent.id, where, error)


async def _last_turn_end(session: ak.Session) -> int:
    """Find the event with which the last turn that has ended did so.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Returns:
      Its number; 1, the header's, if no turn has ended yet.

    """
    await trio.lowlevel.checkpoint()
    for event in reversed(session.events):
        if isinstance(event.data, ak.TurnEnded):
            return event.seq
    # The live tail does not hold it: the open turn is a long one.
    end = session.durable_seq
    while end > 1:
        start = max(0, end - _PAGE)
        page = await session.read(after=start, limit=end - start)
        for event in reversed(page):
            if isinstance(event.data, ak.TurnEnded):
                return event.seq
        end = start
    return 1
