"""What a child is asked for and what it gives back: frozen values.

A `Persona` says who the child is; a `Report` says what became of its work. Both kinds
of children, those in this process and those behind a protocol, give reports.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from agentkernel import (
    AgentKernelError,
    AgentOptions,
    JsonValue,
    TextBlock,
    ToolFailure,
    ToolOutput,
    Usage,
)
from agentkernel.tools import Survivor
from agentkernel.tools.survivors import list_survivors, show_survivors

__all__ = [
    "NO_ANSWER",
    "ChildEnding",
    "ChildRefusedError",
    "Persona",
    "Report",
    "add_usage",
    "as_output",
]

# The code of a failure: the child ended well and gave no answer of the schema.
NO_ANSWER: Final = "CHILD_NO_ANSWER"

ChildEnding: TypeAlias = Literal[
    "completed",
    "max-tokens",
    "max-steps",
    "blocked",
    "aborted",
    "disposed",
    "error",
    "interrupted",
    "discarded",
]

_WORDS: Final[dict[ChildEnding, str]] = {
    "max-tokens": "its answer was cut at the token limit",
    "max-steps": "it reached its limit of steps",
    "blocked": "its work was blocked",
    "aborted": "it was stopped",
    "disposed": "it was ended",
    "error": "it failed",
    "interrupted": "it was cut off",
    "discarded": "it was stopped before it began",
}


class ChildRefusedError(AgentKernelError):
    """If a child is asked for that must not be.

    It would be too deep, nobody knows its persona, or that is to have tools that its
    parent has not.
    """


class Persona(msgspec.Struct, frozen=True):
    """Who a child is.

    Attributes:
      name: what the parent's model calls it.
      description: what the parent's model is told about it.
      system: its system prompt, in place of its parent's; empty keeps the parent's.
      model: the name of its model; empty for its parent's.
      tools: the names of its parent's tools that it may use, also when its session is
        resumed; None for all. One that the parent has not is an error.
      fork: whether it begins with the parent's history up to its last turn that has
        ended, instead of with none.
      max_steps: how many steps its turns may have; None for as many as its parent's.

    """

    name: str = "agent"
    description: str = ""
    system: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    fork: bool = False
    max_steps: int | None = None

    def options(self, parent: AgentOptions) -> AgentOptions:
        """Make a child's options out of its parent's."""
        return msgspec.structs.replace(
            parent,
            system=self.system or parent.system,
            model=self.model or parent.model,
            max_steps=parent.max_steps if self.max_steps is None else self.max_steps,
        )


class Report(msgspec.Struct, frozen=True):
    """What became of a child's work.

    Attributes:
      child: the id of its session; a child in this process can be resumed by it.
      ending: how its turn ended.
      text: its last answer, or what it said until it was stopped.
      answer: its structured answer, if a schema was asked for and it fits.
      failure: set if the child did not do what it was asked for.
      usage: the tokens of its steps, as far as they are known.
      survivors: of a remote, the processes that it left behind, as far as they can be
        found; they were ended with it.

    """

    child: str
    ending: ChildEnding
    text: str = ""
    answer: JsonValue = None
    failure: ToolFailure | None = None
    usage: Usage | None = None
    survivors: tuple[Survivor, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the child did what it was asked for."""
        return self.failure is None


def failure_of(ending: ChildEnding, detail: str | None = None) -> ToolFailure | None:
    """Say what an ending means to the parent; None if the child completed."""
    if ending == "completed":
        return None
    words = f"The agent did not finish: {_WORDS[ending]}."
    if detail:
        words = f"{words} {detail}"
    return ToolFailure(f"CHILD_{ending.upper().replace('-', '_')}", words)


def as_output(report: Report, shown: str) -> ToolOutput:
    """Make the result of a call out of a report.

    Args:
      report: what became of the child.
      shown: the text of its answer, in the form that the model is shown.

    """
    parts = [shown] if shown else []
    if report.failure is not None:
        parts.insert(0, report.failure.message)
    meta: dict[str, JsonValue] = {"child": report.child, "ending": report.ending}
    if report.survivors:
        parts += show_survivors([one for one in report.survivors if not one.ended])
        meta["survivors"] = list_survivors(report.survivors)
    return ToolOutput(tuple(TextBlock(part) for part in parts), report.failure, meta)


def add_usage(one: Usage | None, other: Usage | None) -> Usage | None:
    """Add token counts; what one side does not know comes from the other."""
    if one is None or other is None:
        return other if one is None else one
    sums: dict[str, int | None] = {}
    for name in Usage.__struct_fields__:
        left: int | None = getattr(one, name)
        right: int | None = getattr(other, name)
        known = [count for count in (left, right) if count is not None]
        sums[name] = sum(known) if known else None
    return Usage(**sums)
