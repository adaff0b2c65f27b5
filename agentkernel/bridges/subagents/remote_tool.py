"""A remote agent as a tool of a model."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, cast, final

import msgspec

import agentkernel as ak

from .remote import RemoteAgent, RemoteUpdate, run_remote
from .values import as_output

__all__ = ["UPDATE", "RemoteAgentTool", "remote_agent_tool"]

# The name of the fact by which the log tells what a remote agent does.
UPDATE: Final = "subagent/update"
_MAX_UPDATES = 1000
_MAX_TEXT = 2000


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[str, msgspec.Meta(min_length=1)]


@final
class RemoteAgentTool:
    """Has a program do a task; an `agentkernel.Tool`. Made by `remote_agent_tool`.

    Each call starts a program of its own; calls may overlap.
    """

    parallel_safe = True

    def __init__(
        self, spec: ak.ToolSpec, remote: RemoteAgent, *, max_seconds: float | None
    ) -> None:
        self.spec = spec
        self.remote = remote
        self.max_seconds = max_seconds

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        """Validate the arguments of a call. Not a checkpoint.

        Raises:
          ToolArgumentsError: if they do not fit.

        """
        try:
            msgspec.convert(dict(arguments), _Arguments)
        except msgspec.ValidationError as error:
            raise ak.ToolArgumentsError(str(error)) from None
        return arguments

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        """Have the program do the task, and return what it said.

        Always a checkpoint.

        Cancellation:
          Passes through when the program has been stopped, ended and reaped.

        Raises:
          Exception: what a listener raised that was asked for an approval.

        """
        session = call.agent.session
        child = f"{call.agent.id}-{call.call_id}"
        begun = ak.SubagentDescribed(child, "remote", call.call_id)
        updates = 0

        def follow(update: RemoteUpdate) -> None:
            nonlocal updates
            updates += 1
            if updates <= _MAX_UPDATES:
                body: ak.JsonObject = {
                    "child": child,
                    "kind": update.kind,
                    "text": update.text[:_MAX_TEXT],
                    "status": update.status,
                }
                session.append(ak.Extension(UPDATE, body))

        async def decide(what: str) -> bool:
            reason = f"the agent {self.spec.name} asks: {what}"
            return isinstance(await call.agent.approve(call, reason), ak.Allow)

        ending = ak.Ending("aborted")
        session.append(begun)
        try:
            report = await run_remote(
                self.remote,
                cast("str", call.arguments["prompt"]),
                decide=decide,
                on_update=follow,
            )
            if report.ending != "discarded":
                ending = ak.Ending(report.ending)
        finally:
            with suppress(ak.AgentDisposedError):
                session.append(msgspec.structs.replace(begun, ending=ending))
        return as_output(report, report.text)


def remote_agent_tool(
    name: str,
    description: str,
    remote: RemoteAgent,
    *,
    max_seconds: float | None = None,
) -> RemoteAgentTool:
    """Make the tool by which a model has a program do a task.

    Not a checkpoint.

    Args:
      name: what the model calls it.
      description: what the model is told about it.
      remote: the program, and how it is dealt with.
      max_seconds: how long one task may take.

    """
    parameters: ak.JsonObject = {
        "type": "object",
        "properties": {"prompt": {"type": "string", "description": "The whole task."}},
        "required": ["prompt"],
        "additionalProperties": False,
    }
    spec = ak.ToolSpec(name, description, parameters)
    return RemoteAgentTool(spec, remote, max_seconds=max_seconds)
