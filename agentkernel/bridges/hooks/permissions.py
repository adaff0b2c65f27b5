"""Hooks that answer the question whether a call may run, in the place of a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import trio

import agentkernel as ak

from .runner import Runner

__all__ = ["PermissionHooks"]


@final
class PermissionHooks:
    """Listens to `tools/approve`; a question that no hook answers goes on.

    Only the question whether a call may run at all is put to hooks: what a body asks
    on its way, for a remote agent say, is not in what they are told. A yes is to the
    arguments that were asked about: others would run past the policy's rules.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        # The calls whose bodies run, by agent and id.
        self._begun: set[tuple[str, str]] = set()

    async def approve(
        self,
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        """Let PermissionRequest hooks answer.

        A checkpoint only if there are any, or another listener passes one.

        Cancellation:
          Passes through; a question that is cancelled is not denied.

        """
        agent, call = payload.agent, payload.call
        begun = (agent.id, call.call_id) in self._begun
        if begun or not self._runner.covers(agent):
            return await following(payload)
        name = self._runner.names.get(call.name, call.name)
        fields: dict[str, ak.JsonValue] = {
            "turn_id": str(call.turn),
            "tool_name": name,
            "tool_input": call.arguments,
            "permission_suggestions": [],
        }
        verdict = await self._runner.run(
            agent, "PermissionRequest", name, fields, payload.signal
        )
        if verdict.stop is not None:
            agent.cancel(ak.USER, keep_inbox=True, turn=call.turn)
            await trio.lowlevel.checkpoint()
        if verdict.choice == "deny":
            return ak.Deny(verdict.reason)
        if verdict.choice == "allow":
            return ak.Allow()
        return await following(payload)

    async def execute(
        self,
        payload: ak.Execute,
        following: Callable[[ak.Execute], Awaitable[ak.ToolOutput]],
    ) -> ak.ToolOutput:
        """Know which bodies run.

        A checkpoint only if the body passes one.

        Cancellation:
          Passes through.

        """
        key = (payload.agent.id, payload.call.call_id)
        self._begun.add(key)
        try:
            return await following(payload)
        finally:
            self._begun.discard(key)
