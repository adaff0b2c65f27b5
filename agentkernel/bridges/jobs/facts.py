"""The durable side of jobs: what a session's log says of them. Pure.

A job leaves two extension facts in the session of its owner, when it is started and
when it has ended, and one notice. All of them name the owner's session: a fork copies
them, and the jobs in them stay its original's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

import agentkernel as ak

from .job import WORDS, Job, JobEnding, JobResult

__all__ = [
    "ENDED",
    "STARTED",
    "JobRecord",
    "ended_fact",
    "notice_id",
    "notice_of",
    "records_of",
    "shortened",
    "started_fact",
]

STARTED: Final = "job/started"
ENDED: Final = "job/ended"
_SHOWN = 4000


class JobRecord(msgspec.Struct, frozen=True):
    """What a log says of one job.

    Attributes:
      ending: how it ended, None if the log does not say.
      text: what it gave back.

    """

    id: str
    owner: str
    kind: str
    title: str
    ending: JobEnding | None = None
    text: str = ""


def started_fact(job: Job) -> ak.Extension:
    """Make the fact that a job was started."""
    return ak.Extension(
        STARTED,
        {"job": job.id, "owner": job.owner.id, "kind": job.kind, "title": job.title},
    )


def ended_fact(
    owner: str, job_id: str, ending: JobEnding, result: JobResult
) -> ak.Extension:
    """Make the fact that a job has ended."""
    return ak.Extension(
        ENDED,
        {
            "job": job_id,
            "owner": owner,
            "ending": ending,
            "text": result.text,
            "meta": result.meta,
        },
    )


def records_of(
    events: Iterable[ak.SessionEvent],
    owner: str,
    known: Mapping[str, JobRecord] | None = None,
) -> dict[str, JobRecord]:
    """Read the jobs of an owner out of its log, by their ids.

    What is no record of ours is passed over.

    Args:
      events: of the log, from its beginning or from where `known` ends.
      owner: whose jobs.
      known: what was before `events`.

    """
    records = dict(known or {})
    for fact in (event.data for event in events):
        if not isinstance(fact, ak.Extension) or fact.name not in {STARTED, ENDED}:
            continue
        body = fact.body
        if not isinstance(body, Mapping) or body.get("owner") != owner:
            continue
        job_id = body.get("job")
        if not isinstance(job_id, str):
            continue
        if fact.name == STARTED:
            kind, title = body.get("kind"), body.get("title")
            if isinstance(kind, str) and isinstance(title, str):
                records[job_id] = JobRecord(job_id, owner, kind, title)
        elif job_id in records:
            records[job_id] = _ended(records[job_id], body)
    return records


def _ended(record: JobRecord, body: Mapping[str, ak.JsonValue]) -> JobRecord:
    """Add an ending to a record; one that is no ending of ours is a failure."""
    ending, text = body.get("ending"), body.get("text")
    known = isinstance(ending, str) and ending in WORDS
    return msgspec.structs.replace(
        record,
        ending=cast("JobEnding", ending) if known else "failed",
        text=text if isinstance(text, str) else "",
    )


def notice_id(record_id: str) -> str:
    """Name the one notice of a job: a session accepts an id once."""
    return f"{record_id}-ended"


def notice_of(record: JobRecord) -> ak.UserMessage:
    """Make the news that a job has ended, always the same for the same ending."""
    assert record.ending is not None
    lines = [f"Job {record.id} ({record.title}) {WORDS[record.ending]}."]
    if record.text:
        lines.append(record.text)
    return ak.UserMessage(
        notice_id(record.id),
        (ak.TextBlock("\n".join(lines)),),
        kind="notice",
        meta={"job": record.id, "ending": record.ending},
    )


def shortened(text: str, shown: int = _SHOWN) -> str:
    """Keep the beginning and the end of a text that is long."""
    if len(text) <= shown:
        return text
    half = shown // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[... {left_out} characters left out ...]\n{text[-half:]}"
