"""What a workflow is told, tells and raises: limits, progress, errors. Values only."""

from __future__ import annotations

from typing import Literal

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import Report

__all__ = [
    "Progress",
    "WorkflowAgentError",
    "WorkflowLimitError",
    "WorkflowLimits",
    "WorkflowRecordError",
]


class WorkflowAgentError(ak.AgentKernelError):
    """If an agent of a workflow did not do what it was asked for.

    Attributes:
      report: what became of it.
      label: the name of its persona.
      position: where in the workflow it was asked.
      phase: that went on, empty if the workflow has none.

    """

    def __init__(
        self, report: Report, *, label: str, position: str, phase: str = ""
    ) -> None:
        assert report.failure is not None
        self.report = report
        self.label = label
        self.position = position
        self.phase = phase
        where = f", in phase {phase!r}" if phase else ""
        super().__init__(
            f"agent {label!r} at {position}{where}: {report.failure.message}"
        )


class WorkflowLimitError(ak.AgentKernelError):
    """If a workflow has more agents, deeper ones, or used more tokens, than it may."""


class WorkflowRecordError(ak.AgentKernelError):
    """If the session that is to be a workflow's record is something else, or not there."""

    def __init__(
        self, session_id: str, problem: str = "is not the record of a workflow"
    ) -> None:
        self.session_id = session_id
        self.problem = problem
        super().__init__(f"{session_id!r} {problem}")


class WorkflowLimits(msgspec.Struct, frozen=True):
    """What a workflow may use.

    Attributes:
      at_once: how many agents may run at once; more wait.
      agents: how many may run in all; results that are used again do not count.
      tokens: after how many known tokens, input and output together, no further agent
        is started; None for no limit.
      depth: how deep its agents may be. An agent that nobody started has depth 0; the
        record of its workflow is below it, and the workflow's agents are below that.

    """

    at_once: int = 5
    agents: int = 100
    tokens: int | None = None
    depth: int = 6

    def __post_init__(self) -> None:
        """Refuse a limit that nothing fits."""
        least = {"at_once": 1, "agents": 0, "tokens": 0, "depth": 1}
        for name, lowest in least.items():
            limit: int | None = getattr(self, name)
            if limit is not None and limit < lowest:
                raise ValueError(f"{name} must be at least {lowest}, not {limit}")


class Progress(msgspec.Struct, frozen=True):
    """Something has happened in a workflow.

    Attributes:
      kind: a phase began; an agent was started, has ended (also when it was stopped),
        or was not needed since its result is known from an earlier run.
      phase: the phase that goes on.
      position: of the agent, empty for a phase.
      label: a few words for people.
      report: what became of the agent, if it has ended.

    """

    kind: Literal["phase", "started", "ended", "reused"]
    phase: str
    position: str = ""
    label: str = ""
    report: Report | None = None
