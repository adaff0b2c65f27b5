"""The codec, for facts that nobody wrote by hand."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import agentkernel as ak
from agentkernel._session.codec import MAX_INLINE_BYTES
from agentkernel._session.events import FACTS
from tests.property.strategies import events, facts, texts


def read_back(event: ak.SessionEvent) -> ak.SessionEvent | None:
    line, blobs = ak.encode_event(event)
    assert b"\n" not in line
    return ak.decode_event(line, blobs.__getitem__)


@pytest.mark.clause("D1d", "D4")
@settings(max_examples=400)
@given(events())
def test_an_event_comes_back_equal_to_what_went_in(event: ak.SessionEvent) -> None:
    """The log is the only truth: what it cannot hold never happened."""
    back = read_back(event)
    assert back == event
    assert back is not None
    assert hash(back) == hash(event), "what was read is as frozen as what was made"


@pytest.mark.clause("D1d")
@given(events())
def test_a_line_is_json_that_any_reader_understands(event: ak.SessionEvent) -> None:
    line, _ = ak.encode_event(event)
    found = json.loads(line)
    assert list(found)[:4] == ["seq", "time", "type", "data"]
    assert found["seq"] == event.seq
    assert found["time"] == event.time
    assert found["type"] == event.type


@pytest.mark.clause("D1d")
@given(events(), st.dictionaries(texts(), texts(), min_size=1, max_size=2))
def test_fields_of_a_later_version_survive_being_written_again(
    event: ak.SessionEvent, more: dict[str, str]
) -> None:
    """A session passes through old and new versions; none may strip it."""
    line, blobs = ak.encode_event(event)
    wire = json.loads(line)
    names = {f"x-{name}": value for name, value in more.items()}
    wire["data"].update(names)
    ending = wire["data"].get("reason")
    if event.type == "turn/end" and ending == {"kind": "aborted"}:
        return  # the one record that must not say more
    back = ak.decode_event(msgspec.json.encode(wire), blobs.__getitem__)
    assert back is not None
    assert back.data == event.data
    again, blobs_again = ak.encode_event(back)
    assert json.loads(again)["data"] == wire["data"]
    assert blobs_again == blobs


@pytest.mark.clause("D4")
@pytest.mark.case("STORE-09")
@given(st.text(st.characters(), max_size=8), st.sampled_from(["\ud83d", "\udc00"]))
def test_half_of_a_surrogate_pair_becomes_one_documented_character(
    text: str, half: str
) -> None:
    """Whatever slips past the entrance is written; a writer that fails is worse."""
    whole = text + half + text
    event = ak.SessionEvent(1, 1.0, ak.Extension("x", {whole: [whole]}), ignorable=True)
    back = read_back(event)
    assert back is not None
    clean = ak.clean_text(whole)
    assert back.data == ak.Extension("x", ak.freeze({clean: [clean]}))


@pytest.mark.clause("D6b")
@settings(max_examples=30)
@given(st.integers(-2, 2), st.sampled_from(["x", "é", "\u2028", "\N{GRINNING FACE}"]))
def test_long_text_leaves_the_line_and_comes_back(off: int, letter: str) -> None:
    """The limit counts bytes of UTF-8, whatever the text is made of."""
    width = len(letter.encode())
    text = letter * (MAX_INLINE_BYTES // width + off)
    fact = ak.MessageEntered(ak.UserMessage("m", (ak.TextBlock(text),)))
    event = ak.SessionEvent(1, 1.0, fact)
    line, blobs = ak.encode_event(event)
    assert bool(blobs) == (len(text.encode()) > MAX_INLINE_BYTES)
    assert len(line) < 500 or not blobs
    assert ak.decode_event(line, blobs.__getitem__) == event


@given(st.data())
@pytest.mark.parametrize("cut", ["byte", "flip"])
def test_a_damaged_line_is_an_error_and_nothing_else(
    cut: str, data: st.DataObject
) -> None:
    """Whatever bytes a line holds, reading it says so or gives an event."""
    line, blobs = ak.encode_event(ak.SessionEvent(7, 1.0, data.draw(facts())))
    at = data.draw(st.integers(0, len(line) - 1))
    if cut == "byte":
        broken = line[:at]
    else:
        byte = data.draw(st.integers(0, 255))
        broken = line[:at] + bytes([byte]) + line[at + 1 :]
    try:
        event = ak.decode_event(broken, blobs.__getitem__)
    except ak.SessionFormatError:
        return
    assert cut == "flip", "the front part of a line is no event"
    assert event is None or event.type in FACTS
