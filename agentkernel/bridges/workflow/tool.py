"""A workflow as a tool: a model starts it, and can have it go on after a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import AnswerSchema

from .flow import Flow
from .run import WorkflowOptions, run_workflow
from .values import WorkflowRecordError

__all__ = ["WorkflowFunction", "WorkflowTool"]

WorkflowFunction = Callable[[Flow, ak.JsonObject], Awaitable[ak.JsonValue]]
_RESUME = "resume"


@final
class WorkflowTool:
    """A function that has agents do its work, as a tool; an `agentkernel.Tool`.

    Its result is what the function returns, as JSON or as text. A call that fails
    names its record; a later call that hands it in as `resume` goes on from there.
    """

    parallel_safe = True

    def __init__(
        self,
        spec: ak.ToolSpec,
        fn: WorkflowFunction,
        *,
        options: WorkflowOptions | None = None,
        max_seconds: float | None = None,
    ) -> None:
        """Make the tool.

        Args:
          spec: its name, its description, and an object's schema of its arguments.
          fn: called with a flow and the arguments.
          options: how it runs; its parent and signal come from the call.
          max_seconds: the limit of one call.

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
            "description": "The record of an earlier call that failed, to go on from.",
        }
        self.spec: ak.ToolSpec = ak.ToolSpec(
            spec.name, spec.description, {**spec.parameters, "properties": members}
        )
        self.max_seconds = max_seconds
        self._fn = fn
        self._options = options or WorkflowOptions()

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
          TurnCancelled: if it failed when the turn had been stopped.
          WorkflowRecordError: if the record to go on from is not one of this agent's.

        """
        given, resume = _parted(call.arguments)
        own = f"{call.agent.id}-"
        record = resume or f"{own}{call.call_id}"
        if not record.startswith(own):
            raise WorkflowRecordError(record)
        meta: ak.JsonObject = {"workflow": record}
        options = msgspec.structs.replace(
            self._options, parent=call.agent, signal=call.signal
        )

        async def work(flow: Flow) -> ak.JsonValue:
            return await self._fn(flow, given)

        try:
            done = await run_workflow(
                call.agent.kernel, work, session_id=record, options=options
            )
        except Exception as error:  # noqa: BLE001  # the result names the record, so that it can go on
            call.signal.raise_if_cancelled()
            text = f"{error} To go on from here, call again with resume={record!r}."
            failure = ak.ToolFailure("WORKFLOW_FAILED", text)
            return ak.ToolOutput((ak.TextBlock(text),), failure, meta)  # noqa: ASYNC910  # a run that raises has passed one
        value = done.value
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        return ak.ToolOutput((ak.TextBlock(text),), meta=meta)


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
