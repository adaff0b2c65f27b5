"""What a workflow's function is handed: agents, side by side and one after the other.

A position is a path of numbers. A flow counts what is asked of it; each branch of
`parallel` and each item of `pipeline` gets a flow of its own, whose positions do not
depend on the order in which the branches happen to run.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal, TypeVar, final

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

from .record import BEGUN, DONE, PHASE, digest_of, report_body

__all__ = [
    "Flow",
    "Progress",
    "WorkflowAgentError",
    "WorkflowLimitError",
    "WorkflowLimits",
    "WorkflowRecordError",
    "WorkflowRun",
]

T = TypeVar("T")
_log = logging.getLogger(__name__)


class WorkflowAgentError(ak.AgentKernelError):
    """If an agent of a workflow did not do what it was asked for."""

    def __init__(self, report: Report) -> None:
        assert report.failure is not None
        self.report = report
        super().__init__(report.failure.message)


class WorkflowLimitError(ak.AgentKernelError):
    """If a workflow asks for more agents, or has used more tokens, than it may."""


class WorkflowRecordError(ak.AgentKernelError):
    """If the session that is to be a workflow's record is something else."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"session {session_id!r} is not the record of a workflow")


class WorkflowLimits(msgspec.Struct, frozen=True):
    """What a workflow may use.

    Attributes:
      at_once: how many agents may run at once; more wait.
      agents: how many may run in all; results that are used again do not count.
      tokens: after how many known tokens, input and output together, no further agent
        is started; None for no limit.

    """

    at_once: int = 5
    agents: int = 100
    tokens: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """Something has happened in a workflow.

    Attributes:
      kind: a phase began; an agent was started, has ended, or was not needed since
        its result is known from an earlier run.
      phase: the phase that goes on.
      position: of the agent, empty for a phase.
      label: a few words for people.
      report: what became of the agent, if it has ended.

    """

    kind: Literal["phase", "started", "ended", "reused"]
    phase: str
    position: str = ""
    label: str = ""
    report: Report | None = None


@final
class WorkflowRun:
    """What all flows of one run share; made by `run_workflow`, lives as long as it.

    Attributes:
      agent: whose session is the workflow's record; it never has a turn.
      started: how many agents have been started.
      tokens: how many tokens they have used, as far as is known.

    """

    def __init__(
        self,
        agent: ak.Agent,
        subagents: Subagents,
        limits: WorkflowLimits,
        known: dict[str, Report],
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
        self._known = known
        self._slots = trio.Semaphore(limits.at_once)
        self._on_progress = on_progress

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
          The agent is stopped; its result is not recorded, and is not used again.

        """
        schema = None if like is None else AnswerSchema(like)
        digest = digest_of(prompt, persona, None if schema is None else schema.schema)
        key = f"{position} {digest}"
        label = persona.name
        await trio.lowlevel.checkpoint()
        if key in self._known:
            known = self._known[key]
            self.tell(Progress("reused", self.phase, position, label, known))
            return known
        async with self._slots:
            self._admit()
            phase = self.phase
            report = await self._run(key, prompt, persona, like)
        # Nobody acts on a result that a crash could still take back.
        await self.agent.session.flush()
        self.tell(Progress("ended", phase, position, label, report))
        return report

    def _admit(self) -> None:
        """Count one more agent in, if the limits allow it."""
        limits = self._limits
        if self.started >= limits.agents:
            raise WorkflowLimitError(f"the limit of {limits.agents} agents is reached")
        if limits.tokens is not None and self.tokens >= limits.tokens:
            raise WorkflowLimitError(f"the limit of {limits.tokens} tokens is reached")
        self.started += 1

    async def _run(
        self, key: str, prompt: str, persona: Persona, like: SchemaLike | None
    ) -> Report:
        """Run one agent and record its result.

        Always a checkpoint.

        Cancellation:
          As `ask`.

        """
        session, position = self.agent.session, key.partition(" ")[0]

        def begun(child: ak.Agent) -> None:
            session.append(
                ak.Extension(
                    BEGUN, {"key": key, "child": child.id, "phase": self.phase}
                )
            )
            self.tell(Progress("started", self.phase, position, persona.name))

        options: ChildOptions = {
            "persona": persona,
            "schema": like,
            "signal": self.signal,
            "on_open": begun,
            "description": f"{self.phase} {position}".strip(),
        }
        report = await self._subagents.run(self.agent, prompt, **options)
        session.append(ak.Extension(DONE, {"key": key, "report": report_body(report)}))
        if report.usage is not None:
            usage = report.usage
            self.tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
        return report


@final
class Flow:
    """A line of work in a workflow; used by one task.

    Made by `run_workflow`, and by `parallel` and `pipeline` for their branches.
    """

    def __init__(self, run: WorkflowRun, path: tuple[int, ...] = ()) -> None:
        self._run = run
        self._path = path
        self._count = 0

    @property
    def cancelled(self) -> bool:
        """Whether the turn that waits for the workflow was stopped."""
        return self._run.signal is not None and self._run.signal.cancelled

    def phase(self, name: str) -> None:
        """Say what is going on from here on, for progress and for the record.

        Not a checkpoint.
        """
        self._run.phase = name
        self._run.agent.session.append(ak.Extension(PHASE, {"phase": name}))
        self._run.tell(Progress("phase", name))

    async def report(
        self,
        prompt: str,
        *,
        schema: SchemaLike | None = None,
        persona: Persona | None = None,
    ) -> Report:
        """Have an agent do a task; what became of it, also if it failed.

        Always a checkpoint.

        Cancellation:
          The agent is stopped as `PARENT`, and waited for.

        Raises:
          WorkflowLimitError: if the workflow has used what it may.
          AgentDisposedError, KernelClosedError, StorageError: if it cannot be run or
            recorded.

        """
        position = self._next()
        return await self._run.ask(position, prompt, persona or Persona(), schema)

    async def agent(
        self,
        prompt: str,
        *,
        schema: SchemaLike | None = None,
        persona: Persona | None = None,
    ) -> ak.JsonValue:
        """Have an agent do a task; its text, or its answer if there is a schema.

        Always a checkpoint.

        Cancellation:
          As `report`.

        Raises:
          WorkflowAgentError: if the agent did not do what it was asked for.
          WorkflowLimitError: as `report`, and what else that raises.

        """
        found = await self.report(prompt, schema=schema, persona=persona)
        if not found.ok:
            raise WorkflowAgentError(found)
        return found.text if schema is None else found.answer

    async def parallel(
        self, branches: Iterable[Callable[[Flow], Awaitable[T]]]
    ) -> list[T]:
        """Run branches side by side, each with a flow of its own.

        Always a checkpoint.

        Cancellation:
          Every branch is cancelled and waited for.

        Returns:
          What they returned, in the order of the branches.

        Raises:
          Exception: what a branch raised; the others are cancelled then.
          ExceptionGroup: if several raised.

        """
        return await _together(self._branches(list(branches)))

    def _branches(
        self, branches: Sequence[Callable[[Flow], Awaitable[T]]]
    ) -> list[tuple[Callable[[Flow], Awaitable[T]], Flow]]:
        step = self._step()
        return [
            (branch, Flow(self._run, (*self._path, step, index)))
            for index, branch in enumerate(branches)
        ]

    async def pipeline(
        self,
        items: Iterable[object],
        *stages: Callable[[Flow, object], Awaitable[object]],
    ) -> list[object]:
        """Take each item through all stages, the items side by side.

        An item does not wait for the others between stages. Always a checkpoint.

        Cancellation:
          Every item is cancelled and waited for.

        Args:
          items: what goes in.
          stages: each is called with the item's flow and what the one before it gave.

        Returns:
          What the last stage gave, in the order of the items.

        Raises:
          Exception, ExceptionGroup: as `parallel`.

        """

        def line(item: object) -> Callable[[Flow], Awaitable[object]]:
            async def run(flow: Flow) -> object:
                value = item
                for stage in stages:
                    value = await stage(flow, value)
                await trio.lowlevel.checkpoint()
                return value

            return run

        return await self.parallel([line(item) for item in items])

    def _step(self) -> int:
        self._count += 1
        return self._count

    def _next(self) -> str:
        return ".".join(str(number) for number in (*self._path, self._step()))


async def _together(
    branches: Sequence[tuple[Callable[[Flow], Awaitable[T]], Flow]],
) -> list[T]:
    """Run branches in a nursery; a lone error leaves it as itself.

    Always a checkpoint.

    Cancellation:
      As `Flow.parallel`.

    """
    results: dict[int, T] = {}

    async def run(index: int) -> None:
        branch, flow = branches[index]
        results[index] = await branch(flow)

    try:
        async with trio.open_nursery() as nursery:
            for index in range(len(branches)):
                nursery.start_soon(run, index)
    except ExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None  # noqa: ASYNC123  # the only one of its group
        raise
    await trio.lowlevel.checkpoint()
    return [results[index] for index in range(len(branches))]
