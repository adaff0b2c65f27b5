"""Reading along: replay, follow, gaps, resets, and no cost for the agent."""

from __future__ import annotations

from typing import Literal, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel
from agentkernel.testing.faulty import FaultyStore, Hold
from tests.race.parts import once, opened, stored


async def collect(subscription: ak.Subscription) -> list[object]:
    async with subscription as items:
        return [item async for item in items]


def seqs(items: list[object]) -> list[int]:
    return [item.seq for item in items if isinstance(item, ak.SessionEvent)]


@pytest.mark.clause("L2")
@pytest.mark.case("EVT-04")
async def test_a_reader_that_comes_back_at_any_place_misses_and_repeats_nothing(
    autojump_clock: MockClock,
) -> None:
    """Disconnect after each event while more keep coming: the parts are the whole."""
    gate = Gate()
    model = ScriptedModel(["a", "b"], ["c", gate, "d"])
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        handle = await kernel.create("s", model="m")
        agent = handle.agent
        agent.followup("1")
        agent.followup("2")
        await gate.reached()
        count = agent.session.last_seq
        assert count > 15
        read: dict[int, list[int]] = {}

        async def reconnect(at: int) -> None:
            async with agent.session.subscribe(after=0) as first:
                early = [await anext(first) for _ in range(at)]
            late = await collect(agent.session.subscribe(after=agent_cursor(at)))
            read[at] = seqs(list(early)) + seqs(late)

        def agent_cursor(at: int) -> ak.Cursor:
            return ak.Cursor(agent.session.epoch, at)

        async with trio.open_nursery() as nursery:
            for at in range(count + 1):
                nursery.start_soon(reconnect, at)
            await wait_all_tasks_blocked()
            gate.open()
            await agent.when_idle()
            await handle.dispose()
        last = agent.session.last_seq
        assert last > count
        assert all(numbers == list(range(1, last + 1)) for numbers in read.values())


@pytest.mark.clause("L2", "D5c")
@pytest.mark.case("EVT-04")
@pytest.mark.parametrize("kind", ["number", "cursor", "epoch"])
async def test_a_cursor_beyond_the_end_gets_a_reset_and_a_replay(
    autojump_clock: MockClock, kind: str
) -> None:
    """It is from a life of the session that did not last; the mark says so first."""
    async with opened(ScriptedModel(["a"])) as agent:
        agent.followup("go")
        await agent.when_idle()
        last = agent.session.last_seq
        cursors: dict[str, int | ak.Cursor] = {
            "number": last + 1,
            "cursor": ak.Cursor(1, last + 100),
            "epoch": ak.Cursor(9, 1),
        }
        after = cursors[kind]
        items = await collect(agent.session.subscribe(after=after, follow=False))
        assert items[0] == ak.Reset(ak.Cursor(1, 0))
        assert seqs(items) == list(range(1, last + 1))
        exact = await collect(agent.session.subscribe(after=last, follow=False))
        assert exact == []


@pytest.mark.clause("D5c")
async def test_a_cursor_of_events_that_a_crash_took_is_reset_to_what_was_durable(
    autojump_clock: MockClock,
) -> None:
    """The numbers are given again: a number alone would hide the difference."""
    inner = ak.MemoryStore()
    store = FaultyStore(inner)
    async with ak.open_kernel(store) as old:
        handle = await old.create("s")
        await handle.agent.session.flush()
        durable = handle.agent.session.last_seq
        store.fail("write", times=10_000)
        for text in "abc":
            handle.agent.inject(text)
        seen = handle.agent.session.cursor
        kept = ak.Cursor(seen.epoch, durable)
        async with ak.open_kernel(inner) as new:
            mine = (await new.resume("s", takeover=True)).agent
            for text in "xyz":
                mine.inject(text)
            session = mine.session
            assert session.epoch == 2
            lost = await collect(session.subscribe(after=seen, follow=False))
            assert lost[0] == ak.Reset(ak.Cursor(2, durable))
            assert seqs(lost) == list(range(durable + 1, session.last_seq + 1))
            fine = await collect(session.subscribe(after=kept, follow=False))
            assert fine == lost[1:]
        store.mend()
        with pytest.raises(ak.SessionDisplacedError):
            await handle.dispose()


@pytest.mark.clause("L2")
async def test_a_subscription_ends_with_the_session_or_at_the_present_end(
    autojump_clock: MockClock,
) -> None:
    """`follow=False` ends where the log was when it began."""
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        handle = await kernel.create("s")
        session = handle.agent.session
        present = session.subscribe(follow=False)
        handle.agent.inject("later")
        assert seqs(await collect(present)) == [1]
        got: list[int] = []

        async def follow() -> None:
            got.extend(seqs(await collect(session.subscribe())))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow)
            await wait_all_tasks_blocked()
            assert not got
            await handle.dispose()
        assert got == [1, 2]


@pytest.mark.clause("L2", "D3c")
@pytest.mark.case("LIFE-06")
async def test_a_durable_reader_sees_only_what_is_on_disk(
    autojump_clock: MockClock,
) -> None:
    """What is final to it survives a crash."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(["a"]), store=store) as agent:
        holds: list[Hold] = []
        once(agent, "turn/end", lambda: holds.append(store.hold("write")))
        got: list[str] = []
        live: list[str] = []

        async def follow(kinds: list[str], *, durable: bool) -> None:
            async with agent.session.subscribe(durable=durable) as events:
                async for event in events:
                    assert isinstance(event, ak.SessionEvent)
                    kinds.append(event.type)
                    if durable:
                        assert agent.session.durable_seq >= event.seq
                    if event.type == "turn/end":
                        return

        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: follow(got, durable=True))
            nursery.start_soon(lambda: follow(live, durable=False))
            agent.followup("go")
            await wait_all_tasks_blocked()
            assert live[-1] == "turn/end"
            assert "turn/end" not in got
            holds[0].open()
        assert got == live


@pytest.mark.clause("L2")
@pytest.mark.case("EVT-02", "EVT-03")
async def test_a_reader_that_sleeps_gets_a_gap_and_every_event_but_chunks(
    autojump_clock: MockClock,
) -> None:
    """Five thousand deltas: the agent never waits, and memory stays bounded."""
    gate = Gate()
    model = ScriptedModel([gate, *(str(n) for n in range(5000))], ["x"])
    store = ak.MemoryStore()
    async with opened(model, store=store) as agent:
        agent.followup("go")
        await gate.reached()
        async with agent.session.subscribe(buffer=64) as events:
            seen: list[object] = [
                await anext(events) for _ in range(agent.session.last_seq)
            ]
            with trio.move_on_after(1):
                await anext(events)
            gate.open()
            await agent.when_idle()
            assert trio.current_time() == 1
            assert len(agent.session.events) <= 2 * 1024
            agent.followup("more")
            await agent.when_idle()
            item: object = None
            while (
                not isinstance(item, ak.SessionEvent)
                or item.type != "turn/end"
                or (item.seq < agent.session.last_seq)
            ):
                item = await anext(events)
                seen.append(item)
        marks = [(i, m) for i, m in enumerate(seen) if isinstance(m, ak.Gap)]
        assert len(marks) == 1
        assert await stored(store) == list(await agent.session.read(limit=10**6))
        index, gap = marks[0]
        missing = {e.seq for e in await stored(store)} - set(seqs(list(seen)))
        assert missing
        assert min(missing) > gap.after
        assert max(missing) <= gap.until
        lost = [e for e in await stored(store) if e.seq in missing]
        assert {e.type for e in lost} == {"assistant/chunk"}
        numbers = seqs(list(seen))
        assert numbers == sorted(numbers)
        recovered = await agent.session.read(after=gap.after, limit=len(missing))
        assert recovered[0].seq == gap.after + 1
        assert seqs(list(seen[:index])) == list(range(1, gap.after + 1))


@pytest.mark.clause("L2")
@pytest.mark.case("LIFE-05")
async def test_leaving_a_subscription_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    """A viewer that goes, or is cancelled while it waits, stops no run."""
    gate = Gate()
    async with opened(ScriptedModel(["a", gate, "b"])) as agent:
        sent = agent.followup("go")
        async with agent.session.subscribe() as events:
            await anext(events)
        await gate.reached()
        with trio.move_on_after(1) as scope:
            async with agent.session.subscribe(after=agent.session.last_seq) as events:
                await anext(events)
        assert scope.cancelled_caught
        gate.open()
        assert (await agent.outcome(sent.id)).text == "ab"


async def test_a_cursor_before_the_first_event_is_the_beginning(
    autojump_clock: MockClock,
) -> None:
    """A number below zero must not count from the end of the tail."""
    async with opened(ScriptedModel(default=["ok"])) as agent:
        async with agent.ask("go"):
            pass
        everything = agent.session.subscribe(after=0, follow=False)
        before = agent.session.subscribe(after=-5, follow=False)
        assert [item async for item in before] == [item async for item in everything]


@pytest.mark.clause("L2")
async def test_a_cancelled_read_consumes_nothing(autojump_clock: MockClock) -> None:
    """The next call returns the item that the cancelled one would have."""
    async with opened(ScriptedModel(default=["ok"])) as agent:
        async with agent.session.subscribe(after=agent.session.last_seq) as events:
            with trio.move_on_after(1):
                await anext(events)
            agent.inject("a")
            with trio.CancelScope() as scope:
                scope.cancel()
                await anext(events)
            assert scope.cancelled_caught
            item = await anext(events)
            assert isinstance(item, ak.SessionEvent)
            assert item.seq == agent.session.last_seq


@pytest.mark.clause("D6d")
async def test_events_is_the_live_tail_and_read_asks_the_store(
    autojump_clock: MockClock,
) -> None:
    """The one shows what is not durable yet, the other only what is."""
    store = FaultyStore(ak.MemoryStore())
    async with opened(ScriptedModel(default=["ok"]), store=store) as agent:
        await wait_all_tasks_blocked()
        hold = store.hold("write")
        agent.inject("a")
        last = agent.session.last_seq
        assert agent.session.events[-1].seq == last
        assert [e.seq for e in await agent.session.read()] == list(range(1, last))
        assert [e.seq for e in await agent.session.read(after=0, limit=1)] == [1]
        before = agent.session.events
        hold.open()
        await agent.session.flush()
        assert [e.seq for e in await agent.session.read()] == list(range(1, last + 1))
        agent.inject("b")
        assert len(before) == last


@pytest.mark.clause("D1b")
@pytest.mark.case("EVT-01")
async def test_all_observers_have_an_event_before_any_has_the_next(
    autojump_clock: MockClock,
) -> None:
    """One calls verbs, one raises each time: order and the others are unharmed."""
    seen: list[tuple[str, int]] = []
    reported: list[str] = []
    async with opened(ScriptedModel(default=["ok"]), strict=False) as agent:
        steered: list[int] = []

        def act(payload: ak.Appended) -> None:
            seen.append(("a", payload.event.seq))
            if payload.event.type == "turn/start" and not steered:
                steered.append(agent.inject("caused").seq)

        def broken(_payload: ak.Appended) -> None:
            raise RuntimeError("broken")

        agent.on(ak.Appended, act)
        agent.on(ak.Appended, broken)
        agent.on(ak.Appended, lambda p: seen.append(("b", p.event.seq)))
        agent.on(ak.ErrorReported, lambda p: reported.append(p.where))
        first = agent.session.last_seq + 1
        sent = agent.followup("go")
        await agent.when_idle()
        assert (await agent.outcome(sent.id)).kind == "completed"
        expected = [
            (name, seq)
            for seq in range(first, agent.session.last_seq + 1)
            for name in "ab"
        ]
        assert seen == expected
        assert len(reported) == 1
        assert "broken" in reported[0]


@pytest.mark.clause("D1b")
async def test_a_notification_may_overtake_the_delivery_of_an_event(
    autojump_clock: MockClock,
) -> None:
    """It is told at once, where it happens; the event waits for its turn."""
    order: list[str] = []
    async with opened(ScriptedModel(default=["ok"])) as agent:
        agent.on(ak.InboxInserted, lambda _p: order.append("notified"))
        agent.on(ak.StatusChanged, lambda p: order.append(p.status))
        agent.on(ak.Appended, lambda p: order.append(p.event.type))
        agent.followup("go")
        assert order == ["notified", "running", "agent/inbox/spliced"]


@pytest.mark.clause("D1a")
async def test_what_a_bridge_appends_is_checked_detached_and_delivered(
    autojump_clock: MockClock,
) -> None:
    """A fact that is no JSON joins nothing; one that its maker keeps changing does not."""
    async with opened(ScriptedModel()) as agent:
        session = agent.session
        last = session.last_seq
        for wrong in (float("nan"), {1: 2}, object(), {"a": {"b": b"x"}}):
            with pytest.raises(TypeError):
                session.append(ak.Extension("mine", cast("str", wrong)))
        for kernels_own in (ak.TurnStarted(9), ak.TurnEnded(9, ak.Ending("aborted"))):
            with pytest.raises(TypeError):
                session.append(kernels_own)
        assert session.last_seq == last
        body: dict[str, ak.JsonValue] = {"text": "half \ud83d", "list": [1]}
        arguments: dict[str, ak.JsonValue] = {"path": "x"}
        seq = session.append(ak.Extension("mine", body))
        session.append(ak.ApprovalAsked("a", "c", "t", arguments, "here"))
        assert seq == last + 1
        body["more"] = arguments["more"] = 1
        extension, asked = (e.data for e in session.events[-2:])
        assert isinstance(extension, ak.Extension)
        assert isinstance(asked, ak.ApprovalAsked)
        assert extension.body == {"text": "half \ufffd", "list": (1,)}
        assert asked.arguments == {"path": "x"}
        for event in session.events:
            ak.encode_event(event)


@pytest.mark.clause("D1a", "D1d")
@pytest.mark.parametrize(
    "fact",
    [
        ak.HookInvoked(cast("str", 1), "Stop", "true"),
        ak.ApprovalAsked("a", "c", "tool", {}, cast("str", 5)),
        ak.HookReturned("h", "success", duration=cast("float", "soon")),
        ak.SubagentDescribed("child", cast("Literal['spawn']", "found")),
    ],
    ids=lambda fact: type(fact).__name__,
)
async def test_a_fact_that_no_log_could_be_read_back_with_is_refused(
    autojump_clock: MockClock, fact: ak.Fact
) -> None:
    """It would be found out when the session is opened again, when it is too late."""
    async with opened(ScriptedModel()) as agent:
        before = agent.session.last_seq
        with pytest.raises(TypeError, match=type(fact).__name__):
            agent.session.append(fact)
        assert agent.session.last_seq == before
