"""The part of the Agent Client Protocol (version 1) that a client needs. Values only.

Names are the protocol's. What an agent sends beyond this is passed over.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

__all__ = [
    "ENDINGS",
    "PROTOCOL",
    "Content",
    "Initialized",
    "PermissionOption",
    "PermissionRequest",
    "Prompted",
    "SessionCreated",
    "SessionUpdate",
    "Update",
]

PROTOCOL: Final = 1


class _Wire(msgspec.Struct, frozen=True, rename="camel"):
    """A value of the protocol: camel case on the wire."""


class Initialized(_Wire, frozen=True):
    """What an agent says of itself."""

    protocol_version: int


class SessionCreated(_Wire, frozen=True):
    """The answer to `session/new`."""

    session_id: str


class Prompted(_Wire, frozen=True):
    """The answer to `session/prompt`: the turn is over, and nothing more follows."""

    stop_reason: str


class Content(_Wire, frozen=True):
    """A block of content; only text is looked at."""

    type: str = ""
    text: str = ""


class Update(_Wire, frozen=True):
    """What has happened in an agent's turn."""

    session_update: str
    content: Content | list[object] | None = None
    tool_call_id: str = ""
    title: str | None = None
    status: str | None = None


class SessionUpdate(_Wire, frozen=True):
    """The parameters of `session/update`."""

    session_id: str
    update: Update


class PermissionOption(_Wire, frozen=True):
    """One of the answers that an agent offers."""

    option_id: str
    name: str = ""
    kind: str = ""


class _ToolCall(_Wire, frozen=True):
    tool_call_id: str = ""
    title: str | None = None
    kind: str | None = None


class PermissionRequest(_Wire, frozen=True):
    """The parameters of `session/request_permission`."""

    session_id: str
    tool_call: _ToolCall
    options: tuple[PermissionOption, ...] = ()


# A remote's reasons to stop, as our endings.
ENDINGS: Final[
    dict[str, Literal["completed", "max-tokens", "max-steps", "blocked", "aborted"]]
] = {
    "end_turn": "completed",
    "max_tokens": "max-tokens",
    "max_turn_requests": "max-steps",
    "refusal": "blocked",
    "cancelled": "aborted",
}
