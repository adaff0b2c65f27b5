"""Hooks about tool calls: before one runs, and when it has ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, final

import msgspec
import trio

import agentkernel as ak

from .notes import notes
from .runner import Runner
from .verdict import Verdict

__all__ = ["CallHooks"]

_Permission: TypeAlias = ak.Allow | ak.Ask | ak.Deny


@final
class CallHooks:
    """Listens to `tools/pre-execute` and `tools/post-execute`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def pre_execute(
        self,
        payload: ak.PreExecute,
        following: Callable[[ak.PreExecute], Awaitable[_Permission]],
    ) -> _Permission:
        """Let PreToolUse hooks deny, ask about, allow or change a call.

        A checkpoint only if there are any, or another listener passes one.

        Cancellation:
          Passes through.

        """
        agent, call = payload.agent, payload.call
        if not self._runner.covers(agent):
            return await following(payload)
        name = self._runner.names.get(call.name, call.name)
        verdict = await self._runner.run(
            agent, "PreToolUse", name, self._call_fields(call), payload.signal
        )
        self._add(call, "PreToolUse", verdict)
        await self._obey(call, verdict)
        if verdict.choice == "deny":
            return ak.Deny(verdict.reason)
        updated = verdict.updated_input
        if updated is not None:
            changed = msgspec.structs.replace(call, arguments=updated)
            payload = msgspec.structs.replace(payload, call=changed)
        inner = await following(payload)
        if isinstance(inner, ak.Deny):
            return inner
        arguments = updated if inner.arguments is None else inner.arguments
        if verdict.choice == "ask":
            return ak.Ask(verdict.reason, arguments)
        if isinstance(inner, ak.Ask) and not (
            inner.waivable and verdict.choice == "allow"
        ):
            return ak.Ask(inner.reason, arguments, waivable=inner.waivable)
        return ak.Allow(arguments)

    async def post_execute(
        self,
        payload: ak.PostExecute,
        following: Callable[[ak.PostExecute], Awaitable[ak.ToolOutput]],
    ) -> ak.ToolOutput:
        """Let hooks look at what a call gave back, and add to it.

        A checkpoint only if there are any, or another listener passes one.

        Cancellation:
          Passes through.

        """
        output = await following(payload)
        agent, call = payload.agent, payload.call
        if not self._runner.covers(agent):
            return output
        text = "".join(b.text for b in output.content if isinstance(b, ak.TextBlock))
        took: dict[str, ak.JsonValue] = {"duration_ms": round(payload.seconds * 1000)}
        if output.error is not None:
            await self._failed(call, text or output.error.message, took)
            return output
        fields = self._call_fields(call) | took
        fields["tool_response"] = {"content": text, "meta": output.meta}
        verdict = await self._runner.run(
            agent, "PostToolUse", str(fields["tool_name"]), fields, call.signal
        )
        self._add(call, "PostToolUse", verdict)
        if verdict.stop is not None:
            _stop_once_recorded(call)
        content = output.content
        if verdict.updated_output is not None:
            content = (ak.TextBlock(verdict.updated_output),)
        if verdict.choice == "deny":
            content = (*content, ak.TextBlock(f"\n\nFrom a hook: {verdict.reason}"))
        return msgspec.structs.replace(output, content=content)

    async def _failed(
        self, call: ak.ToolInvocation, error: str, took: dict[str, ak.JsonValue]
    ) -> None:
        """Run the hooks of a call that failed. A checkpoint only if there are any.

        Cancellation:
          Passes through.

        """
        fields = self._call_fields(call) | took
        # A call that was interrupted comes to no hook.
        fields |= {"error": error, "is_interrupt": False}
        verdict = await self._runner.run(
            call.agent,
            "PostToolUseFailure",
            str(fields["tool_name"]),
            fields,
            call.signal,
        )
        self._add(call, "PostToolUseFailure", verdict)
        await self._obey(call, verdict)

    def _call_fields(self, call: ak.ToolInvocation) -> dict[str, ak.JsonValue]:
        return {
            "turn_id": str(call.turn),
            "tool_name": self._runner.names.get(call.name, call.name),
            "tool_input": call.arguments,
            "tool_use_id": call.call_id,
        }

    def _add(self, call: ak.ToolInvocation, event: str, verdict: Verdict) -> None:
        """Have what hooks say about a call stand behind the results of its step."""
        for message in notes(call.agent, event, verdict):
            call.agent.inject(message)

    async def _obey(self, call: ak.ToolInvocation, verdict: Verdict) -> None:  # noqa: ASYNC910  # waits only if it must
        """Stop the turn if a hook says so. A checkpoint only then.

        Cancellation:
          That is how it leaves after a stop.

        """
        if verdict.stop is not None:
            call.agent.cancel(ak.USER, keep_inbox=True, turn=call.turn)
            await trio.lowlevel.checkpoint()


def _stop_once_recorded(call: ak.ToolInvocation) -> None:
    """Stop the turn when the log has the call's result: it is what hooks made of it."""

    def appended(payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ToolReturned) and fact.call_id == call.call_id:
            unregister()
            call.agent.cancel(ak.USER, keep_inbox=True, turn=call.turn)

    unregister = call.agent.on(ak.Appended, appended)
