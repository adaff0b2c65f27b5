"""One writer for all sessions: what they share, and what they must not share."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import FaultyStore, ScriptedModel
from tests.race.parts import opened, stored


class PickyStore:
    """A store in memory that refuses whatever comes together with one session."""

    def __init__(self, refused: str) -> None:
        self.inner = ak.MemoryStore()
        self.refused: str | None = refused
        self.batches: list[set[str]] = []

    @property
    def waits(self) -> bool:
        return True

    async def __aenter__(self) -> Self:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        await self.inner.__aexit__(exc_type, exc, traceback)

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
        await trio.lowlevel.checkpoint()
        names = {append.claim.session_id for append in batch}
        self.batches.append(names)
        if self.refused in names:
            raise ak.StorageError("one of them is refused")
        return await self.inner.write(batch)

    async def sessions(self) -> Sequence[ak.SessionInfo]:
        return await self.inner.sessions()


@pytest.mark.clause("D2a", "D3a", "D3b")
async def test_a_session_that_cannot_be_written_does_not_hold_up_another(
    autojump_clock: MockClock,
) -> None:
    """They come in one batch; the failure is that of one, and is told of one."""
    store = PickyStore("bad")
    store.refused = None
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["ok"]))
        agents = {
            name: (await kernel.create(name, model="m")).agent
            for name in ("good", "bad")
        }
        failed: list[str] = []
        kernel.on(ak.ErrorReported, lambda p: failed.append(p.agent.id))
        store.batches.clear()
        store.refused = "bad"
        sent = {name: agent.inject("a note") for name, agent in agents.items()}
        await wait_all_tasks_blocked()
        assert {"good", "bad"} in store.batches
        await agents["good"].session.flush(sent["good"].seq)
        with pytest.raises(ak.StorageError):
            await agents["bad"].session.flush(sent["bad"].seq)
        assert set(failed) == {"bad"}
        store.refused = None
        await agents["bad"].session.flush(sent["bad"].seq)
        for name, agent in agents.items():
            assert await stored(store.inner, name) == list(agent.session.events)


@pytest.mark.clause("D2a", "I5a")
async def test_what_is_accepted_during_a_write_is_written_next_without_asking(
    autojump_clock: MockClock, model: ScriptedModel
) -> None:
    """Nobody flushes; the acceptance is on its way to the disk all the same."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent:
        await agent.session.flush()
        held = store.hold("write")
        agent.inject("starts a write")
        await held.reached.wait()
        sent = agent.inject("comes during it")
        held.open()
        await wait_all_tasks_blocked()
        assert agent.session.durable_seq >= sent.seq


@pytest.mark.clause("D2b", "D3a")
async def test_a_flush_of_what_could_not_be_written_never_returns_as_if_it_were(
    autojump_clock: MockClock, model: ScriptedModel
) -> None:
    """It raises, with the number up to which all is well."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent:
        await agent.session.flush()
        durable = agent.session.durable_seq
        store.fail("write")
        sent = agent.inject("a note")
        raised: list[int | None] = []
        try:
            await agent.session.flush(sent.seq)
        except ak.StorageError as error:
            raised.append(error.durable_seq)
        store.mend()
        await agent.session.flush(sent.seq)
        assert raised == [durable]


@pytest.mark.clause("D2d")
async def test_a_flush_that_is_given_up_ends_at_once(
    autojump_clock: MockClock, model: ScriptedModel
) -> None:
    """The disk is back after five seconds; who waits for one, waits for one."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent, trio.open_nursery() as nursery:
        await agent.session.flush()
        held = store.hold("write")

        async def mend() -> None:
            await trio.sleep(5)
            held.open()

        nursery.start_soon(mend)
        sent = agent.inject("a note")
        began = trio.current_time()
        with trio.move_on_after(1) as scope:
            await agent.session.flush(sent.seq)
        waited = trio.current_time() - began
        await agent.session.flush(sent.seq)
        assert (scope.cancelled_caught, waited) == (True, 1)
        assert trio.current_time() - began == 5


@pytest.mark.clause("L2", "D2b")
async def test_a_durable_reader_is_shown_nothing_while_its_write_is_held(
    autojump_clock: MockClock, model: ScriptedModel
) -> None:
    """Another reader, who did not ask for that, has seen it meanwhile."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(model, store=store) as agent, trio.open_nursery() as nursery:
        await agent.session.flush()
        held = store.hold("write")
        seen: dict[bool, list[int]] = {True: [], False: []}

        async def read(*, durable: bool) -> None:
            async with agent.session.subscribe(durable=durable) as items:
                async for item in items:
                    assert isinstance(item, ak.SessionEvent)
                    seen[durable].append(item.seq)

        nursery.start_soon(lambda: read(durable=True))
        nursery.start_soon(lambda: read(durable=False))
        sent = agent.inject("a note")
        await trio.sleep(1)
        early = {durable: sent.seq in seqs for durable, seqs in seen.items()}
        held.open()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
        assert early == {True: False, False: True}
        assert sent.seq in seen[True]
