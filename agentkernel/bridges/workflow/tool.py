"""A workflow as a tool: a model starts it, and can have it go on after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import AnswerSchema

from .flow import Flow
from .resuming import META, find_record, record_of
from .run import WorkflowOptions, refuse_depth, run_workflow

__all__ = ["WorkflowFunction", "WorkflowTool"]

WorkflowFunction = Callable[[Flow, ak.JsonObject], Awaitable[ak.JsonValue]]
_RESUME = "resume"
_RESUME_ABOUT = (
    "Go on from an earlier call of this tool instead of starting anew: finished parts "
    "are not done again. 'latest' is the last call that gave no result (it failed, "
    "was stopped, ran out of time or was cut off); a failed call's result names its own."
)


@final
class WorkflowTool:
    """A function that has agents do its work, as a tool; an `agentkernel.Tool`.

    Its result is what the function returns, as JSON or as text; what JSON cannot carry
    is refused, as a failure of the function. A later call with
    `resume` goes on from the record of an earlier one: from the one that is named, or
    from the `latest` whose result never came. A result that says that the function
    failed names the record; that of a call which was stopped, ran into its limit or
    was taken by a crash does not.
    """

    parallel_safe = True

    def __init__(
        self,
        spec: ak.ToolSpec,
        fn: WorkflowFunction,
        *,
        options: WorkflowOptions | None = None,
        max_seconds: float | None = None,
        nested: bool = False,
    ) -> None:
        """Make the tool.

        Args:
          spec: its name, its description, and an object's schema of its arguments.
          fn: called with a flow and the arguments.
          options: how it runs; its name, parent and signal are the tool's and the
            call's.
          max_seconds: the limit of one call.
          nested: whether the workflow's agents get this tool as well; how deep that may
            go is a limit of `options`.

        Raises:
          ValueError: if the schema is not valid, or has a member `resume` of its own.
          ImportError: if the extra that checks schemas is not installed.

        """
        self._schema = AnswerSchema(spec.parameters)
        members = dict(_members(spec.parameters))
        if _RESUME in members:
            raise ValueError(f"{_RESUME!r} is taken: it names the record to go on from")
        members[_RESUME] = {
            "type": "string",
            "description": _RESUME_ABOUT,
        }
        self.spec: ak.ToolSpec = ak.ToolSpec(
            spec.name, spec.description, {**spec.parameters, "properties": members}
        )
        self.max_seconds = max_seconds
        self._fn = fn
        ways = options or WorkflowOptions()
        hidden = ways.hidden if nested else ways.hidden | {spec.name}
        self._options = msgspec.structs.replace(ways, name=spec.name, hidden=hidden)

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        """Check the arguments of the function, and `resume`. Not a checkpoint.

        Raises:
          ToolArgumentsError: if they do not fit; it names the place.

        """
        given, _ = _parted(arguments)
        self._schema.check(given)
        return arguments

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        """Run the workflow for the agent whose call it is.

        Always a checkpoint.

        Cancellation:
          Passes through when every agent of the workflow has ended.

        Raises:
          TurnCancelled: if the turn was stopped.
          Exception: what `fn` raised while the turn was being stopped.
          WorkflowLimitError: if the workflow's agents would be too deep.
          WorkflowRecordError: if there is no such record of this agent and tool.

        """
        given, resume = _parted(call.arguments)
        options = msgspec.structs.replace(
            self._options, parent=call.agent, signal=call.signal
        )
        refuse_depth(options)
        record = record_of(call)
        if resume is not None:
            record = await find_record(call, resume)
        meta: ak.JsonObject = {META: record}

        async def work(flow: Flow) -> str:
            return _shown(await self._fn(flow, given))

        try:
            done = await run_workflow(
                call.agent.kernel, work, session_id=record, options=options
            )
        except Exception as error:
            if call.signal.cancelled:
                # A fault of its own is published, as that of any tool is.
                raise
            text = (
                f"The workflow failed: {ak.describe_error(error).removesuffix('.')}. "
                f"To go on from here, call again with resume={record!r}."
            )
            failure = ak.ToolFailure("WORKFLOW_FAILED", text)
            return ak.ToolOutput((ak.TextBlock(text),), failure, meta)  # noqa: ASYNC910  # a run that raises has passed one
        return ak.ToolOutput((ak.TextBlock(done.value),), meta=meta)


def _shown(value: ak.JsonValue) -> str:
    """Make what the model is shown of a result.

    Raises:
      TypeError: if something in it is not JSON; it names the place.

    """
    frozen = ak.freeze(value)
    if isinstance(frozen, str):
        return frozen
    return msgspec.json.encode(frozen).decode()


def _parted(arguments: ak.JsonObject) -> tuple[ak.JsonObject, str | None]:
    """Part the function's arguments from the record to go on from.

    Raises:
      ToolArgumentsError: if that is no name.

    """
    given = dict(arguments)
    resume = given.pop(_RESUME, None)
    if resume is None or (isinstance(resume, str) and resume):
        return given, resume
    raise ak.ToolArgumentsError(f"$.{_RESUME}: expected the name of a record")


def _members(parameters: ak.JsonObject) -> ak.JsonObject:
    found = parameters.get("properties", {})
    return found if isinstance(found, dict) else {}
