"""Messages in which hooks speak to the model."""

from __future__ import annotations

from typing import Literal

import agentkernel as ak

__all__ = ["note"]


def note(
    event: str,
    message_id: str,
    text: str,
    *,
    kind: Literal["user", "notice"] = "user",
) -> ak.UserMessage:
    """Make a message of a hook's words; a notice outlives a stop that drops input."""
    meta: dict[str, ak.JsonValue] = {"source": "hook", "event": event}
    return ak.UserMessage(
        message_id, (ak.TextBlock(text),), kind=kind, passive=True, meta=meta
    )
