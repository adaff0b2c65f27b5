"""What a workflow's session remembers: which agents ran, with which results. Pure.

A result is found again by its key: the position of the request in the workflow, and a
digest of everything that was asked. A program that asks for something else at the same
position does not get the old result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Report

__all__ = [
    "BEGUN",
    "DONE",
    "ENDED",
    "PHASE",
    "STARTED",
    "digest_of",
    "is_record",
    "reports_of",
]

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


def reports_of(events: Iterable[ak.SessionEvent]) -> dict[str, Report]:
    """Read the results that can be used again, by key; the last one counts."""
    found: dict[str, Report] = {}
    for event in events:
        fact = event.data
        if not isinstance(fact, ak.Extension) or fact.name != DONE:
            continue
        body = fact.body
        if isinstance(body, Mapping):
            report = msgspec.convert(_plain(body["report"]), Report)
            if report.ok:
                found[str(body["key"])] = report
    return found


def is_record(events: Iterable[ak.SessionEvent]) -> bool:
    """Whether a session says that it is the record of a workflow."""
    return any(
        isinstance(event.data, ak.Extension) and event.data.name == STARTED
        for event in events
    )


def _plain(value: ak.JsonValue) -> object:
    return cast("object", msgspec.to_builtins(value))
