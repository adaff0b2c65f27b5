"""How pieces of streamed tool calls find the call that they belong to."""

from __future__ import annotations

import json
import random

import hypothesis
import hypothesis.strategies as st
import pytest

from agentkernel import ModelError, ToolCallChunk
from agentkernel.bridges.providers.toolcalls import CallPiece, ToolCallAssembler
from agentkernel.bridges.providers.wire import is_cut

A, B = '{"a": 1}', '{"b": [2]}'


def assemble(*pieces: CallPiece, cut: bool = False) -> list[ToolCallChunk]:
    assembler = ToolCallAssembler()
    for piece in pieces:
        assembler.add(piece)
    return assembler.finish(cut=cut)


def p(
    index: int | None = None, call_id: str = "", name: str = "", arguments: str = ""
) -> CallPiece:
    return CallPiece(index, call_id, name, arguments)


def told(*calls: tuple[str, str, str | None]) -> list[ToolCallChunk]:
    return [ToolCallChunk(*call) for call in calls]


TWO = told(("f", A, "a"), ("g", B, "b"))


@pytest.mark.case("PROV-01")
def test_without_an_index_the_ids_of_the_first_pieces_keep_calls_apart() -> None:
    """PROV-01: a missing index must not fold all calls into one."""
    assert (
        assemble(
            p(None, "a", "f", A[:3]),
            p(None, "", "", A[3:]),
            p(None, "b", "g", ""),
            p(None, "", "", B[:4]),
            p(None, "", "", B[4:]),
        )
        == TWO
    )


@pytest.mark.case("PROV-01")
@pytest.mark.parametrize("call_id", ["a", ""])
def test_one_call_needs_neither_id_nor_index_on_later_pieces(call_id: str) -> None:
    """PROV-01: with one call there is nothing to confuse."""
    pieces = [p(None, "", "", char) for char in A]
    expected = told(("f", A, call_id or None))
    assert assemble(p(None, call_id, "f"), *pieces) == expected


@pytest.mark.case("PROV-01")
def test_pieces_that_could_belong_to_two_calls_are_an_error() -> None:
    """PROV-01: a guess could run a tool with arguments that nobody wrote."""
    with pytest.raises(ModelError, match="2 calls could be meant"):
        assemble(p(None, "a", "f"), p(None, "b", "g"), p(None, "", "", A))


@pytest.mark.case("PROV-01")
def test_whole_calls_without_any_id_or_index_stay_apart() -> None:
    """PROV-01: some servers send each call in one piece, and nothing else."""
    expected = told(("f", A, None), ("f", B, None), ("g", A, None))
    assert (
        assemble(p(None, "", "f", A), p(None, "", "f", B), p(None, "", "g", A), p(None))
        == expected
    )


@pytest.mark.case("PROV-02")
@pytest.mark.parametrize("named_again", [False, True])
def test_a_new_id_opens_a_call_and_a_known_id_wins_over_the_index(
    *, named_again: bool
) -> None:
    """PROV-02: two calls announced under index 0 must not be glued together."""
    f, g = ("f", "g") if named_again else ("", "")
    assert (
        assemble(
            p(0, "a", "f"),
            p(0, "b", "g"),
            p(0, "a", f, A[:4]),
            p(1, "b", g, B[:2]),
            p(0, "b", g, B[2:]),
            p(0, "a", f, A[4:]),
        )
        == TWO
    )


@pytest.mark.case("PROV-02")
def test_a_reused_index_without_ids_on_the_tails_is_an_error() -> None:
    """PROV-02: the tail may be of either call."""
    with pytest.raises(ModelError, match="2 calls could be meant"):
        assemble(p(0, "a", "f"), p(0, "b", "g"), p(0, "", "", A))


@pytest.mark.case("PROV-02")
def test_a_reused_index_is_clear_once_the_first_call_is_whole() -> None:
    """PROV-02: nothing can be added to arguments that are complete."""
    assert assemble(p(0, "a", "f", A), p(0, "b", "g"), p(0, "", "", B)) == TWO
    assert assemble(p(0, "a", "f", A), p(0, "b", "g"), p(1, "", "", B)) == TWO


@pytest.mark.case("PROV-03")
@pytest.mark.parametrize(
    "pieces",
    [
        [p(0, "a", "f"), p(0, "", "", A[:2]), p(0, "", "", A[2:])],
        [p(0, "", "f"), p(0, "", "", A[:2]), p(0, "", "", A[2:])],
        [p(0, "a", "", A[:2]), p(0, "", "", A[2:]), p(0, "", "f")],
        [p(0, "", "", A[:2]), p(0, "", "f", A[2:])],
        [p(0, "", "f"), p(0, "a", "", A)],
        [p(0, "a", "f", A[:2]), p(0, "a", "f", A[2:]), p(0, "a", "f")],
        [p(0, "", "f", A[:2]), p(0, "", "f", A[2:]), p(0, "", "f")],
    ],
    ids=["id-first", "no-id", "name-last", "name-late", "id-late", "id-n", "name-n"],
)
def test_one_call_comes_out_whole_however_its_pieces_are_labelled(
    pieces: list[CallPiece],
) -> None:
    """PROV-03: labels on some pieces only must neither split nor lose a call."""
    call_id = "a" if any(piece.call_id for piece in pieces) else None
    assert assemble(*pieces) == told(("f", A, call_id))


@pytest.mark.case("PROV-03")
def test_an_index_that_is_new_opens_a_call_in_any_order() -> None:
    """PROV-03: some servers count from one, or begin with the last."""
    expected = told(("f", A, None), ("f", B, None))
    pieces = [p(1, "", "f", A[:3]), p(0, "", "f", B), p(1, "", "", A[3:])]
    assert assemble(*pieces) == expected


@pytest.mark.case("PROV-03")
def test_ids_that_come_late_go_to_the_calls_of_their_index() -> None:
    """PROV-03: with the wrong id a result would answer the wrong call."""
    heads = [p(0, "", "f"), p(1, "", "g")]
    assert assemble(*heads, p(0, "a", "", A), p(1, "b", "", B)) == TWO


@pytest.mark.case("PAIR-09")
def test_two_calls_under_one_id_are_two_calls() -> None:
    """PAIR-09: some models give every call the same id."""
    expected = told(("f", A, "x"), ("f", B, "x"))
    assert assemble(p(0, "x", "f", A), p(1, "x", "f", B)) == expected
    assert assemble(p(0, "x", "f", A), p(1, "x", "f"), p(1, "x", "", B)) == expected


@pytest.mark.parametrize(
    ("pieces", "match"),
    [
        ([p(0, "a", "f", A), p(0, "a", "", B)], "arguments of two calls"),
        ([p(0, "a", "f"), p(0, "a", "g", B)], "named 'f' and 'g'"),
        ([p(0, "a", "", A)], "no name"),
        ([p(0, "a", "f", A), p(3, "", "", B)], "no name"),
    ],
)
def test_what_cannot_be_one_call_is_an_error(
    pieces: list[CallPiece], match: str
) -> None:
    """A merged call must not come out of any input, whatever it is."""
    with pytest.raises(ModelError, match=match):
        assemble(*pieces)


@pytest.mark.case("TOOL-03")
@pytest.mark.parametrize(
    "arguments", [A[:-1], '{"a": "tex', '{"a":', "{", '{"a": tr', '{"a": "\\u00']
)
def test_half_arguments_are_marked_truncated(arguments: str) -> None:
    """TOOL-03: whatever reason the provider gave, half a call must not run."""
    assert assemble(p(0, "a", "f", arguments))[0].truncated


@pytest.mark.case("TOOL-03")
def test_only_the_last_call_of_a_cut_answer_is_truncated() -> None:
    """TOOL-03: its complete siblings are complete."""
    chunks = assemble(p(0, "a", "f", A), p(1, "b", "g", B), cut=True)
    assert [chunk.truncated for chunk in chunks] == [False, True]


def test_no_arguments_are_an_empty_object() -> None:
    """Servers write nothing for a call without arguments."""
    assert assemble(p(0, "a", "f"), p(1, "b", "g", " ")) == told(
        ("f", "{}", "a"), ("g", "{}", "b")
    )


@hypothesis.given(
    bodies=st.lists(
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
        min_size=1,
        max_size=4,
    ),
    style=st.sampled_from(["both", "index", "id"]),
    order=st.randoms(use_true_random=False),
)
def test_any_interleaving_of_labelled_pieces_gives_every_call_whole(
    bodies: list[dict[str, int]], style: str, order: random.Random
) -> None:
    """With a label on every piece the order between calls does not matter."""
    texts = [json.dumps(body) for body in bodies]
    queues = [[(n, "")] + [(n, char) for char in text] for n, text in enumerate(texts)]
    heads = [queue.pop(0)[0] for queue in queues]
    index = {n: None if style == "id" else n for n in heads}
    label = {n: "" if style == "index" else f"id-{n}" for n in heads}
    pieces = [p(index[n], label[n], "f") for n in heads]
    while any(queues):
        queue = order.choice([queue for queue in queues if queue])
        n, char = queue.pop(0)
        pieces.append(p(index[n], label[n], "", char))
    chunks = assemble(*pieces)
    assert [chunk.arguments for chunk in chunks] == texts


@hypothesis.given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=4,
    ),
    st.data(),
)
def test_every_beginning_of_an_object_is_recognised_as_one(
    value: object, data: st.DataObject
) -> None:
    """TOOL-03: the cut may be anywhere."""
    text = json.dumps({"x": value})
    end = data.draw(st.integers(1, len(text) - 1))
    assert is_cut(text[:end])
    assert not is_cut(text)
    assert not is_cut(text + "}")
