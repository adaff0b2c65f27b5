"""Hooks about ends: of a turn, of a turn that was stopped, of an agent."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, final

import trio

import agentkernel as ak

from .hook import HookEvent
from .notes import note
from .runner import Runner

__all__ = ["MAX_BLOCKS", "EndHooks"]

# How often in a row Stop hooks may refuse the end of one turn.
MAX_BLOCKS: Final = 8


@final
class EndHooks:
    """Listens to `agent/turn-stopping`, to the log, and waits for an agent's end."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def turn_stopping(self, payload: ak.TurnStopping) -> None:
        """Let Stop hooks have the turn go on, a bounded number of times.

        A checkpoint only if there are any.

        Cancellation:
          Passes through.

        """
        agent = payload.agent
        if not self._runner.covers(agent):
            return  # noqa: ASYNC910  # waits only if it must
        state = self._runner.state(agent)
        if state.turn != payload.turn:
            state.turn, state.blocks = payload.turn, 0
        event: HookEvent = "Stop" if agent.parent is None else "SubagentStop"
        fields: dict[str, ak.JsonValue] = {
            "turn_id": str(payload.turn),
            "stop_hook_active": state.blocks > 0,
            "last_assistant_message": _last_answer(agent),
        }
        if event == "SubagentStop":
            fields["agent_transcript_path"] = None
        subject = None if event == "Stop" else agent.options.model
        verdict = await self._runner.run(agent, event, subject, fields, payload.signal)
        refused = verdict.choice == "deny"
        words = [verdict.reason] if refused else []
        words += verdict.texts
        if verdict.stop is not None or not words:
            state.blocks = 0
            return
        last_step = payload.step >= agent.options.max_steps
        if state.blocks >= MAX_BLOCKS or last_step:
            why = (
                "the turn has no step left"
                if last_step
                else "it was asked often enough"
            )
            what = (
                "The turn ends although a hook refuses"
                if refused
                else "The model is not shown what a hook says"
            )
            self._runner.tell(agent, event, f"{what}: {why}")
            return
        text = words[0]
        if len(words) > 1:
            text = await self._runner.fitted("\n".join(words))
            payload.signal.raise_if_cancelled()
        state.blocks += 1
        message = note(agent, event, verdict, text)
        state.own.add(message.id)
        agent.steer(message)

    def appended(self, payload: ak.Appended) -> None:
        """Start the hooks of a turn that was aborted or failed; nothing waits for them."""
        agent, fact = payload.agent, payload.event.data
        if not isinstance(fact, ak.TurnEnded) or not self._runner.covers(agent):
            return
        ending = fact.reason
        fields: dict[str, ak.JsonValue] = {"turn_id": str(fact.turn)}
        if ending.kind == "aborted":
            self._observe(agent, "Interrupt", None, fields)
        elif ending.kind == "error":
            fields |= {
                "error": ending.code,
                "error_details": ending.message,
                "last_assistant_message": _last_answer(agent),
            }
            self._observe(agent, "StopFailure", ending.code, fields)

    def _observe(
        self,
        agent: ak.Agent,
        event: HookEvent,
        subject: str | None,
        fields: dict[str, ak.JsonValue],
    ) -> None:
        """Start hooks that nothing waits for; an agent that is ending starts none."""

        async def observe() -> None:
            self._runner.observe(agent, event, subject, fields)
            await trio.lowlevel.checkpoint()

        with suppress(ak.AgentDisposedError):
            agent.start_soon(observe, name=f"{event} hooks")

    def await_end(self, agent: ak.Agent) -> None:
        """Run SessionEnd hooks when the agent ends, before its session closes."""
        if not self._runner.covers(agent) or agent.parent is not None:
            return

        async def wait_for_end() -> None:
            try:
                await trio.sleep_forever()
            finally:
                # Bounded: by the limits of the hooks and of the end of a process.
                with trio.CancelScope(shield=True):
                    await self._runner.run(
                        agent,
                        "SessionEnd",
                        "other",
                        {"reason": "other"},
                        ak.TurnSignal(),
                    )

        # One that is ending already had no hooks when its end began.
        with suppress(ak.AgentDisposedError):
            agent.start_soon(wait_for_end, name="SessionEnd hooks")


def _last_answer(agent: ak.Agent) -> str | None:
    for message in reversed(agent.session.messages):
        if isinstance(message, ak.AssistantMessage):
            return message.text
    return None
