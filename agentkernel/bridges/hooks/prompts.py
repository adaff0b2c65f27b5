"""Hooks about what goes into a step: the start of an agent, and each prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import msgspec

import agentkernel as ak

from .hook import HookEvent
from .notes import notes
from .runner import Runner
from .verdict import Verdict

__all__ = ["PromptHooks"]


@final
class PromptHooks:
    """Listens to `agent/pre-step`."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def pre_step(
        self,
        payload: ak.PreStep,
        following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
    ) -> ak.Enter | ak.Reject:
        """Run the hooks of the start, then those of each prompt.

        A checkpoint only if there are any, or another listener passes one.

        Cancellation:
          Passes through; the hooks of the start run again with the next turn if
          they were interrupted.

        """
        agent = payload.agent
        if not self._runner.covers(agent):
            return await following(payload)
        stop = await self._start(agent, payload.signal)
        if stop is not None:
            return ak.Reject(stop)
        kept: list[ak.UserMessage] = []
        added: list[ak.UserMessage] = []
        reasons: list[str] = []
        for message in payload.messages:
            if not self._is_prompt(agent, message):
                kept.append(message)
                continue
            verdict = await self._prompt(payload, message)
            if verdict.stop is not None:
                return ak.Reject(verdict.stop)
            if verdict.choice == "deny":
                reasons.append(verdict.reason)
                self._runner.tell(agent, "UserPromptSubmit", verdict.reason)
                continue
            kept.append(message)
            added += notes(agent, "UserPromptSubmit", verdict)
        prompts = any(self._is_prompt(agent, message) for message in kept)
        if reasons and not prompts and payload.step == 1:
            return ak.Reject("\n".join(reasons))
        changed = msgspec.structs.replace(payload, messages=tuple(kept))
        decision = await following(changed)
        if isinstance(decision, ak.Reject) or not decision.messages:
            return decision
        greetings = [
            note
            for note in self._runner.state(agent).greetings
            if agent.session.record(note.id) is None
        ]
        return ak.Enter((*greetings, *decision.messages, *added))

    def _is_prompt(self, agent: ak.Agent, message: ak.UserMessage) -> bool:
        if message.passive or message.kind != "user":
            return False
        return message.id not in self._runner.state(agent).own

    async def _prompt(self, payload: ak.PreStep, message: ak.UserMessage) -> Verdict:
        """Run the hooks of one prompt. A checkpoint only if there are any.

        Cancellation:
          Passes through.

        """
        fields: dict[str, ak.JsonValue] = {
            "turn_id": str(payload.turn),
            "prompt_id": message.id,
            "prompt": message.text,
        }
        return await self._runner.run(
            payload.agent, "UserPromptSubmit", None, fields, payload.signal
        )

    async def _start(self, agent: ak.Agent, signal: ak.TurnSignal) -> str | None:
        """Run the hooks of the agent's start, before its first request, once.

        A checkpoint only if there are any.

        Cancellation:
          Passes through; they run again.

        Returns:
          Why nothing may enter, if a hook says that.

        """
        state = self._runner.state(agent)
        if state.started:
            return None  # noqa: ASYNC910  # waits only if it must
        event: HookEvent = "SessionStart" if agent.parent is None else "SubagentStart"
        session = agent.session
        if event == "SubagentStart":
            subject = agent.options.model
            fields: dict[str, ak.JsonValue] = {}
        else:
            forked = session.header.lineage.forked_from is not None
            first = "fork" if forked else "startup"
            subject = "resume" if session.epoch > 1 else first
            fields = {"source": subject, "model": agent.options.model}
        verdict = await self._runner.run(agent, event, subject, fields, signal)
        if verdict.stop is not None:
            return verdict.stop
        state.started = True
        state.greetings = notes(agent, event, verdict)
        return None
