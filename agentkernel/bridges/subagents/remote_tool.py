"""A remote agent as a tool of a model."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final, cast, final

import msgspec
import trio

import agentkernel as ak

from .program import RemoteAgent, RemoteUpdate
from .remote import run_remote
from .values import Report, as_output
from .wire import cut

__all__ = ["UPDATE", "RemoteAgentTool", "remote_agent_tool"]

# The name of the fact by which the log tells what a remote agent does.
UPDATE: Final = "subagent/update"
# The kind of the one that stands for all that come after the first thousand.
LEFT_OUT: Final = "left_out"
_MAX_UPDATES = 1000
_MAX_TEXT = 2000
_MAX_WORD = 100


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
          Exception: what a listener raised that was asked for an approval; the
            program has been stopped, ended and reaped.

        """
        session = call.agent.session
        child = f"{call.agent.id}-{call.call_id}"
        begun = ak.SubagentDescribed(child, "remote", call.call_id)
        record = _Record(session, child)

        async def decide(what: str) -> bool:
            reason = f"the agent {self.spec.name} asks: {cut(what, _MAX_TEXT)}"
            return isinstance(await call.agent.approve(call, reason), ak.Allow)

        ending = ak.Ending("error")
        session.append(begun)
        try:
            report = await run_remote(
                self.remote,
                cast("str", call.arguments["prompt"]),
                decide=decide,
                on_update=record.follow,
            )
            ending = _ending(report)
        except trio.Cancelled:
            ending = ak.Ending("aborted")
            raise
        finally:
            with suppress(ak.AgentDisposedError):
                session.append(msgspec.structs.replace(begun, ending=ending))
        report = msgspec.structs.replace(report, child=child)
        return as_output(report, report.text)


@final
class _Record:
    """Writes into the log what a remote does, within limits that the log tells of."""

    def __init__(self, session: ak.Session, child: str) -> None:
        self._session = session
        self._child = child
        self._count = 0

    def follow(self, update: RemoteUpdate) -> None:
        """Write down one update. Not a checkpoint."""
        self._count += 1
        if self._count == _MAX_UPDATES + 1:
            update = RemoteUpdate(LEFT_OUT, "what it says and does from here on")
        elif self._count > _MAX_UPDATES:
            return
        status = update.status
        body: ak.JsonObject = {
            "child": self._child,
            "kind": cut(update.kind, _MAX_WORD),
            "text": cut(update.text, _MAX_TEXT),
            "status": None if status is None else cut(status, _MAX_WORD),
        }
        with suppress(ak.AgentDisposedError):
            self._session.append(ak.Extension(UPDATE, body))


def _ending(report: Report) -> ak.Ending:
    """Say in the log how the program's turn ended."""
    if report.ending == "discarded" or report.failure is None:
        return ak.Ending("completed")
    if report.ending != "error":
        return ak.Ending(report.ending)
    return ak.Ending("error", report.failure.code, report.failure.message)


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
