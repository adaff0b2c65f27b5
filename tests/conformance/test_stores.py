"""Every store keeps the port, and the checker notices one that does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import pytest

import agentkernel as ak
from agentkernel.testing import FaultyStore, check_store
from agentkernel.testing.stores import MakeStore


def make_memory(_: Path) -> MakeStore:
    base = ak.MemoryStore()
    return lambda: ak.MemoryStore(base)


def make_jsonl(folder: Path) -> MakeStore:
    return lambda: ak.JsonlStore(folder / "sessions of mine")


def make_sqlite(folder: Path) -> MakeStore:
    return lambda: ak.SqliteStore(folder / "new folder" / "agents.db")


def make_faulty(folder: Path) -> MakeStore:
    make = make_memory(folder)
    return lambda: FaultyStore(make())


@pytest.mark.clause("D6a", "D5b", "D5c", "D1c")
@pytest.mark.case("STORE-08")
@pytest.mark.parametrize("make", [make_memory, make_jsonl, make_sqlite, make_faulty])
async def test_a_store_passes_the_suite_that_ships(
    make: Callable[[Path], MakeStore], tmp_path: Path
) -> None:
    """One suite for all, ours included: what a user proves with it is what we prove."""
    await check_store(make(tmp_path))


class Planted:
    """A store with one fault; what a subclass does not change is right."""

    def __init__(self, base: ak.MemoryStore) -> None:
        self.inner = ak.MemoryStore(base)

    @property
    def waits(self) -> bool:
        return False

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.inner.__aexit__(None, None, None)

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> ak.Claim:
        return await self.inner.claim(
            session_id, token=token, create=create, takeover=takeover
        )

    async def release(self, claim: ak.Claim, /) -> None:
        await self.inner.release(claim)

    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[ak.SessionEvent]:
        return await self.inner.read(session_id, after=after, limit=limit)

    async def write(self, batch: Sequence[ak.Append], /) -> Sequence[ak.Claim]:
        return await self.inner.write(batch)

    async def sessions(self) -> Sequence[ak.SessionInfo]:
        return await self.inner.sessions()


class ForgetsLimit(Planted):
    async def read(
        self, session_id: str, /, *, after: int = 0, limit: int = 1000
    ) -> Sequence[ak.SessionEvent]:
        return await self.inner.read(session_id, after=after, limit=1000)


class LetsItsHolderClaimAgain(Planted):
    token = ""

    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> ak.Claim:
        claim = await self.inner.claim(
            session_id,
            token=token,
            create=create,
            takeover=takeover or self.token == token,
        )
        self.token = token
        return claim


class SaysNothingOfDisplacement(Planted):
    async def write(self, batch: Sequence[ak.Append], /) -> Sequence[ak.Claim]:
        await self.inner.write(batch)
        return ()


class LosesThePowerOfCancellation(Planted):
    async def claim(
        self, session_id: str, /, *, token: str, create: bool, takeover: bool = False
    ) -> ak.Claim:
        claim = await self.inner.claim(
            session_id, token=token, create=create, takeover=takeover
        )
        await self.inner.read(session_id)  # a cancellation here leaves the claim
        return claim


class WritesNoBlobs(Planted):
    async def write(self, batch: Sequence[ak.Append], /) -> Sequence[ak.Claim]:
        kept = [
            ak.Append(
                append.claim,
                [
                    ak.SessionEvent(event.seq, event.time, ak.TurnStarted(1))
                    if ak.encode_event(event)[1]
                    else event
                    for event in append.events
                ],
            )
            for append in batch
        ]
        return await self.inner.write(kept)


class KeepsClaimsOnLeaving(Planted):
    async def __aexit__(self, *args: object) -> None:
        pass


class NeverForgets(Planted):
    async def release(self, claim: ak.Claim, /) -> None:
        if claim.last_seq or await self.inner.read(claim.session_id):
            await self.inner.release(claim)


class ListsNothing(Planted):
    async def sessions(self) -> Sequence[ak.SessionInfo]:
        return tuple(reversed(await self.inner.sessions()))


@pytest.mark.clause("D6a")
@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        (ForgetsLimit, "in pages"),
        (LetsItsHolderClaimAgain, "to its own holder too"),
        (SaysNothingOfDisplacement, "and is reported"),
        (LosesThePowerOfCancellation, "is not held"),
        (WritesNoBlobs, "Binary content"),
        (KeepsClaimsOnLeaving, "next handle|gives back"),
        (NeverForgets, "gone once it is released"),
        (ListsNothing, "last changed first"),
    ],
)
async def test_the_suite_names_the_rule_that_a_faulty_store_breaks(
    planted: type[Planted], rule: str
) -> None:
    """A suite that nothing fails proves nothing."""
    base = ak.MemoryStore()
    with pytest.raises(AssertionError, match=rule):
        await check_store(lambda: planted(base))
