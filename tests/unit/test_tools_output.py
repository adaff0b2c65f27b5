"""Bounded output: what is kept, what is counted, and where it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from agentkernel.tools.environment import scrubbed_environment
from agentkernel.tools.output import BoundedOutput, Captured

_PIECES = st.lists(st.binary(max_size=40), max_size=12)


def _capture(pieces: list[bytes], max_bytes: int) -> Captured:
    sink = BoundedOutput(max_bytes)
    for piece in pieces:
        sink.write(piece)
    return sink.captured()


@given(_PIECES, st.integers(0, 60))
def test_head_and_tail_are_the_ends_of_the_output_and_the_rest_is_counted(
    pieces: list[bytes], max_bytes: int
) -> None:
    """Whatever the pieces: nothing is invented, nothing vanishes uncounted."""
    whole = b"".join(pieces)
    kept = _capture(pieces, max_bytes)
    assert kept.size == len(whole)
    assert whole.startswith(kept.head)
    assert whole.endswith(kept.tail)
    assert len(kept.head) + len(kept.tail) <= max_bytes
    if len(whole) <= max_bytes:
        assert (kept.head, kept.tail, kept.dropped) == (whole, b"", 0)
    else:
        # Only what belongs to a cut character may be given up beside the limit.
        assert len(kept.head) + len(kept.tail) >= max_bytes - 6


@pytest.mark.case("STORE-09")
@given(st.text(max_size=60), st.integers(0, 60), st.integers(1, 7))
def test_a_cut_never_splits_a_character(text: str, max_bytes: int, step: int) -> None:
    """Half a character is a replacement mark, or worse, a log that cannot be read."""
    data = text.encode("utf-8", "replace")
    pieces = [data[i : i + step] for i in range(0, len(data), step)]
    kept = _capture(pieces, max_bytes)
    assert kept.head.decode() + kept.tail.decode() is not None  # strict: no half ones
    if kept.dropped:
        assert f"[... {kept.dropped} bytes left out ...]" in kept.text
    else:
        assert kept.text == data.decode()


def test_output_that_is_no_text_is_shown_with_replacement_marks() -> None:
    """A program may print anything; the text of it is always valid."""
    assert _capture([b"a\xff\xfeb"], 100).text == "a\ufffd\ufffdb"


def test_variables_that_look_secret_are_left_out_and_the_rest_stays() -> None:
    """A model's command can print its environment; `keep` names the exceptions."""
    base = {
        "PATH": "/bin",
        "HOME": "/root",
        "OPENAI_API_KEY": "1",
        "github_token": "2",
        "AWS_REGION": "3",
        "DB_PASSWORD": "4",
        "CLIENT_SECRET": "5",
        "GOOGLE_APPLICATION_CREDENTIALS": "6",
        "CI_TOKEN": "7",
    }
    assert scrubbed_environment(base, keep=["CI_TOKEN"]) == {
        "PATH": "/bin",
        "HOME": "/root",
        "CI_TOKEN": "7",
    }
