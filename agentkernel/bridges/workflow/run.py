"""Run a workflow: open its record, find what is known, run its function, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, final

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import MAX_DEPTH, Subagents

from .agents import WorkflowRun
from .flow import Flow
from .opening import close_left, open_record, read_record
from .record import STARTED, Record
from .values import Progress, WorkflowLimitError, WorkflowLimits

__all__ = ["WorkflowOptions", "WorkflowResult", "refuse_depth", "run_workflow"]

T = TypeVar("T")


class WorkflowOptions(msgspec.Struct, frozen=True, eq=False):
    """How a workflow runs.

    Attributes:
      name: what it is called, for its record.
      model: the model of its agents, unless their persona names one.
      parent: the agent that it works for; its agents start with that one's tools.
      tools: tools of its agents.
      hidden: names of tools that its agents do not get from its parent.
      limits: what it may use.
      signal: of the turn that waits for it: a stop of that turn reaches every agent.
      on_progress: told of each phase and agent, synchronously.

    """

    name: str = ""
    model: str = ""
    parent: ak.Agent | None = None
    tools: tuple[ak.Tool, ...] = ()
    hidden: frozenset[str] = frozenset()
    limits: WorkflowLimits = WorkflowLimits()
    signal: ak.TurnSignal | None = None
    on_progress: Callable[[Progress], object] | None = None


@final
class WorkflowResult(Generic[T]):
    """What a workflow gave back.

    Attributes:
      value: what its function returned.
      session_id: where its record is kept.
      started: how many agents were run this time.
      tokens: how many tokens they used, as far as is known.

    """

    def __init__(self, value: T, run: WorkflowRun) -> None:
        self.value = value
        self.session_id: str = run.agent.id
        self.started: int = run.started
        self.tokens: int = run.tokens


async def run_workflow(
    kernel: ak.Kernel,
    fn: Callable[[Flow], Awaitable[T]],
    *,
    session_id: str,
    options: WorkflowOptions | None = None,
) -> WorkflowResult[T]:
    """Run a function that has agents do its work, and record what they did.

    The record is a session of its own. If there is one of that id, the workflow goes
    on from it: agents whose results are in it are not run again, as long as the
    function asks for the same in the same places.

    Always a checkpoint.

    Cancellation:
      Every agent is stopped as `PARENT` and waited for, and the run is recorded as
      `cancelled`, whatever else `fn` raises on its way out; what had ended is recorded,
      and a later run uses it. Then the cancellation passes through.

    Args:
      kernel: where its agents live.
      fn: the work; what it does beside asking agents is done again in each run.
      session_id: the record's.
      options: how it runs.

    Raises:
      SessionBusyError: if a run with this record is going on.
      TurnCancelled: if the turn of `signal` was stopped, or is ending with its agent.
      AgentDisposedError, KernelClosedError: if the parent, or the kernel, is ending
        otherwise; the run is recorded as `cancelled` then, too.
      WorkflowLimitError: if its agents would be too deep; nothing is opened then.
      WorkflowRecordError: if the session is something else than a record.
      Exception: what `fn` raised; the record stays.

    """
    ways = options or WorkflowOptions()
    refuse_depth(ways)
    try:
        return await _run(kernel, fn, session_id, ways)
    except (ak.AgentDisposedError, ak.KernelClosedError):
        # If the turn that waits is being ended as well, that is all there is to say.
        if ways.signal is not None:
            ways.signal.raise_if_cancelled()
        raise


async def _run(
    kernel: ak.Kernel,
    fn: Callable[[Flow], Awaitable[T]],
    session_id: str,
    ways: WorkflowOptions,
) -> WorkflowResult[T]:
    """Open the record, run the function, and close the record.

    Always a checkpoint.

    Cancellation:
      As `run_workflow`.

    """
    inherited = ways.parent.options if ways.parent is not None else ak.AgentOptions()
    # Its agents start from this; the record's own agent is asked nothing.
    base = msgspec.structs.replace(inherited, model=ways.model or inherited.model)
    handle, new = await open_record(
        kernel, session_id, tools=ways.tools, options=base, parent=ways.parent
    )
    async with handle as agent:
        if ways.hidden:
            own = {tool.spec.name for tool in ways.tools}
            agent.tools.keep((set(agent.tools.effective()) - ways.hidden) | own)
        record = Record()
        if not new:
            record = await read_record(agent.session)
            await close_left(agent, record)
        # As deep as may be: what bounds a workflow is its own limits.
        subagents = Subagents(max_depth=MAX_DEPTH, max_children=ways.limits.at_once)
        run = WorkflowRun(
            agent,
            subagents,
            ways.limits,
            record,
            signal=ways.signal,
            on_progress=ways.on_progress,
        )
        agent.start_soon(run.close_with_agent, name="end of the record")
        run.note(STARTED, {"name": ways.name, "known": len(record.known)})
        try:
            # What the function does is not undone by a crash that takes this back.
            await agent.session.flush()
            value = await fn(Flow(run))
        except BaseException:
            run.close("cancelled" if run.is_stopped() else "failed")
            raise
        run.close("completed")
        await agent.session.flush()
    return WorkflowResult(value, run)


def refuse_depth(ways: WorkflowOptions) -> None:
    """Refuse a workflow whose agents would be too deep. Not a checkpoint.

    Raises:
      WorkflowLimitError: if they would.

    """
    if ways.parent is None:
        return
    depth = ways.parent.session.header.lineage.depth + 2
    if depth > ways.limits.depth:
        raise WorkflowLimitError(
            f"agents of depth {depth} are too deep: the limit of depth is "
            f"{ways.limits.depth}"
        )
