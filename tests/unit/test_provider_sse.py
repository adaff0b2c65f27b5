"""The reader of server-sent events, on plain bytes, cut in every way."""

from __future__ import annotations

import itertools

import hypothesis
import hypothesis.strategies as st
import pytest

from agentkernel import ModelError
from agentkernel.bridges.providers.sse import SseDecoder, SseEvent


def read(*chunks: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def cuts(raw: bytes) -> list[tuple[bytes, ...]]:
    """Every cut in two, the whole, and one byte at a time."""
    return [
        *((raw[:at], raw[at:]) for at in range(len(raw) + 1)),
        tuple(raw[at : at + 1] for at in range(len(raw))),
    ]


def said(*texts: str) -> list[SseEvent]:
    return [SseEvent("", text) for text in texts]


def check_every_cut(raw: bytes, expected: list[SseEvent]) -> None:
    for chunks in cuts(raw):
        assert read(*chunks) == expected, chunks


@pytest.mark.case("SSE-01")
def test_a_character_cut_by_a_chunk_edge_arrives_whole() -> None:
    """SSE-01: a cut character must neither end the stream nor be replaced."""
    text = "日本語 😀 e\u0301"
    check_every_cut(f"data: {text}\n\ndata: b\n\n".encode(), said(text, "b"))


@pytest.mark.case("SSE-01")
def test_bytes_that_are_no_utf8_become_a_replacement_and_the_stream_goes_on() -> None:
    """SSE-01: broken text of one event says nothing about the next."""
    check_every_cut(b"data: a\xff\xe4\xb8b\n\ndata: c\n\n", said("a\ufffd\ufffdb", "c"))


@pytest.mark.case("SSE-02")
@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
def test_each_line_end_works_at_every_cut(end: bytes) -> None:
    """SSE-02: a CR at the edge of a chunk is no blank line with the LF behind it."""
    raw = end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])
    check_every_cut(raw, said("a\nb", "c"))


@pytest.mark.case("SSE-02")
def test_a_lone_cr_ends_the_event_without_waiting_for_the_next_byte() -> None:
    """SSE-02: an event that is complete must not wait for the one behind it."""
    assert read(b"data: a\r\r") == said("a")


@pytest.mark.case("SSE-03")
@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_one_blank_behind_the_colon_and_a_mark_in_front_are_dropped(
    end: str, bom: str
) -> None:
    """SSE-03: what looks the same on the wire must be read the same."""
    lines = [
        "event: x", "id: 7", "retry: 10", "data:a", "data:  b", "data", "",
        "data: \ufeffc", "", "",
    ]  # fmt: skip
    raw = (bom + end.join(lines)).encode()
    check_every_cut(raw, [SseEvent("x", "a\n b\n"), SseEvent("", "\ufeffc")])


@pytest.mark.case("SSE-03")
@pytest.mark.parametrize("tail", [b"data: b", b"data: b\n", b"event: e\n", b"da"])
def test_an_event_that_no_blank_line_ends_is_unfinished_and_not_given(
    tail: bytes,
) -> None:
    """SSE-03: half an event must not pass for a whole one."""
    decoder = SseDecoder()
    assert decoder.feed(b"data: a\n\n" + tail) == said("a")
    assert decoder.unfinished


def test_a_stream_that_ends_behind_an_event_is_finished() -> None:
    """Else every good end would be reported as a cut."""
    decoder = SseDecoder()
    decoder.feed(b"data: a\r\n\r\n: bye\n")
    assert not decoder.unfinished


@pytest.mark.case("SSE-04")
def test_comments_and_blank_frames_are_no_events() -> None:
    """SSE-04: keep-alive lines between all events must not reach a JSON reader."""
    noise = b": ping\n\n:\n\n\n\nid: 1\n\n"
    check_every_cut(noise + b"data: a\n\n" + noise + b"data: b\n\n", said("a", "b"))
    assert read(b"event: ping\n\ndata:\n\n") == [SseEvent("ping", ""), *said("")]


@pytest.mark.case("PROV-05")
def test_an_error_event_without_data_and_an_error_field_are_events() -> None:
    """PROV-05: an error that says nothing is an error all the same."""
    assert read(b'event: error\n\nerror: {"code":1}\n\n') == [
        SseEvent("error", ""),
        SseEvent("error", '{"code":1}'),
    ]


@pytest.mark.case("SSE-06")
@pytest.mark.parametrize("size", [1, 2.5, 20])
def test_all_events_of_a_chunk_are_given_in_order(size: float) -> None:
    """SSE-06: what follows the first event of a chunk must not disappear."""
    event = b"data: %02d\n\n"
    raw = b"".join(event % n for n in range(20))
    step = int(len(event % 0) * size)
    chunks = [raw[at : at + step] for at in range(0, len(raw), step)]
    assert read(*chunks) == said(*(f"{n:02}" for n in range(20)))


def test_line_separators_of_unicode_do_not_split_a_line() -> None:
    """They are ordinary characters of a JSON string."""
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg"
    check_every_cut(f"data: {text}\n\n".encode(), said(text))


@pytest.mark.parametrize("piece", [b"x", b"data: x\n", b"event: x\n"])
def test_an_endless_event_is_an_error_and_not_all_memory(piece: bytes) -> None:
    """A hostile or broken server must not be able to fill the memory."""
    decoder = SseDecoder(max_event_bytes=1000)

    def feed_for_ever() -> None:
        for _ in range(2000):
            decoder.feed(piece)

    with pytest.raises(ModelError, match="more than 1000 bytes") as caught:
        feed_for_ever()
    assert caught.value.code == "server"


def test_the_limit_is_of_one_event_and_comments_do_not_count() -> None:
    """A long answer with many pings is no endless event."""
    decoder = SseDecoder(max_event_bytes=1000)
    for _ in range(100):
        assert decoder.feed(b"data: " + b"x" * 900 + b"\n\n") == said("x" * 900)
        assert decoder.feed(b": ping\nid: 1\n" * 20) == []


@hypothesis.given(
    texts=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"))),
    cut=st.lists(st.integers(0, 400)),
    end=st.sampled_from(["\n", "\r", "\r\n"]),
)
def test_any_text_survives_any_cut(texts: list[str], cut: list[int], end: str) -> None:
    """For the text and the cuts that nobody thought of."""
    raw = "".join(f"data: {text}{end}{end}" for text in texts).encode()
    edges = [0, *sorted(c for c in cut if c < len(raw)), len(raw)]
    chunks = [raw[a:b] for a, b in itertools.pairwise(edges)]
    assert read(*chunks) == said(*texts)
