"""The line format of events: its rules, one by one, and its golden file."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import agentkernel as ak
from agentkernel._session.codec import Plain, decode_as
from agentkernel._session.events import FACTS

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1.jsonl"
PICTURE = b"\x89PNG\x00\xff"


def load(digest: str) -> bytes:
    return {ak.Blob(PICTURE).sha256: PICTURE}[digest]


def nothing(digest: str) -> bytes:
    raise KeyError(digest)


def line(data: object, kind: str, **more: object) -> bytes:
    return msgspec.json.encode(
        {"seq": 7, "time": 1.5, "type": kind, "data": data, **more}
    )


def no_blob(digest: str) -> bytes:
    raise AssertionError(f"the line has all of its content, not {digest} elsewhere")


@pytest.mark.clause("D1d")
def test_the_golden_file_is_read_and_written_byte_for_byte() -> None:
    """A released format never changes: this file is what released logs look like."""
    lines = GOLDEN.read_bytes().splitlines()
    seen: set[str] = set()
    for number, golden in enumerate(lines, start=1):
        event = ak.decode_event(golden, load)
        assert event is not None
        assert event.seq == number
        assert event.raw is None, "the golden file holds what this version knows"
        seen.add(event.type)
        assert ak.encode_event(event)[0] == golden
    assert seen == set(FACTS), "each type has its line"


@pytest.mark.clause("D6b")
def test_a_line_that_keeps_its_content_needs_no_blobs() -> None:
    """Every type again, and content that is far over the bound, text and bytes."""
    events = [ak.decode_event(line, load) for line in GOLDEN.read_bytes().splitlines()]
    long = ak.UserMessage(
        "m",
        (
            ak.TextBlock("\u20ac" * 70_000),
            ak.BinaryBlock("image/png", ak.Blob(PICTURE)),
        ),
    )
    events.append(
        ak.SessionEvent(99, 0.0, ak.InboxSpliced("next_turn", inserted=(long,)))
    )
    for event in events:
        assert event is not None
        line, blobs = ak.encode_event(event, inline=True)
        assert not blobs
        assert ak.decode_event(line, no_blob) == event
        assert len(ak.encode_event(event)[0]) <= 65_536


@pytest.mark.clause("C9b")
@pytest.mark.parametrize(
    "data",
    [
        {"turn": 1, "reason": {"kind": "aborted", "reason": "by the user"}},
        {"turn": 1, "reason": {"kind": "aborted", "code": "x"}},
        {"turn": 1, "reason": {"kind": "aborted", "message": "x"}},
        {"turn": 1, "reason": {"kind": "aborted", "code": None}},
        {"turn": 1, "reason": {"kind": "aborted"}, "cause": "user"},
        {"turn": 1, "reason": {"kind": "aborted", "$blob": 1}},
    ],
)
def test_an_aborted_turn_that_says_more_is_refused_with_its_number(
    data: object,
) -> None:
    """Durable outcomes are coarse; a reason in the log would become an interface."""
    with pytest.raises(ak.SessionFormatError) as caught:
        ak.decode_event(line(data, "turn/end"), nothing)
    assert caught.value.seq == 7
    assert "7" in str(caught.value)


@pytest.mark.clause("C9b")
def test_an_aborted_child_that_says_more_is_refused_too() -> None:
    child = {"child": "c", "kind": "spawn", "ending": {"kind": "aborted", "code": "x"}}
    with pytest.raises(ak.SessionFormatError, match="event 7"):
        ak.decode_event(line(child, "subagent/descriptor"), nothing)
    child["ending"] = {"kind": "aborted", "why": "x"}
    with pytest.raises(ak.SessionFormatError, match="event 7"):
        ak.decode_event(line(child, "subagent/descriptor"), nothing)
    child["ending"] = {"kind": "aborted"}
    assert ak.decode_event(line(child, "subagent/descriptor"), nothing) is not None


@pytest.mark.clause("D1d")
def test_an_unknown_required_type_refuses_the_session_and_names_both_formats() -> None:
    """Skipping what one does not understand would make a different history of it."""
    with pytest.raises(ak.SessionFormatError, match=r"'x/y'.*format 1;.*1 to 1") as one:
        ak.decode_event(line({}, "x/y"), nothing)
    assert one.value.seq == 7
    with pytest.raises(ak.SessionFormatError, match=r"format 3;.*1 to 1"):
        ak.decode_event(line({}, "x/y", format=3), nothing)
    with pytest.raises(ak.SessionFormatError, match=r"format 3;.*1 to 1"):
        ak.decode_event(line({"turn": 1}, "turn/start", format=3), nothing)


@pytest.mark.clause("D1d")
@pytest.mark.parametrize("data", [{}, 5, "text", {"$blob": "gone", "size": 1}])
def test_an_unknown_ignorable_type_is_skipped_unread(data: object) -> None:
    assert ak.decode_event(line(data, "x/y", ignorable=True), nothing) is None
    later = line(data, "turn/start", ignorable=True, format=9)
    assert ak.decode_event(later, nothing) is None


@pytest.mark.clause("D1d")
@pytest.mark.parametrize("number", [0, -1, 2, 99])
def test_a_header_of_another_format_refuses_the_session(number: int) -> None:
    with pytest.raises(ak.SessionFormatError, match=rf"format {number};.*1 to 1"):
        ak.decode_event(line({"format": number}, "session/header"), nothing)


@pytest.mark.clause("D1d")
def test_an_older_format_is_brought_up_to_date_on_reading() -> None:
    """Three formats on, a line of the first goes through each step in turn."""

    def to_two(kind: str, data: dict[str, Plain]) -> tuple[str, dict[str, Plain]]:
        if kind == "turn/begin":
            return "turn/begun", {"number": data["n"]}
        return kind, data

    def to_three(kind: str, data: dict[str, Plain]) -> tuple[str, dict[str, Plain]]:
        if kind == "turn/begun":
            return "turn/start", {"turn": data["number"]}
        return kind, data

    steps = {1: to_two, 2: to_three}
    old = decode_as(line({"n": 4}, "turn/begin"), nothing, 3, steps)
    assert old == ak.SessionEvent(7, 1.5, ak.TurnStarted(4))
    newer = line({"number": 5}, "turn/begun", format=2)
    assert decode_as(newer, nothing, 3, steps) == ak.SessionEvent(
        7, 1.5, ak.TurnStarted(5)
    )
    now = line({"turn": 6}, "turn/start", format=3)
    assert decode_as(now, nothing, 3, steps) == ak.SessionEvent(
        7, 1.5, ak.TurnStarted(6)
    )
    header = line({"format": 1}, "session/header")
    assert decode_as(header, nothing, 3, steps) is not None
    with pytest.raises(ak.SessionFormatError, match=r"format 4;.*1 to 3"):
        decode_as(line({"turn": 6}, "turn/start", format=4), nothing, 3, steps)
    kept = decode_as(line({"n": 4}, "unheard", ignorable=True), nothing, 3, steps)
    assert kept is None


@pytest.mark.clause("D1d")
def test_unknown_fields_deep_inside_survive_with_their_content() -> None:
    """Long text and pictures in fields of a later version leave and come back too."""
    long = "é" * 40_000
    wire = {
        "message": {
            "type": "user",
            "id": "m",
            "content": [
                {"type": "text", "text": "hi", "later": {"$$blob": 1}},
                {
                    "type": "binary",
                    "media_type": "image/png",
                    "data": {"$blob": ak.Blob(PICTURE).sha256, "size": len(PICTURE)},
                },
            ],
        },
        "long": {"$blob": ak.Blob(long.encode()).sha256, "size": 80_000, "text": True},
    }
    blobs = {ak.Blob(b).sha256: b for b in (PICTURE, long.encode())}
    event = ak.decode_event(line(wire, "user/message"), blobs.__getitem__)
    assert event is not None
    assert isinstance(event.data, ak.MessageEntered)
    assert event.data.message.content[1] == ak.BinaryBlock(
        "image/png", ak.Blob(PICTURE)
    )
    again, handed = ak.encode_event(event)
    assert json.loads(again)["data"] == wire
    assert handed == blobs


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-08", "STORE-09")
def test_a_foreign_line_with_half_a_surrogate_pair_is_read_by_the_rule() -> None:
    text = b'{"seq":7,"time":1,"type":"user/message","data":{"message":{"type":'
    text += b'"user","id":"m","content":[{"type":"text","text":"a\\ud83d\\u0000b"}]}}}'
    event = ak.decode_event(text, nothing)
    assert event is not None
    assert isinstance(event.data, ak.MessageEntered)
    assert event.data.message.text == "a\ufffd\x00b"
    assert ak.decode_event(ak.encode_event(event)[0], nothing) == event


@pytest.mark.clause("D6b")
def test_a_missing_or_damaged_blob_is_an_error_with_the_number_of_its_event() -> None:
    picture = ak.BinaryBlock("image/png", ak.Blob(PICTURE))
    fact = ak.MessageEntered(ak.UserMessage("m", (picture,)))
    text, blobs = ak.encode_event(ak.SessionEvent(7, 1.0, fact))
    assert list(blobs.values()) == [PICTURE]
    with pytest.raises(ak.SessionFormatError, match=r"event 7.*missing"):
        ak.decode_event(text, nothing)
    with pytest.raises(ak.SessionFormatError, match=r"event 7.*damaged"):
        ak.decode_event(text, lambda _: b"other")


@pytest.mark.clause("D1d")
def test_numbers_that_json_has_not_are_written_as_the_nearest_that_it_has() -> None:
    """A provider that asks to wait for ever must not make the log unwritable."""
    for delay, written in (("inf", 1.7976931348623157e308), ("nan", 0.0)):
        failure = ak.ToolFailure("overloaded", "later")
        fact = ak.RetryScheduled(1, 1, 1, failure, float(delay))
        text, _ = ak.encode_event(ak.SessionEvent(7, 1.0, fact))
        event = ak.decode_event(text, nothing)
        assert event is not None
        assert isinstance(event.data, ak.RetryScheduled)
        assert event.data.delay == written


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x00" * 500,
        b"{}",
        b"[1]",
        b'{"seq":1,"time":1,"type":"turn/start","data":{"turn":1}}{"seq":2}',
        b'{"seq":1,"time":1,"type":"turn/start","data":{"turn":"x"}}',
        b'{"seq":1,"time":1,"type":"turn/start","data":[]}',
        b'{"seq":1,"time":1,"type":"extension","data":{"name":"x","body":1e999}}',
        b'{"seq":1,"time":1,"type":"extension","data":{"name":"x","body":NaN}}',
        b'{"seq":1,"time":1,"type":"extension","data":{"name":"\xff","body":1}}',
        b'{"seq":1,"time":1,"type":"extension","data":' + b"[" * 99_999,
        b'{"seq":1,"time":1,"type":"extension","data":{"name":"x","body":'
        + b"[" * 20_000
        + b"]" * 20_000
        + b"}}",
        b'{"seq":1,"time":1,"type":"extension","data":{"name":"x","body":{"$blob":1}}}',
        b'{"seq":1,"time":1,"type":"turn/start","data":{"turn":1},"format":0}',
    ],
)
def test_what_is_no_event_is_a_format_error(text: bytes) -> None:
    with pytest.raises(ak.SessionFormatError):
        ak.decode_event(text, nothing)
