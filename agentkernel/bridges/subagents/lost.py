"""Children that a restart has cut off, as the log of their parent shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

import agentkernel as ak

__all__ = ["lost_children"]


def lost_children(events: Iterable[ak.SessionEvent]) -> list[ak.SubagentDescribed]:
    """Make the endings of children that were started and did not come to one.

    Those that a fork has copied from its original are the original's, and are left
    alone. Meant for the log of a session that has just been resumed: there, nothing
    that was running before runs any more.

    Args:
      events: those of one session, from its header on.

    """
    begun: dict[str, ak.SubagentDescribed] = {}
    copied = 0
    for event in events:
        fact = event.data
        if isinstance(fact, ak.SessionHeader):
            copied = fact.lineage.forked_at or 0
        elif isinstance(fact, ak.SubagentDescribed) and event.seq > copied:
            if fact.ending is None:
                begun[fact.child] = fact
            else:
                begun.pop(fact.child, None)
    ending = ak.Ending("interrupted")
    return [msgspec.structs.replace(fact, ending=ending) for fact in begun.values()]
