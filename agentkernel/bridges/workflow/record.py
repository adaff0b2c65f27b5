"""What a workflow's session remembers: which agents ran, with which results. Pure.

A result is found again by its key: the position of the request in the workflow, and a
digest of everything that was asked. A program that asks for something else at the same
position does not get the old result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, cast, final

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Report

__all__ = ["BEGUN", "DONE", "ENDED", "PHASE", "STARTED", "Record", "digest_of"]

STARTED: Final = "workflow/started"
PHASE: Final = "workflow/phase"
BEGUN: Final = "workflow/agent-started"
DONE: Final = "workflow/agent-ended"
ENDED: Final = "workflow/ended"


def digest_of(prompt: str, persona: Persona, schema: ak.JsonValue) -> str:
    """Digest everything that an agent of a workflow is asked with."""
    asked = (prompt, persona, msgspec.to_builtins(schema))
    encoded = msgspec.json.encode(asked, order="deterministic")
    return hashlib.sha256(encoded).hexdigest()[:32]


def report_body(report: Report) -> ak.JsonObject:
    """Make what the session keeps of a report."""
    body: dict[str, ak.JsonValue] = msgspec.to_builtins(report)
    return body


@final
class Record:
    """A view of one record: a fold of its events.

    Attributes:
      known: results that can be used again, by key; the last one counts.
      open: the sessions of agents that have begun and whose result is not here, by key.
      is_record: whether the session says that it is the record of a workflow.
      used: whether anything has happened in it but that messages came.

    """

    def __init__(self) -> None:
        self.known: dict[str, Report] = {}
        self.open: dict[str, str] = {}
        self.is_record = False
        self.used = False

    def take(self, events: Iterable[ak.SessionEvent]) -> None:
        """Go on with the next events."""
        for event in events:
            fact = event.data
            if not isinstance(fact, ak.SessionHeader | ak.InboxSpliced):
                self.used = True
            if isinstance(fact, ak.Extension) and isinstance(fact.body, Mapping):
                self._take_note(fact.name, fact.body)

    def _take_note(self, name: str, body: ak.JsonObject) -> None:
        if name == STARTED:
            self.is_record = True
        elif name == BEGUN:
            self.open[str(body["key"])] = str(body["child"])
        elif name == DONE:
            key = str(body["key"])
            self.open.pop(key, None)
            report = msgspec.convert(_plain(body["report"]), Report)
            if report.ok:
                self.known[key] = report


def _plain(value: ak.JsonValue) -> object:
    return cast("object", msgspec.to_builtins(value))
