"""What a person has allowed for the rest of a session: facts of its log, read once."""

from __future__ import annotations

from typing import Final, final

import trio

import agentkernel as ak

__all__ = ["GRANT", "Grants"]

# The name of the extension that remembers a yes for the session.
GRANT: Final = "approval/granted"


@final
class Grants:
    """What was allowed for the rest of one session; read from its log once."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self._loaded = False

    async def load(self, session: ak.Session) -> None:
        """Read what an earlier life of the session has granted.

        Always a checkpoint.

        Cancellation:
          Passes through; the next call reads again.

        """
        if not self._loaded:
            async with session.subscribe(follow=False, buffer=None) as events:
                async for event in events:
                    if isinstance(event, ak.SessionEvent):
                        self._take(session.id, event.data)
            self._loaded = True
        await trio.lowlevel.checkpoint()

    def _take(self, session_id: str, fact: ak.Fact) -> None:
        if not isinstance(fact, ak.Extension) or fact.name != GRANT:
            return
        body = fact.body
        if isinstance(body, dict) and body.get("session") == session_id:
            self.known.add(str(body.get("grant")))
