"""How an agent comes to be: from nothing, from its stored session, from another's.

Opening brings a claimed session's log into memory, whole: with a header in front, and
with the facts that a crash, or a fork, left out at its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import trio

from .._errors import SessionFormatError, StorageError
from .._messages import ToolFailure
from .._session.events import (
    FORMAT,
    Fact,
    InboxSpliced,
    Lineage,
    SessionEvent,
    SessionHeader,
    SubagentDescribed,
    TurnEnded,
    TurnStarted,
)
from .._session.log import Log
from .._session.repair import (
    closing_facts,
    discard_facts,
    last_ending,
    lost_children,
    repair_facts,
)
from ..abc import Append, Claim, SessionStore
from .options import AgentOptions

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Opening", "load", "with_model"]

_PAGE: Final = 1000
_CHILDREN: Final = (SessionHeader, SubagentDescribed)
_TURNS: Final = (SessionHeader, TurnStarted, TurnEnded)
_LEFT: Final = ToolFailure(
    "LEFT_TO_ORIGINAL",
    "This call belongs to the session that this one was forked from; its result is "
    "not known here.",
)


class Opening(msgspec.Struct, frozen=True, kw_only=False):
    """How an agent comes to be."""

    source_kind: Literal["create", "resume", "fork"]
    options: AgentOptions | None
    parent: Agent | None
    takeover: bool
    model: str = ""
    source: str = ""
    at: int = 0


async def load(
    store: SessionStore,
    claim: Claim,
    opening: Opening,
    now: Callable[[], float],
) -> Log:
    """Bring a claimed session's log into memory, with a header and repaired.

    Always a checkpoint.

    Cancellation:
      Nothing but copied history was written.

    """
    log = Log(claim, now)
    children: list[SessionEvent] = []
    if opening.source_kind == "create":
        options = opening.options or AgentOptions()
        log.append(SessionHeader(FORMAT, options.as_json(), lineage_of(opening.parent)))
    elif opening.source_kind == "resume":
        last: SessionEvent | None = None
        while page := await _page(
            store, claim.session_id, 0 if last is None else last.seq, claim.last_seq
        ):
            log.replay(page)
            last = page[-1]
            children += [event for event in page if isinstance(event.data, _CHILDREN)]
        await _finish_copy(store, log, last)
    else:
        await _copy(store, log, opening)
    if log.fold.header is None:
        raise SessionFormatError("it does not begin with session/header", seq=1)
    lost = [await _ended(store, fact) for fact in lost_children(children)]
    for fact in (*repair_facts(log.fold), *lost):
        log.append(fact)
    await trio.lowlevel.checkpoint()
    return log


async def _ended(store: SessionStore, begun: SubagentDescribed) -> SubagentDescribed:
    """Say how a child ended that a crash cut off from its parent, as its own log does.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    await trio.lowlevel.checkpoint()
    events: list[SessionEvent] = []
    after = 0
    # One in another program has no session here, and of one that cannot be read
    # nobody knows more.
    with suppress(StorageError):
        while page := await _page(store, begun.child, after, after + _PAGE):
            events += [event for event in page if isinstance(event.data, _TURNS)]
            after = page[-1].seq
    return msgspec.structs.replace(begun, ending=last_ending(events))


async def _finish_copy(  # noqa: ASYNC910  # waits only if it must
    store: SessionStore, log: Log, last: SessionEvent | None
) -> None:
    """Go on with a fork that was cut before all of its history was there.

    Taken as it is, it would be missing a part without saying so, and what waited in
    its source would be its own.

    A checkpoint only if there is something to copy.

    Cancellation:
      More of the history was written.

    """
    header = log.fold.header
    if header is None or header.lineage.forked_from is None:
        return  # noqa: ASYNC910  # waits only if it must
    source, at = header.lineage.forked_from, header.lineage.forked_at or 0
    if log.last_seq <= at or (
        log.last_seq == at + 1 and last is not None and _is_discard(last.data)
    ):
        fork = Opening("fork", None, None, takeover=False, source=source, at=at)
        await _copy(store, log, fork)


async def _copy(store: SessionStore, log: Log, opening: Opening) -> None:
    """Begin a fork's log with the history of its source.

    Always a checkpoint.

    Cancellation:
      Part of the history was written.

    """
    while events := await _page(store, opening.source, log.last_seq, opening.at):
        if events[0].seq == 1:
            events[0] = _fork_header(events[0], opening)
        with trio.CancelScope(shield=True):
            await store.write([Append(log.claim, events)])
        log.replay(events)
        log.skip_to(events[-1].seq)
    fold = log.fold
    # First what a resume could not tell from the fork's own, if the rest were lost.
    for fact in discard_facts(fold):
        log.append(fact)
    for fact in closing_facts(fold, started=_LEFT, unstarted=_LEFT):
        log.append(fact)


def _is_discard(fact: Fact) -> bool:
    """Whether it may be the first of two that discard what a fork does not inherit."""
    return isinstance(fact, InboxSpliced) and fact.outcome == "discarded"


async def _page(
    store: SessionStore, session_id: str, after: int, end: int
) -> list[SessionEvent]:
    """Read the next events of a session, none behind `end`.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    """
    await trio.lowlevel.checkpoint()
    limit = min(_PAGE, end - after)
    if limit <= 0:
        return []
    return list(await store.read(session_id, after=after, limit=limit))


def with_model(options: AgentOptions | None, model: str) -> AgentOptions:
    options = options or AgentOptions()
    return msgspec.structs.replace(options, model=model) if model else options


def lineage_of(parent: Agent | None) -> Lineage:
    if parent is None:
        return Lineage()
    return Lineage(parent=parent.id, depth=parent.session.header.lineage.depth + 1)


def _fork_header(event: SessionEvent, opening: Opening) -> SessionEvent:
    """Make the header of a fork out of its source's."""
    header = event.data
    if not isinstance(header, SessionHeader):
        raise SessionFormatError("it does not begin with session/header", seq=1)
    options = header.options if opening.options is None else opening.options.as_json()
    own = lineage_of(opening.parent)
    lineage = Lineage(
        parent=own.parent,
        forked_from=opening.source,
        forked_at=opening.at,
        depth=own.depth if opening.parent is not None else header.lineage.depth,
    )
    return SessionEvent(1, event.time, SessionHeader(FORMAT, options, lineage))
