"""The append-only log: numbers, delivery in order, and the tail it keeps."""

from __future__ import annotations

import pytest

import agentkernel as ak
from agentkernel._session.log import TAIL, Log


def make_log(last_seq: int = 0) -> Log:
    claim = ak.Claim("s", "token", 1, last_seq, (ak.EpochStart(1, last_seq),))
    return Log(claim, lambda: 1.0)


def fact(name: str) -> ak.Extension:
    return ak.Extension(name, None)


def name_of(event: ak.SessionEvent) -> str:
    assert isinstance(event.data, ak.Extension)
    return event.data.name


@pytest.mark.clause("D1a", "D1c")
def test_events_are_numbered_from_one_without_a_gap() -> None:
    """And dated, and folded, before anybody hears of them."""
    log = make_log()
    seen: list[tuple[int, int]] = []
    log.audience = lambda: True
    log.publish = lambda event: seen.append((event.seq, log.fold.last_turn))
    assert log.append(ak.SessionHeader(1)) == 1
    assert log.append(ak.TurnStarted(1)) == 2
    assert seen == [(1, 0), (2, 1)]
    assert [(e.seq, e.time, e.ignorable) for e in log.tail] == [
        (1, 1.0, False),
        (2, 1.0, False),
    ]
    assert make_log(7).append(fact("x")) == 8


@pytest.mark.clause("D1b")
def test_delivery_is_first_in_first_out_also_for_what_observers_cause() -> None:
    """A nested append is committed at once and delivered after its cause."""
    log = make_log()
    seen: list[str] = []

    def publish(event: ak.SessionEvent) -> None:
        seen.append(f"{name_of(event)} begin")
        if name_of(event) == "a":
            assert log.append(fact("caused 1")) == 2
            assert log.append(fact("caused 2")) == 3
            assert log.last_seq == 3
        seen.append(f"{name_of(event)} end")

    log.audience, log.publish = (lambda: True), publish
    log.append(fact("a"))
    assert seen == [
        "a begin",
        "a end",
        "caused 1 begin",
        "caused 1 end",
        "caused 2 begin",
        "caused 2 end",
    ]


@pytest.mark.clause("D1b", "I2b")
def test_facts_of_one_act_are_delivered_when_it_is_over() -> None:
    """Holding nests, and ends also when the act raises."""
    log = make_log()
    seen: list[tuple[str, int]] = []
    log.audience = lambda: True
    log.publish = lambda event: seen.append((name_of(event), log.last_seq))
    with log.holding:
        log.commit(fact("a"))
        with log.holding:
            log.append(fact("b"))
        log.append(fact("c"))
        assert not seen
    assert seen == [("a", 3), ("b", 3), ("c", 3)]

    def fail() -> None:
        with log.holding:
            log.commit(fact("d"))
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert seen[-1] == ("d", 4)


def test_an_observer_that_leaves_by_an_exception_does_not_end_delivery() -> None:
    """What it did not hear is heard with the next append."""
    log = make_log()
    seen: list[str] = []

    def publish(event: ak.SessionEvent) -> None:
        seen.append(name_of(event))
        if name_of(event) == "a":
            raise KeyboardInterrupt

    log.audience, log.publish = (lambda: True), publish

    def commit_two() -> None:
        with log.holding:
            log.commit(fact("a"))
            log.commit(fact("b"))

    with pytest.raises(KeyboardInterrupt):
        commit_two()
    log.append(fact("c"))
    assert seen == ["a", "b", "c"]


@pytest.mark.clause("D6d")
@pytest.mark.case("EVT-02")
def test_the_tail_is_bounded_and_never_loses_what_is_not_durable() -> None:
    """Durable events leave at the front; the rest stays however long the outage."""
    log = make_log()
    for number in range(5 * TAIL):
        log.append(fact(str(number)))
    assert len(log.tail) == 5 * TAIL
    log.mark_durable(TAIL)
    assert log.tail[0].seq == log.tail_start == TAIL + 1
    assert [e.seq for e in log.unflushed()] == list(range(TAIL + 1, 5 * TAIL + 1))
    log.mark_durable(log.last_seq)
    assert len(log.tail) == TAIL
    assert log.tail[-1].seq == log.last_seq
    assert log.unflushed() == []
    log.mark_durable(3)
    assert log.durable_seq == log.last_seq


@pytest.mark.clause("C6e")
def test_a_closed_log_refuses_everything() -> None:
    """And keeps what it has for those who read."""
    log = make_log()
    log.append(fact("a"))
    log.close()
    with pytest.raises(ak.AgentDisposedError):
        log.append(fact("b"))
    assert log.last_seq == len(log.tail) == 1


@pytest.mark.clause("C9b")
def test_replay_refuses_an_aborted_ending_that_says_more() -> None:
    """By its number: somebody else has written it."""
    log = make_log(2)
    wrong = ak.TurnEnded(1, ak.Ending("aborted", message="user"))
    events = [
        ak.SessionEvent(1, 1.0, ak.TurnStarted(1)),
        ak.SessionEvent(2, 1.0, wrong),
    ]
    with pytest.raises(ak.SessionFormatError) as caught:
        log.replay(events)
    assert caught.value.seq == 2
