"""What follows from a hook, or from all of an event: values, and how they add up. Pure.

Texts are as long as the hooks made them: `Spill` shortens them before anybody is told.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

import agentkernel as ak

__all__ = ["Choice", "HookRun", "Outcome", "Verdict", "merge"]

Outcome: TypeAlias = Literal["success", "blocked", "failed", "timed-out", "cancelled"]
Choice: TypeAlias = Literal["none", "allow", "ask", "deny"]

# From the weakest to the strongest.
_CHOICES: Final[tuple[Choice, ...]] = ("none", "allow", "ask", "deny")


class HookRun(msgspec.Struct, frozen=True):
    """How the process of one hook ended.

    Attributes:
      exit_code: negative for a signal; None if it was not started or not reaped.
      stdout, stderr: as text; what was too much is left out, and said so.
      cut: whether any of `stdout` was left out.
      cancelled, timed_out: why it was ended, if it did not end by itself.
      duration: seconds.
      problem: why it could not be started, or run to its end; None if it was.
      survivors: processes that it left behind, as the log names them.

    """

    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    cut: bool = False
    cancelled: bool = False
    timed_out: bool = False
    duration: float = 0.0
    problem: str | None = None
    survivors: tuple[str, ...] = ()


class Verdict(msgspec.Struct, frozen=True):
    """What follows from one hook, or from all of an event.

    Attributes:
      outcome: of the run.
      choice: about what was asked. `deny` is also the block of events other than
        PreToolUse.
      reason: of the choice.
      stop: why the agent is to stop, None if it is not.
      updated_input: arguments to run instead, None to leave them.
      updated_output: what the model is shown instead of a tool's output.
      texts: for the model.
      messages: for the user.
      detail: for the log: what was wrong with the run.
      source: the run that it comes from, or the first of those; it names messages.
      wake: what a detached hook wakes the agent with, None if it does not.

    """

    outcome: Outcome = "success"
    choice: Choice = "none"
    reason: str = ""
    stop: str | None = None
    updated_input: ak.JsonObject | None = None
    updated_output: str | None = None
    texts: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    detail: str | None = None
    wake: str | None = None
    source: str = ""

    @property
    def decision(self) -> str:
        """What the log says was decided: `wake`, or `stop` before the choice."""
        if self.wake is not None:
            return "wake"
        return "stop" if self.stop is not None else self.choice


def merge(verdicts: list[Verdict]) -> Verdict:
    """Fold the verdicts of an event, in the order of the settings.

    The strongest choice stands, with the reasons of all that made it; of several
    changed inputs or outputs the last counts; the first stop counts.
    """
    choices: list[Choice] = [v.choice for v in verdicts]
    choice = max(choices, key=_CHOICES.index) if choices else "none"
    reasons = [v.reason for v in verdicts if v.choice == choice and v.reason]
    stops = [v.stop for v in verdicts if v.stop is not None]
    inputs = [v.updated_input for v in verdicts if v.updated_input is not None]
    outputs = [v.updated_output for v in verdicts if v.updated_output is not None]
    return Verdict(
        choice=choice,
        reason="\n".join(reasons) if choice != "none" else "",
        stop=stops[0] if stops else None,
        updated_input=inputs[-1] if inputs else None,
        updated_output=outputs[-1] if outputs else None,
        texts=tuple(text for v in verdicts for text in v.texts),
        messages=tuple(message for v in verdicts for message in v.messages),
    )
