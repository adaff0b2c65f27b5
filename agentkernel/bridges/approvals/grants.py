"""What a person may allow for the rest of a session, and what they have.

The latter is facts of the session's log, read once. Where it cannot be told whether a
rule is about a call, no yes for the session covers that call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, final

import msgspec
import trio

import agentkernel as ak
from agentkernel.tools.approval import Decision, Policy, Rule, Syntax

__all__ = ["GRANT", "NO_GRANT", "Grant", "Grants", "grant_for"]

# The name of the extension that remembers a yes for the session.
GRANT: Final = "approval/granted"

_HOW: Final[Mapping[Syntax, str]] = {
    "glob": "is like",
    "regex": "fits the expression",
    "path": "is a path like",
    "command": "is one plain command like",
}


class Grant(msgspec.Struct, frozen=True):
    """What a yes for the session would permit.

    Attributes:
      key: what the log remembers; empty if such a yes cannot be given.
      words: what it covers, for who is asked.

    """

    key: str = ""
    words: str = ""


NO_GRANT: Final = Grant()


def grant_for(
    policy: Policy, decision: Decision, name: str, arguments: ak.JsonObject
) -> Grant:
    """Say what a yes for the session to this call would permit. Not a checkpoint.

    Args:
      policy: that asks.
      decision: what it says about the call.
      name: of the tool.
      arguments: of the call.

    """
    rules = policy.rules
    rule = next((each for each in rules if each.fits(name, arguments)), None)
    if decision.grant:
        words = decision.grant if rule is None else _words(rule, name)
        return Grant(decision.grant, words)
    if rule is not None or any(_may_fit(each, name, arguments) for each in rules):
        return NO_GRANT
    others = " that no rule is or may be about" if rules else ""
    return Grant(f"any call of {name}", f"any call of {name!r}{others}")


def _may_fit(rule: Rule, name: str, arguments: ak.JsonObject) -> bool:
    """Whether a rule is about a call, or that cannot be told: as one that asks takes it."""
    return msgspec.structs.replace(rule, action="ask").fits(name, arguments)


def _words(rule: Rule, name: str) -> str:
    if rule.argument is None:
        return f"any call of {name!r}"
    if rule.pattern is None:
        return f"any call of {name!r} that has {rule.argument!r}"
    how = _HOW[rule.syntax]
    return f"any call of {name!r} whose {rule.argument!r} {how} {rule.pattern!r}"


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
