"""`FunctionTool`: schema, check, call, threads and limits. Virtual time where in memory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st

from agentkernel import (
    BinaryBlock,
    Blob,
    JsonObject,
    TextBlock,
    Tool,
    ToolArgumentsError,
    ToolFailure,
    ToolInvocation,
    ToolOutput,
    TurnSignal,
)
from agentkernel.tools import FunctionTool, tool
from agentkernel.tools.outputs import to_output

if TYPE_CHECKING:
    from agentkernel._loop.agent import Agent


def invoke(made: FunctionTool, **arguments: object) -> ToolInvocation:
    """A call as the kernel would make it, its arguments checked."""
    return ToolInvocation(
        agent=cast("Agent", None),
        signal=TurnSignal(),
        turn=1,
        step=1,
        call_id="c1",
        name=made.spec.name,
        arguments=made.check(cast("JsonObject", arguments)),
    )


def text(output: ToolOutput) -> str:
    (block,) = output.content
    assert isinstance(block, TextBlock)
    return block.text


class Point(msgspec.Struct):
    """A place."""

    x: int
    y: int = 0


class Tree(msgspec.Struct):
    kids: list[Tree] = []
    name: str = ""


Short = Annotated[str, msgspec.Meta(max_length=5, description="at most five")]


@tool
def draw(
    point: Point,
    label: Short,
    call: ToolInvocation,
    style: Literal["thin", "thick"] = "thin",
    weights: list[float] = [1.0],  # noqa: B006  # the point: it must not be shared
) -> str:
    """Draw a labelled point.

    In some style.

    Args:
      point: where it goes,
        seen from the corner.
      label (str): what the annotation says better.
      call: of nobody's interest.
      style: how it looks.

    Returns:
      What was drawn.

    """
    weights.append(2.0)
    return f"{label}@{point.x},{point.y} {style} {weights} {call.call_id}"


def test_the_schema_tells_the_model_what_the_signature_says() -> None:
    """References are written out, remarks come from the docstring, the injected
    parameter is nobody's business."""
    assert draw.spec.name == "draw"
    assert draw.spec.description == "Draw a labelled point.\n\nIn some style."
    assert draw.spec.parameters == {
        "type": "object",
        "properties": {
            "point": {
                "title": "Point",
                "type": "object",
                "description": "where it goes, seen from the corner.",
                "properties": {
                    "x": {"type": "integer"},
                    "y": {"type": "integer", "default": 0},
                },
                "required": ("x",),
            },
            "label": {
                "type": "string",
                "maxLength": 5,
                "description": "what the annotation says better.",
            },
            "style": {
                "enum": ("thick", "thin"),
                "default": "thin",
                "description": "how it looks.",
            },
            "weights": {
                "type": "array",
                "items": {"type": "number"},
                "default": (1.0,),
            },
        },
        "required": ("point", "label"),
        "additionalProperties": False,
    }
    assert isinstance(draw, Tool)


def test_a_type_that_contains_itself_keeps_its_reference() -> None:
    """It cannot be written out; the definition travels with the schema."""

    def plant(tree: Tree) -> None: ...

    schema = FunctionTool(plant).spec.parameters
    assert schema["properties"] == {"tree": {"$ref": "#/$defs/Tree"}}
    definitions = cast("JsonObject", schema["$defs"])
    assert set(definitions) == {"Tree"}


def test_options_replace_what_the_function_says_about_itself() -> None:
    """One function may be offered twice, under two names."""

    def plain() -> None:
        """Own words."""

    made = FunctionTool(
        plain,
        name="other",
        description="Other words.",
        parallel_safe=True,
        max_seconds=2,
        needs_approval=True,
    )
    assert (made.spec.name, made.spec.description) == ("other", "Other words.")
    assert (made.parallel_safe, made.max_seconds, made.needs_approval) == (
        True,
        2,
        True,
    )
    assert FunctionTool(plain).spec.description == "Own words."
    assert made.spec.parameters == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


class _Unresolved:
    pass


def _nothing() -> None: ...
def _args(*args: int) -> None: ...
def _kwargs(**kwargs: int) -> None: ...
def _positional(a: int, /) -> None: ...
def _bare(a) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # pyright: ignore[reportUnknownParameterType, reportMissingParameterType]  # bare on purpose
def _alien(a: _Unresolved) -> None: ...
def _two(a: ToolInvocation, b: ToolInvocation) -> None: ...
def _default(a: object = _Unresolved()) -> None: ...


@pytest.mark.parametrize(
    "fn",
    cast(
        "list[object]",
        [_args, _kwargs, _positional, _bare, _alien, _two, _default],
    ),
)
def test_a_function_that_json_cannot_call_is_refused_when_the_tool_is_made(
    fn: object,
) -> None:
    """The author learns of it at once, and by the function's name."""
    assert callable(fn)
    with pytest.raises(TypeError, match="_"):
        FunctionTool(fn)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "no good"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"max_seconds": 0}, "positive"),
    ],
)
def test_options_that_no_provider_would_take_are_refused(
    options: dict[str, object], problem: str
) -> None:
    """A bad tool name fails a whole request later; here it fails one line."""
    with pytest.raises(ValueError, match=problem):
        FunctionTool(_nothing, **options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose


@pytest.mark.case("TOOL-02")
@pytest.mark.clause("T3d")
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "missing required field `point`"),
        ({"point": {"x": 1}}, "missing required field `label`"),
        (
            {"point": {"x": "1"}, "label": "a"},
            r"Expected `int`, got `str`.*\$\.point\.x",
        ),
        ({"point": {}, "label": "a"}, r"`x`.*\$\.point"),
        ({"point": {"x": 1}, "label": "too long"}, r"length <= 5.*\$\.label"),
        ({"point": {"x": 1}, "label": "a", "style": "wavy"}, r"wavy.*\$\.style"),
        ({"point": {"x": 1}, "label": "a", "weights": [1, "2"]}, r"\$\.weights\[1\]"),
        ({"point": {"x": 1}, "label": "a", "colour": "red"}, "unknown field `colour`"),
        ({"point": {"x": 1}, "label": "a", "call": {}}, "unknown field `call`"),
        ({"point": {"x": 1}, "label": "a", "weights": [float("nan")]}, r"weights\[0\]"),
        ({"point": {"x": 1}, "label": "a", "weights": None}, r"\$\.weights"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_the_place(
    arguments: dict[str, object], problem: str
) -> None:
    """Nothing is coerced or guessed; the message is what the model learns from."""
    with pytest.raises(ToolArgumentsError, match=problem) as caught:
        draw.check(cast("JsonObject", arguments))
    assert str(caught.value).startswith("tool 'draw': ")
    assert "expected: point, label, style (optional)" in str(caught.value)


@pytest.mark.case("TOOL-02")
def test_a_refusal_quotes_at_most_an_excerpt() -> None:
    """300 kB of junk in a name must not come back as 300 kB of error."""
    with pytest.raises(ToolArgumentsError) as caught:
        draw.check({"point": {"x": 1}, "label": "a", "j" * 300_000: 1})
    assert len(str(caught.value)) < 1000


def test_checked_arguments_hold_the_defaults_and_checking_again_changes_nothing() -> (
    None
):
    """What is logged as the final arguments is what the body is called with."""
    once = draw.check({"point": {"x": 1}, "label": "a"})
    assert once == {
        "point": {"x": 1, "y": 0},
        "label": "a",
        "style": "thin",
        "weights": (1.0,),
    }
    assert draw.check(once) == once


@pytest.mark.case("STORE-09")
def test_half_a_character_in_an_argument_is_replaced_and_not_refused() -> None:
    """A model may write one; every part of the kernel follows the same rule."""
    checked = draw.check({"point": {"x": 1}, "label": "\ud83d"})
    assert checked["label"] == "\ufffd"


class Everything(msgspec.Struct):
    number: int
    real: float
    word: str
    flag: bool
    maybe: str | None
    items: list[int]
    table: dict[str, float]
    data: bytes
    choice: Literal["a", "b"] = "a"


def _everything(value: Everything, many: list[Everything]) -> None: ...


@given(
    st.builds(
        Everything,
        number=st.integers(-(2**63), 2**64 - 1),
        real=st.floats(allow_nan=False, allow_infinity=False),
        word=st.text(),
        table=st.dictionaries(
            st.text(), st.floats(allow_nan=False, allow_infinity=False), max_size=3
        ),
        items=st.lists(st.integers(-(2**63), 2**63), max_size=3),
    )
)
def test_a_value_survives_being_written_as_arguments_and_read_back(
    value: Everything,
) -> None:
    """Schema, check and call agree for any value of the annotated type."""
    made = FunctionTool(_everything)
    builtins = cast(
        "JsonObject", msgspec.to_builtins({"value": value, "many": [value]})
    )
    checked = made.check(builtins)
    assert made.check(checked) == checked
    again = msgspec.json.decode(msgspec.json.encode(checked["value"]), type=Everything)
    assert msgspec.structs.replace(again, word=value.word) == msgspec.structs.replace(
        value, table=again.table, maybe=again.maybe
    )


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@pytest.mark.case("TOOL-02")
@given(
    st.dictionaries(
        st.sampled_from(["point", "label", "style", "weights", "x"]), _json, max_size=4
    )
)
def test_any_json_is_either_accepted_or_refused_with_one_kind_of_error(
    arguments: dict[str, object],
) -> None:
    """No argument a model can write makes the check fail in another way."""
    try:
        checked = draw.check(cast("JsonObject", arguments))
    except ToolArgumentsError:
        return
    assert {"point", "label"} <= set(arguments)
    assert draw.check(checked) == checked


async def test_the_body_gets_converted_values_its_own_defaults_and_the_invocation() -> (
    None
):
    """A mutable default must not carry one call's changes into the next."""
    call = invoke(draw, point={"x": 3}, label="p")
    unfilled = msgspec.structs.replace(
        call, arguments={"point": {"x": 3}, "label": "p"}
    )
    for each in (call, call, unfilled, unfilled):
        output = await draw.run(each)
        assert text(output) == "p@3,0 thin [1.0, 2.0] c1"


async def test_arguments_that_a_listener_spoiled_do_not_reach_the_body() -> None:
    """They may be rewritten between the check and the call."""
    spoiled = msgspec.structs.replace(
        invoke(draw, point={"x": 3}, label="p"), arguments={"label": "p"}
    )
    with pytest.raises(ToolArgumentsError, match="point"):
        await draw.run(spoiled)


async def test_methods_partials_and_objects_with_a_call_are_functions_too() -> None:
    """Anything that has a signature will do."""

    class Counter:
        def __init__(self) -> None:
            self.n = 0

        async def add(self, n: int) -> int:
            self.n += n
            return self.n

        async def __call__(self, n: int) -> int:
            return n

    counter = Counter()
    add = FunctionTool(counter.add)
    called = FunctionTool(counter, name="counter")
    assert text(await add.run(invoke(add, n=2))) == "2"
    assert text(await add.run(invoke(add, n=2))) == "4"
    assert text(await called.run(invoke(called, n=7))) == "7"


@dataclasses.dataclass
class Pair:
    left: int
    right: str


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ToolOutput()),
        ("", ToolOutput.of("")),
        ("a", ToolOutput.of("a")),
        (1.5, ToolOutput.of("1.5")),
        ({"a": [1, None]}, ToolOutput.of('{"a":[1,null]}')),
        (["a", "b"], ToolOutput.of('["a","b"]')),
        ([], ToolOutput.of("[]")),
        (Point(1), ToolOutput.of('{"x":1,"y":0}')),
        (Pair(1, "r"), ToolOutput.of('{"left":1,"right":"r"}')),
        (TextBlock("t"), ToolOutput.of("t")),
        (
            b"\x89PNG\r\n\x1a\n1",
            ToolOutput((BinaryBlock("image/png", Blob(b"\x89PNG\r\n\x1a\n1")),)),
        ),
        (
            b"\0",
            ToolOutput((BinaryBlock("application/octet-stream", Blob(b"\0")),)),
        ),
        (
            [TextBlock("t"), BinaryBlock("a/b", Blob(b""))],
            ToolOutput((TextBlock("t"), BinaryBlock("a/b", Blob(b"")))),
        ),
        (
            ToolOutput((), ToolFailure("c", "m"), {"k": [1]}),
            ToolOutput((), ToolFailure("c", "m"), {"k": (1,)}),
        ),
    ],
)
def test_a_return_value_becomes_what_the_model_is_shown(
    value: object, expected: ToolOutput
) -> None:
    """Text stays text, data is JSON, bytes are a block, nothing is nothing."""
    assert to_output(value, "t") == expected


@pytest.mark.case("STORE-09")
def test_text_of_a_tool_can_always_be_encoded() -> None:
    """Half a surrogate pair from a file name, say, in any part of an output."""
    half = "a\ud83d"
    made = to_output(
        ToolOutput((TextBlock(half),), ToolFailure("c", half), {"k": half}), "t"
    )
    for shown in (made, to_output(half, "t"), to_output({"k": [half]}, "t")):
        assert "\ufffd".encode() in msgspec.json.encode(
            [[b for b in shown.content if isinstance(b, TextBlock)], shown.meta]
        )


@pytest.mark.parametrize("value", [object(), {"a": object()}, float("nan"), {1, 1.5j}])
def test_a_return_value_that_is_no_json_is_an_error_that_names_the_tool(
    value: object,
) -> None:
    """The author sees which tool and which type."""
    with pytest.raises(TypeError, match=r"tool 't' returned a"):
        to_output(value, "t")


@pytest.mark.case("TOOL-04")
async def test_a_hung_tool_ends_at_its_limit_with_an_error_that_names_both(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """0.0 the call starts; 1.0 its limit; the tool's own task is gone as well."""
    trace: list[str] = []

    @tool(max_seconds=1)
    async def hang() -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
        finally:
            trace.append(f"ended at {trio.current_time() - start}")

    start = trio.current_time()
    output = await hang.run(invoke(hang))
    assert output.error is not None
    assert output.error.code == "TIMEOUT"
    assert "'hang'" in output.error.message
    assert "1 s" in output.error.message
    assert text(output) == output.error.message
    assert trace == ["ended at 1.0"]
    assert trio.current_time() - start == 1.0


async def test_a_value_that_arrives_after_the_limit_still_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What is past its point of no return did happen."""

    @tool(max_seconds=1)
    async def commit() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(5)
        return "done"

    output = await commit.run(invoke(commit))
    assert (text(output), output.error) == ("done", None)


async def test_a_call_is_a_checkpoint_and_a_stopped_one_never_starts() -> None:
    """An async body without a checkpoint must not make the call one without."""
    ran: list[int] = []

    @tool
    async def quick() -> None:
        ran.append(1)

    with trio.testing.assert_checkpoints():
        await quick.run(invoke(quick))
    with trio.CancelScope() as scope:
        scope.cancel()
        await quick.run(invoke(quick))
    assert scope.cancelled_caught
    assert ran == [1]


async def test_an_exception_of_the_body_comes_out_as_itself() -> None:
    """Who turns it into an error result is the kernel."""

    @tool
    def broken() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await broken.run(invoke(broken))
