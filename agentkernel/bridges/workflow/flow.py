"""What a workflow's function is handed: agents, side by side and one after the other.

A position is a path of numbers. A flow counts what is asked of it; each branch of
`parallel` and each item of `pipeline` gets a flow of its own, whose positions do not
depend on the order in which the branches happen to run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Final, TypeVar, cast, final

import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Report, SchemaLike

from .agents import WorkflowRun
from .record import PHASE
from .values import Progress, WorkflowAgentError

__all__ = ["Flow"]

T = TypeVar("T")
_ENDS: Final = (ak.AgentDisposedError, ak.KernelClosedError)


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
        name = self._run.phase = ak.clean_text(name)
        self._run.note(PHASE, {"phase": name})
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
          TurnCancelled: if the turn that waits for the workflow was stopped.
          WorkflowLimitError: if the workflow has used what it may.
          AgentDisposedError, KernelClosedError: if it cannot be run, or is ended, since
            the agent that the workflow works for, or the kernel, is ending.
          StorageError: if it cannot be run or recorded.

        """
        position, who = self._next(), persona or Persona()
        return await self._run.ask(position, prompt, who, schema)

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
        position, who = self._next(), persona or Persona()
        phase = self._run.phase
        found = await self._run.ask(position, prompt, who, schema)
        if not found.ok:
            raise WorkflowAgentError(
                found, label=who.name, position=position, phase=phase
            )
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
          TypeError: if a branch is no function; none has begun then.
          Exception: what a branch raised; the others are cancelled then.
          AgentDisposedError, KernelClosedError: once, if that is all they raised.
          ExceptionGroup: if several raised; its message says what.

        """
        given = list(branches)
        _refuse_no_function("a branch is a function of a flow", given)
        return await _together(self._branches(given))

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
          TypeError: if a stage is no function; none has begun then.
          Exception, ExceptionGroup: as `parallel`.

        """
        _refuse_no_function("a stage is a function of a flow and a value", stages)

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


def _refuse_no_function(rule: str, given: Sequence[object]) -> None:
    """Refuse work that is handed over as anything but functions. Not a checkpoint.

    A coroutine among it has been made for the wrong flow; each is closed, so that the
    refusal is the one thing that is heard of it.

    Raises:
      TypeError: if something cannot be called; it says what the rule is.

    """
    wrong = [one for one in given if not callable(one)]
    for one in wrong:
        if isinstance(one, Coroutine):
            cast("Coroutine[object, object, object]", one).close()
    if wrong:
        raise TypeError(f"{rule}, not {type(wrong[0]).__name__}")


async def _together(
    branches: Sequence[tuple[Callable[[Flow], Awaitable[T]], Flow]],
) -> list[T]:
    """Run branches in a nursery; a lone error leaves it as itself, several by name.

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
        if len(group.exceptions) == 1 or group.split(_ENDS)[1] is None:
            raise group.exceptions[0] from None  # noqa: ASYNC123  # the only one, or one of many that say the same
        count = len(group.exceptions)
        words = f"{count} branches of the workflow failed: {ak.describe_error(group)}"
        raise ExceptionGroup(words, group.exceptions) from None
    await trio.lowlevel.checkpoint()
    return [results[index] for index in range(len(branches))]
