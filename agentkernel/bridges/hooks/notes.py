"""Messages in which hooks speak to the model.

The id of a message names its session and the run that it comes from, as the log does:
so it is nobody else's, in a fork of the session and beside hooks of another owner too.
"""

from __future__ import annotations

from typing import Literal

import agentkernel as ak

from .verdict import Verdict

__all__ = ["note", "notes"]


def notes(
    agent: ak.Agent,
    event: str,
    verdict: Verdict,
    *,
    kind: Literal["user", "notice"] = "user",
) -> list[ak.UserMessage]:
    """Make messages of a verdict's texts; notices outlive a stop that drops input."""
    return [
        note(agent, event, verdict, text, kind=kind, number=str(number))
        for number, text in enumerate(verdict.texts, 1)
    ]


def note(
    agent: ak.Agent,
    event: str,
    verdict: Verdict,
    text: str,
    *,
    kind: Literal["user", "notice"] = "user",
    number: str = "0",
) -> ak.UserMessage:
    """Make a message of one text that follows from a verdict."""
    meta: dict[str, ak.JsonValue] = {"source": "hook", "event": event}
    message_id = f"{agent.id}:{verdict.source}:{number}"
    return ak.UserMessage(
        message_id, (ak.TextBlock(text),), kind=kind, passive=True, meta=meta
    )
