"""Hooks about all calls of one answer, before the model is shown their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import agentkernel as ak

from .notes import notes
from .runner import Runner

__all__ = ["BatchHooks"]


@final
class BatchHooks:
    """Listens to `agent/pre-step`, where a step follows calls of the one before."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def pre_step(
        self,
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        """Let PostToolBatch hooks look at the calls, add to them, or end the turn.

        A checkpoint only if there are any, or another listener passes one.

        Cancellation:
          Passes through.

        """
        agent = payload.agent
        if payload.step == 1 or not self._runner.covers(agent):
            return await following(payload)
        calls = self._ended_calls(agent)
        if not calls:
            return await following(payload)
        verdict = await self._runner.run(
            agent,
            "PostToolBatch",
            None,
            {"turn_id": str(payload.turn), "tool_calls": calls},
            payload.signal,
        )
        if verdict.stop is not None:
            return ak.Reject(verdict.stop)
        if verdict.choice == "deny":
            self._runner.tell(agent, "PostToolBatch", verdict.reason)
            return ak.Reject(verdict.reason)
        decision = await following(payload)
        if isinstance(decision, ak.Reject):
            return decision
        added = notes(agent, "PostToolBatch", verdict)
        return ak.Enter((*added, *decision.messages))

    def _ended_calls(self, agent: ak.Agent) -> list[ak.JsonValue]:
        """List the calls whose results are the last of the history, in call order."""
        messages = agent.session.messages
        results = messages[-1]
        if not isinstance(results, ak.ToolResults):
            return []
        answer = messages[-2]
        assert isinstance(answer, ak.AssistantMessage)
        ended = {result.call_id: result for result in results.results}
        return [
            {
                "tool_name": self._runner.names.get(call.name, call.name),
                "tool_input": call.arguments,
                "tool_use_id": call.call_id,
                "tool_response": _response(ended[call.call_id]),
            }
            for call in answer.calls
        ]


def _response(result: ak.ToolResult) -> dict[str, ak.JsonValue]:
    texts = (block.text for block in result.content if isinstance(block, ak.TextBlock))
    said: dict[str, ak.JsonValue] = {"content": "".join(texts)}
    if result.error is not None:
        said["error"] = result.error.code
    return said
