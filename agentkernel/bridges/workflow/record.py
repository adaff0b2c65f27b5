"""What a workflow's session remembers: which agents ran, with which results. Pure.

A result is found again by its key: the position of the request in the workflow, and a
digest of everything that was asked. A program that asks for something else at the same
position does not get the old result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, cast, final

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Report

__all__ = [
    "BEGUN",
    "DONE",
    "ENDED",
    "PHASE",
    "STARTED",
    "Record",
    "WorkflowEnding",
    "digest_of",
    "done",
    "workflow_ending",
]

STARTED: Final = "workflow/started"
PHASE: Final = "workflow/phase"
BEGUN: Final = "workflow/agent-started"
DONE: Final = "workflow/agent-ended"
ENDED: Final = "workflow/ended"

WorkflowEnding: TypeAlias = Literal["completed", "failed", "cancelled", "interrupted"]


def digest_of(prompt: str, persona: Persona, schema: ak.JsonValue) -> str:
    """Digest everything that an agent of a workflow is asked with."""
    asked = (prompt, persona, msgspec.to_builtins(schema))
    encoded = msgspec.json.encode(asked, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


def done(key: str, report: Report) -> ak.JsonObject:
    """Make what a record keeps of an agent that has ended."""
    return {"key": key, "report": msgspec.to_builtins(report)}


@final
class Record:
    """A view of one record: a fold of its events.

    Attributes:
      known: results that can be used again, by key; the last one counts.
      open: the sessions of agents that have begun and whose result is not here, by key.
      parent: the session of the agent that the workflow works for, if it does for one.
      name: what the workflow is called.
      ending: how the last run ended, `interrupted` if the record does not say so; None
        if there was none.
      used: whether anything has happened in it but that messages came.

    """

    def __init__(self) -> None:
        self.known: dict[str, Report] = {}
        self.open: dict[str, str] = {}
        self.parent: str | None = None
        self.name: str = ""
        self.ending: WorkflowEnding | None = None
        self.used: bool = False

    def take(self, events: Iterable[ak.SessionEvent]) -> None:
        """Go on with the next events."""
        for event in events:
            fact = event.data
            if isinstance(fact, ak.SessionHeader):
                self.parent = fact.lineage.parent
            elif not isinstance(fact, ak.InboxSpliced):
                self.used = True
            if isinstance(fact, ak.Extension) and isinstance(fact.body, Mapping):
                self._take_note(fact.name, fact.body)

    @property
    def is_record(self) -> bool:
        """Whether the session says that it is the record of a workflow."""
        return self.ending is not None

    def _take_note(self, name: str, body: ak.JsonObject) -> None:
        if name == STARTED:
            self.ending = "interrupted"
            self.name = str(body.get("name", ""))
        elif name == ENDED and self.is_record:
            self.ending = msgspec.convert(body["ending"], WorkflowEnding)
        elif name == BEGUN:
            self.open[str(body["key"])] = str(body["child"])
        elif name == DONE:
            key = str(body["key"])
            self.open.pop(key, None)
            report = msgspec.convert(_plain(body["report"]), Report)
            if report.ok:
                self.known[key] = report


def workflow_ending(events: Iterable[ak.SessionEvent]) -> WorkflowEnding | None:
    """Say how the last run of a workflow ended that a session is the record of.

    Meant for sessions that nobody holds: a run that goes on has no ending yet, and is
    called interrupted. Not a checkpoint.

    Args:
      events: those of one session, from its header on.

    Returns:
      None if the session is no record.

    """
    record = Record()
    record.take(events)
    return record.ending


def _plain(value: ak.JsonValue) -> object:
    return cast("object", msgspec.to_builtins(value))
