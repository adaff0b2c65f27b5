"""The agents of one run: started, counted, recorded, or known from an earlier run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from typing import cast, final

import msgspec
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import (
    AnswerSchema,
    ChildOptions,
    Persona,
    Report,
    SchemaLike,
    Subagents,
)
from agentkernel.bridges.subagents.values import ChildEnding

from .opening import read_all
from .record import BEGUN, DONE, ENDED, Record, WorkflowEnding, digest_of, done
from .trace import Trace
from .values import Progress, WorkflowLimitError, WorkflowLimits

__all__ = ["WorkflowRun"]

_log = logging.getLogger(__name__)


class _Asked(msgspec.Struct, frozen=True, eq=False):
    """What one agent is asked, and where."""

    position: str
    key: str
    prompt: str
    persona: Persona
    like: SchemaLike | None
    schema: AnswerSchema | None


def _asked(
    position: str, prompt: str, persona: Persona, like: SchemaLike | None
) -> _Asked:
    """Make a request, with clean text, as the agent will be told it."""
    if not isinstance(cast("object", prompt), str):
        raise TypeError(f"a prompt is text, not {type(prompt).__name__}")
    prompt = ak.clean_text(prompt)
    persona = msgspec.convert(ak.freeze(msgspec.to_builtins(persona)), Persona)
    schema = None if like is None else AnswerSchema(like)
    digest = digest_of(prompt, persona, None if schema is None else schema.schema)
    return _Asked(position, f"{position} {digest}", prompt, persona, like, schema)


@final
class WorkflowRun:
    """What all flows of one run share; made by `run_workflow`, lives as long as it.

    Attributes:
      agent: whose session is the workflow's record; it is asked nothing.
      started: how many agents have been started.
      tokens: how many tokens they have used, as far as is known.

    """

    def __init__(
        self,
        agent: ak.Agent,
        subagents: Subagents,
        limits: WorkflowLimits,
        record: Record,
        *,
        signal: ak.TurnSignal | None,
        on_progress: Callable[[Progress], object] | None,
    ) -> None:
        self.agent = agent
        self.signal = signal
        self.started: int = 0
        self.tokens: int = 0
        self.phase = ""
        self._subagents = subagents
        self._limits = limits
        self._known = record.known
        # Agents that an earlier run has started and not recorded as ended.
        self._open = record.open
        self._slots = trio.Semaphore(limits.at_once)
        self._on_progress = on_progress
        # Agents that have begun and are not recorded as ended, each with its phase.
        self._running: dict[_Asked, tuple[ak.Agent, str]] = {}
        self._closed = False

    def note(self, name: str, body: ak.JsonObject) -> None:
        """Write into the record. Not a checkpoint.

        Raises:
          TurnCancelled: if the record has closed in the end of the turn that waits.
          AgentDisposedError: if it has closed otherwise.

        """
        try:
            self.agent.session.append(ak.Extension(name, body))
        except ak.AgentDisposedError:
            self.check_stop()
            raise

    def check_stop(self) -> None:
        """Go no further if the turn that waits was stopped. Not a checkpoint.

        Raises:
          TurnCancelled: if it was.

        """
        if self.signal is not None:
            self.signal.raise_if_cancelled()

    def is_stopped(self) -> bool:
        """Whether what the current task does for the run has been stopped.

        By the turn that waits, by the end of the record's agent, or by a scope around
        the task. What that task has raised does not say so: it may be anything that
        came up on its way out. Not a checkpoint.
        """
        if self.signal is not None and self.signal.cancelled:
            return True
        return trio.current_effective_deadline() == -math.inf or self._is_ending()

    def _is_ending(self) -> bool:
        """Whether the end of the record's agent has begun: its parent's, its kernel's.

        Not a checkpoint.
        """
        try:
            # It takes a task as long as it lives; there is no other way to ask.
            self.agent.start_soon(trio.lowlevel.checkpoint, name="look for the end")
        except ak.AgentDisposedError:
            return True
        return False

    def tell(self, progress: Progress) -> None:
        """Tell who listens; what that raises is logged, and harms nobody."""
        if self._on_progress is None:
            return
        try:
            self._on_progress(progress)
        except Exception as error:  # noqa: BLE001  # observers may be anybody's
            _log.error("an observer of progress failed: %s", type(error).__name__)
            _log.debug("the error was", exc_info=error)

    async def ask(
        self, position: str, prompt: str, persona: Persona, like: SchemaLike | None
    ) -> Report:
        """Run one agent, or use again what it said in an earlier run.

        Always a checkpoint.

        Cancellation:
          The agent is stopped, and recorded as such: a later run asks it again, unless
          it was done by then.

        Raises:
          TypeError: if the prompt is no text.
          TurnCancelled: if the turn that waits was stopped.
          AgentDisposedError: if the agent was ended with all that it belongs to.

        """
        asked = _asked(position, prompt, persona, like)
        label = asked.persona.name
        await trio.lowlevel.checkpoint()
        known = self._known.get(asked.key) or await self._recovered(asked)
        if known is not None:
            self.tell(Progress("reused", self.phase, position, label, known))
            return known
        async with self._slots:
            self._admit()
            report = await self._run(asked)
        await self._end(asked, report)
        # What a stop did to an agent is no failure of it.
        self.check_stop()
        if not report.ok and self._is_ending():
            raise ak.AgentDisposedError(self.agent.id)
        return report

    async def _recovered(  # noqa: ASYNC910  # waits only if it must
        self, asked: _Asked
    ) -> Report | None:
        """Find the result of an agent that ended when its run was cut off.

        Recorded in any case: of one that has no result, why. A checkpoint only if an
        earlier run has left such an agent.

        Cancellation:
          Nothing was used; a later run finds it again.

        """
        child = self._open.pop(asked.key, None)
        if child is None:
            return None  # noqa: ASYNC910  # waits only if it must
        events = await read_all(self.agent.kernel.store, child)
        report = Trace(asked.prompt, events).report(
            child, asked.schema, unfinished="interrupted"
        )
        self.note(DONE, done(asked.key, report))
        await self.agent.session.flush()
        return report if report.ok else None

    def _admit(self) -> None:
        """Count one more agent in, if the limits allow it."""
        limits = self._limits
        if self.started >= limits.agents:
            raise WorkflowLimitError(f"the limit of {limits.agents} agents is reached")
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise WorkflowLimitError(f"the limit of {limits.tokens} tokens is reached")
        self.started += 1

    async def _run(self, asked: _Asked) -> Report:
        """Run one agent.

        Always a checkpoint.

        Cancellation:
          As `ask`.

        """
        label, phase = asked.persona.name, self.phase

        def begun(child: ak.Agent) -> None:
            child.on(ak.Appended, self._count)
            body = {"key": asked.key, "child": child.id, "phase": phase}
            # On disk before the child begins: its parent's log is flushed next.
            self.note(BEGUN, body)
            self._running[asked] = child, phase
            self.tell(Progress("started", phase, asked.position, label))

        options: ChildOptions = {
            "persona": asked.persona,
            "schema": asked.like,
            "signal": self.signal,
            "on_open": begun,
            "description": f"{phase} {asked.position}".strip(),
        }
        try:
            return await self._subagents.run(self.agent, asked.prompt, **options)
        except BaseException:
            self._cut_off(asked, "aborted" if self.is_stopped() else "error")
            raise

    async def _end(self, asked: _Asked, report: Report) -> None:
        """Record the result of an agent, and tell of its end when that is durable.

        Always a checkpoint.

        Cancellation:
          It is recorded, and told of all the same: the agent has ended.

        """
        # Nothing is left to say if the record has closed in the end of its agent.
        _, phase = self._running.pop(asked, (None, None))
        try:
            if phase is not None:
                self.note(DONE, done(asked.key, report))
            # Nobody acts on a result that a crash could still take back.
            await self.agent.session.flush()
        finally:
            if phase is not None:
                label = asked.persona.name
                self.tell(Progress("ended", phase, asked.position, label, report))

    def _cut_off(self, asked: _Asked, ending: ChildEnding) -> None:
        """Record an agent that gave no report, by what its session says of it."""
        if asked not in self._running:
            return
        child, phase = self._running.pop(asked)
        trace = Trace(asked.prompt, child.session.events)
        report = trace.report(child.id, asked.schema, unfinished=ending)
        label = asked.persona.name
        try:
            # The record may have closed in the end of its agent.
            with suppress(ak.AgentDisposedError):
                body = done(asked.key, report)
                self.agent.session.append(ak.Extension(DONE, body))
        finally:
            self.tell(Progress("ended", phase, asked.position, label, report))

    def close(self, ending: WorkflowEnding) -> None:
        """Write down how the run ended; only the first time counts."""
        if not self._closed:
            self._closed = True
            with suppress(ak.AgentDisposedError):
                self.agent.session.append(ak.Extension(ENDED, {"ending": ending}))

    async def close_with_agent(self) -> None:
        """Close the record in time if the end of its agent comes before the run's.

        A task of that agent: it is ended when the agents of the workflow are gone, and
        before the session closes. Always a checkpoint.

        Cancellation:
          Agents that still count as running, and the run, are recorded as stopped.

        """
        try:
            await trio.sleep_forever()
        finally:
            for asked in tuple(self._running):
                self._cut_off(asked, "aborted")
            self.close("cancelled")

    def _count(self, payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.StepEnded) and fact.usage is not None:
            usage = fact.usage
            self.tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
