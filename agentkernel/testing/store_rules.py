"""What every store promises, one function for each rule.

A rule's docstring says what holds; `check_store` shows it when the rule is broken.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import trio
import trio.testing

from agentkernel import (
    Append,
    BinaryBlock,
    Blob,
    Claim,
    EpochStart,
    Extension,
    Fact,
    MessageEntered,
    SessionBusyError,
    SessionEvent,
    SessionExistsError,
    SessionHeader,
    SessionInfo,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    TextBlock,
    TurnStarted,
    UserMessage,
    freeze,
)

__all__ = ["RULES", "MakeStore"]

MakeStore: TypeAlias = Callable[[], SessionStore]


# The tokens of two kernels.
_A, _B = "a", "b"


def _new_id() -> str:
    return f"check-{secrets.token_hex(8)}"


def _event(seq: int, fact: Fact | None = None) -> SessionEvent:
    return SessionEvent(seq, 1_700_000_000.0 + seq, fact or TurnStarted(seq))


def _events(first: int, last: int) -> list[SessionEvent]:
    return [_event(seq) for seq in range(first, last + 1)]


async def _fill(store: SessionStore, session_id: str, last: int) -> Claim:
    claim = await store.claim(session_id, token=_new_id(), create=True)
    displaced = await store.write([Append(claim, _events(1, last))])
    _same(list(displaced), [], "claims reported as taken over")
    return claim


def _same(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise AssertionError(f"{what}: expected {expected!r}, found {found!r}")


async def _refused(
    kind: type[StorageError], call: Callable[[], Awaitable[object]], what: str
) -> None:
    refused = False
    try:
        await call()
    except kind:
        refused = True
    if not refused:
        raise AssertionError(f"{what}: no {kind.__name__}")
    await trio.lowlevel.checkpoint()


async def _read_pages(make_store: MakeStore) -> None:
    """Events are read back equal, in order, from any number on, in pages."""
    session_id = _new_id()
    async with make_store() as store:
        claim = await store.claim(session_id, token=_A, create=True)
        _same((claim.epoch, claim.last_seq), (1, 0), "a new session's claim")
        _same(claim.epochs, (EpochStart(1, 0),), "a new session's epochs")
        for first, last in ((1, 3), (4, 4), (5, 9)):
            await store.write([Append(claim, _events(first, last))])
        for after in range(11):
            for limit in (1, 3, 100):
                page = await store.read(session_id, after=after, limit=limit)
                expected = _events(after + 1, min(after + limit, 9))
                _same(list(page), expected, f"read(after={after}, limit={limit})")


async def _keep_across_handles(make_store: MakeStore) -> None:
    """What was written is there in the next handle."""
    session_id = _new_id()
    async with make_store() as store:
        await _fill(store, session_id, 5)
    async with make_store() as store:
        _same(list(await store.read(session_id)), _events(1, 5), "events")
        claim = await store.claim(session_id, token=_B, create=False)
        _same((claim.epoch, claim.last_seq), (2, 5), "the next claim")
        await store.write([Append(claim, _events(6, 6))])
        _same(list(await store.read(session_id)), _events(1, 6), "events and one more")


async def _claims_are_exclusive(make_store: MakeStore) -> None:
    """A session that is claimed is refused, to its own holder too."""
    session_id = _new_id()
    async with make_store() as store, make_store() as other:
        claim = await store.claim(session_id, token=_A, create=True)
        for what in ("an empty session", "a session with events"):
            for handle in (store, other):
                for token in (_A, _B):
                    claiming = partial(
                        handle.claim, session_id, token=token, create=False
                    )
                    await _refused(SessionBusyError, claiming, f"{what}, {token}")
            await store.write([Append(claim, _events(1, 1))])
        await store.write([Append(claim, _events(2, 2))])
        _same(list(await other.read(session_id)), _events(1, 2), "the owner's events")


async def _one_of_many_wins(make_store: MakeStore) -> None:
    """Of many that claim at once, one gets it."""
    session_id = _new_id()
    won: list[Claim] = []
    async with make_store() as store, make_store() as other:
        await store.release(await _fill(store, session_id, 1))

        async def attempt(handle: SessionStore, token: str) -> None:
            with suppress(SessionBusyError):
                won.append(await handle.claim(session_id, token=token, create=False))
            await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            for number in range(10):
                handle = other if number % 2 else store
                nursery.start_soon(attempt, handle, f"t{number}")
        _same(len(won), 1, "claims that were made")


async def _takeover_fences(make_store: MakeStore) -> None:
    """A claim that was taken over writes nothing any more, and is reported."""
    taken, kept = _new_id(), _new_id()
    async with make_store() as store, make_store() as other:
        old = await _fill(store, taken, 3)
        mine = await _fill(store, kept, 1)
        new = await other.claim(taken, token=_B, create=False, takeover=True)
        _same((new.epoch, new.last_seq), (2, 3), "the new claim")
        displaced = await store.write(
            [Append(old, _events(4, 6)), Append(mine, _events(2, 2))]
        )
        _same([c.session_id for c in displaced], [taken], "claims taken over")
        _same(list(await other.read(taken)), _events(1, 3), "after the late write")
        _same(list(await other.read(kept)), _events(1, 2), "the rest of the batch")
        await other.write([Append(new, _events(4, 4))])
        displaced = await store.write([Append(old, _events(4, 5))])
        _same([c.session_id for c in displaced], [taken], "claims taken over, again")
        await store.release(old)
        await other.write([Append(new, _events(5, 5))])
        _same(list(await store.read(taken)), _events(1, 5), "the new owner's events")
        await other.release(new)
        again = await store.claim(taken, token=old.token, create=False)
        displaced = await store.write([Append(old, _events(6, 6))])
        _same(list(displaced), [old], "an old claim of the owner's own token")
        await store.write([Append(again, _events(6, 7))])


async def _epochs_are_kept(make_store: MakeStore) -> None:
    """Each claim begins an epoch at what was durable, and all are remembered."""
    session_id = _new_id()
    history: list[EpochStart] = []
    async with make_store() as store:
        for epoch in range(1, 4):
            claim = await store.claim(session_id, token=_A, create=epoch == 1)
            history.append(EpochStart(epoch, 2 * (epoch - 1)))
            _same(claim.epochs, tuple(history), f"epochs of claim {epoch}")
            await store.write([Append(claim, _events(2 * epoch - 1, 2 * epoch))])
            await store.release(claim)
            await store.release(claim)


async def _existence_is_checked(make_store: MakeStore) -> None:
    """What exists is not created, what does not exist is not found."""
    session_id = _new_id()
    async with make_store() as store:
        for call in (
            lambda: store.claim(session_id, token=_A, create=False),
            lambda: store.claim(session_id, token=_A, create=False, takeover=True),
            lambda: store.read(session_id),
        ):
            await _refused(SessionNotFoundError, call, "an unknown session")
        claim = await _fill(store, session_id, 1)
        for what in ("claimed", "released"):
            await _refused(
                SessionExistsError,
                lambda: store.claim(session_id, token=_A, create=True),
                f"creating a session that exists and is {what}",
            )
            await store.release(claim)


async def _empty_sessions_go(make_store: MakeStore) -> None:
    """A session without events is gone once it is released."""
    session_id = _new_id()
    async with make_store() as store:
        for _ in range(2):
            claim = await store.claim(session_id, token=_A, create=True)
            _same(claim.epoch, 1, "the epoch of a session made anew")
            await store.release(claim)
            await _refused(
                SessionNotFoundError, lambda: store.read(session_id), "reading it"
            )
            found = [s for s in await store.sessions() if s.session_id == session_id]
            _same(found, [], "the listing")


async def _nothing_is_doubled(make_store: MakeStore) -> None:
    """Events that come again are written once; a gap is refused."""
    session_id = _new_id()
    async with make_store() as store:
        claim = await _fill(store, session_id, 3)
        for first, last in ((1, 3), (2, 5), (1, 5), (5, 6)):
            await store.write([Append(claim, _events(first, last))])
        await store.write([Append(claim, [])])
        _same(list(await store.read(session_id)), _events(1, 6), "events")
        for broken in (_events(8, 9), [_event(7), _event(9)]):
            writing = partial(store.write, [Append(claim, broken)])
            await _refused(StorageError, writing, "a batch with a gap")
        await store.write([Append(claim, _events(7, 7))])
        _same(list(await store.read(session_id)), _events(1, 7), "after a gap")


async def _content_survives(make_store: MakeStore) -> None:
    """Binary content, long text and every legal string come back equal."""
    picture, long = Blob(bytes(range(256)) * 300), "é\u2028" * 40_000
    strings = ["a\x00b", "\u2028\u2029\x85", "\r\n", "\N{GRINNING FACE}", '"\\']
    facts: list[Fact] = [
        SessionHeader(1, options={"model": "m"}),
        MessageEntered(
            UserMessage("m", (BinaryBlock("image/png", picture), TextBlock(long)))
        ),
        Extension("check", freeze({s: [s, {"$blob": s}] for s in strings})),
        MessageEntered(UserMessage("n", (BinaryBlock("image/png", picture),))),
    ]
    session_id = _new_id()
    events = [_event(seq, fact) for seq, fact in enumerate(facts, start=1)]
    async with make_store() as store:
        claim = await store.claim(session_id, token=_A, create=True)
        await store.write([Append(claim, events)])
    async with make_store() as store:
        _same(list(await store.read(session_id)), events, "events")


async def _any_id_is_kept(make_store: MakeStore) -> None:
    """Any text of up to 200 characters is a session's id."""
    unique = _new_id()
    awkward = ["/", "..", "a b", "A", "a", "\x00", "%41", "é", "CON", "~x", "\u2028"]
    ids = [f"{text}{unique}" for text in awkward]
    ids += [f"{unique}{letter * 170}" for letter in ("x", "é", "\N{GRINNING FACE}")]
    async with make_store() as store:
        claims = [await _fill(store, session_id, 1) for session_id in ids]
        listed = {s.session_id for s in await store.sessions()}
        _same([i for i in ids if i not in listed], [], "ids that are not listed")
        for claim in claims:
            await store.release(claim)
        for session_id in ids:
            _same(list(await store.read(session_id)), _events(1, 1), session_id)


async def _listing_is_true(make_store: MakeStore) -> None:
    """Sessions are listed with their last event, the last changed first."""
    ids = [_new_id() for _ in range(3)]
    async with make_store() as store, make_store() as other:
        claims = [await _fill(store, session_id, 2) for session_id in ids]
        late = SessionEvent(3, 1_800_000_000.0, TurnStarted(3))
        await store.write([Append(claims[0], [late])])
        await store.release(claims[1])
        for handle in (store, other):
            found = {s.session_id: s for s in await handle.sessions()}
            first = SessionInfo(ids[0], 3, late.time, claimed=True)
            _same(found[ids[0]], first, "a claimed session")
            second = SessionInfo(ids[1], 2, _event(2).time, claimed=False)
            _same(found[ids[1]], second, "a released session")
            order = [session_id for session_id in found if session_id in ids]
            _same(order[0], ids[0], "the session changed last")


async def _cancelled_claim_leaves_nothing(make_store: MakeStore) -> None:
    """A claim that was cancelled is not held, a release that was is made."""
    async with make_store() as store:
        # Again and again: who runs first in a scheduling pass is a matter of chance.
        for passes in [*range(4)] * 6:
            session_id, claim = _new_id(), None
            with trio.CancelScope() as scope:
                if passes == 0:
                    scope.cancel()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_after, scope, passes)
                    claim = await store.claim(session_id, token=_A, create=True)
            if claim is not None:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await store.release(claim)
            again = await store.claim(session_id, token=_B, create=True)
            _same(again.last_seq, 0, "the claim after a cancelled one")
            await store.release(again)


async def _cancel_after(scope: trio.CancelScope, passes: int) -> None:
    for _ in range(passes - 1):
        await trio.lowlevel.cancel_shielded_checkpoint()
    scope.cancel()
    await trio.lowlevel.cancel_shielded_checkpoint()


async def _cancelled_read_leaves_nothing(make_store: MakeStore) -> None:
    """A cancelled read or listing changes nothing for those that follow."""
    session_id = _new_id()
    async with make_store() as store:
        await _fill(store, session_id, 3)
        for call in (lambda: store.read(session_id), store.sessions):
            with trio.CancelScope() as scope:
                scope.cancel()
                await call()
            if not scope.cancelled_caught:
                raise AssertionError("a call in a cancelled scope went on")
        _same(list(await store.read(session_id)), _events(1, 3), "events")


async def _pages_have_bounds(make_store: MakeStore) -> None:
    """A page from before the first event, or of no events, is a mistake."""
    session_id = _new_id()
    async with make_store() as store:
        await _fill(store, session_id, 3)
        for after, limit in ((-1, 1), (0, 0), (0, -1)):
            try:
                await store.read(session_id, after=after, limit=limit)
            except ValueError:
                continue
            raise AssertionError(f"read(after={after}, limit={limit}) was taken")


async def _leaving_releases(make_store: MakeStore) -> None:
    """Leaving the store gives back the claims that are still held."""
    session_id = _new_id()
    async with make_store() as other:
        async with make_store() as store:
            await _fill(store, session_id, 1)
        claim = await other.claim(session_id, token=_B, create=False)
        _same(claim.epoch, 2, "the claim after the owner left")


async def _calls_are_checkpoints(make_store: MakeStore) -> None:
    """Each call but `write` passes a checkpoint."""
    session_id = _new_id()
    async with make_store() as store:
        claim = await store.claim(session_id, token=_A, create=True)
        await store.write([Append(claim, _events(1, 1))])
        calls = (
            lambda: store.claim(_new_id(), token=_A, create=True),
            lambda: store.read(session_id),
            store.sessions,
            lambda: store.release(claim),
        )
        for call in calls:
            with trio.testing.assert_checkpoints():
                await call()


RULES = (
    _read_pages,
    _pages_have_bounds,
    _keep_across_handles,
    _claims_are_exclusive,
    _one_of_many_wins,
    _takeover_fences,
    _epochs_are_kept,
    _existence_is_checked,
    _empty_sessions_go,
    _nothing_is_doubled,
    _content_survives,
    _any_id_is_kept,
    _listing_is_true,
    _cancelled_claim_leaves_nothing,
    _cancelled_read_leaves_nothing,
    _leaving_releases,
    _calls_are_checkpoints,
)
