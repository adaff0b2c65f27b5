"""The schema of an answer: what is refused when, and what a provider is shown."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from typing import Literal, cast

import jsonschema_rs
import msgspec
import pytest

import agentkernel as ak
from agentkernel.bridges.subagents import AnswerSchema, SchemaLike
from agentkernel.tools import FunctionTool


def member(schema: ak.JsonValue, **beside: ak.JsonValue) -> ak.JsonObject:
    return {"type": "object", "properties": {"a": schema}, **beside}


INTEGER: ak.JsonObject = {"A": {"type": "integer"}}
NULLABLE: ak.JsonObject = {"anyOf": [{"type": "integer"}, {"type": "null"}]}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (member({"$ref": "#/$defs/A", "minimum": 3}, **{"$defs": INTEGER}), {"a": 1}),
        ({"type": "array", "items": False}, [1]),
        (member(schema=False), {"a": 1}),
        (member({"const": {"b": 1}}), {"a": {"b": True}}),
        (member({"enum": [[1, 2]]}), {"a": [2, 1]}),
        (member({"type": "string", "minLength": 3.0}), {"a": "x"}),
        (member({"not": {"type": "string"}}), {"a": "x"}),
        (member({"type": "number", "multipleOf": 3}), {"a": 4}),
        ({"type": "array", "uniqueItems": True}, [1, 1]),
        ({"type": "array", "items": {"$ref": "#"}}, [[1]]),
        ({"type": "object", "additionalProperties": False}, {"a": 1}),
        (member({"type": "string", "pattern": "^b"}), {"a": "a"}),
    ],
)
def test_an_answer_that_does_not_fit_is_refused_by_tool_and_by_text(
    schema: ak.JsonObject, value: ak.JsonValue
) -> None:
    """Every keyword of the standard counts, also beside a reference."""
    answer = AnswerSchema(schema)
    with pytest.raises(ak.ToolArgumentsError, match=r"^\$"):
        answer.check(ak.freeze(value))
    with pytest.raises(ak.ToolArgumentsError, match=r"^\$"):
        answer.of_text(msgspec.json.encode(value).decode())


FITTING: list[tuple[ak.JsonObject, ak.JsonValue]] = [
    (member({"anyOf": [True]}), {"a": 1}),
    (member({"enum": [[1, 2]]}), {"a": [1, 2]}),
    (member({"const": [1, 2]}), {"a": [1, 2]}),
    ({"type": "array", "items": {"$ref": "#"}}, [[[]]]),
    ({"$ref": "#"}, {"a": 1}),
    (
        member({"$ref": "#/$defs/x~1y"}, **{"$defs": {"x/y": {"type": "integer"}}}),
        {"a": 1},
    ),
    (
        {
            "type": "object",
            "properties": {"a": NULLABLE, "b": {"$ref": "#/properties/a/anyOf/0"}},
        },
        {"b": 1},
    ),
    (
        member({"$ref": "#/definitions/A"}, definitions=INTEGER),
        {"a": 1},
    ),
]


@pytest.mark.parametrize(("schema", "value"), FITTING)
def test_an_answer_that_fits_is_taken_by_tool_and_by_text(
    schema: ak.JsonObject, value: ak.JsonValue
) -> None:
    """Recursive schemas, escaped names and arrays of choices are legal."""
    answer = AnswerSchema(schema)
    assert answer.check(ak.freeze(value)) == ak.freeze(value)
    assert answer.of_text(msgspec.json.encode(value).decode()) == ak.freeze(value)


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (member({"$ref": "#/$defs/B"}), "/$defs/B"),
        (member({"type": "string", "pattern": "("}), r"$.properties.a.pattern"),
        (member({"type": "strin"}), r"$.properties.a.type"),
        (member({"minLength": -1}), r"$.properties.a.minLength"),
        (member({"$ref": "https://example.com/x.json"}), "https://example.com"),
        (member({"$ref": "file:///etc/hostname"}), "file:///etc/hostname"),
        ({"$schema": "https://example.com/none", "type": "object"}, "example.com"),
        ({"const": "\ud800"}, "$"),
    ],
)
def test_a_schema_that_is_not_valid_is_refused_when_it_is_handed_in(
    schema: ak.JsonObject, place: str
) -> None:
    """Nothing is left to go wrong when an answer comes, and nothing is fetched."""
    with pytest.raises(ValueError, match="the schema is not valid") as caught:
        AnswerSchema(schema)
    assert place in str(caught.value)


def test_a_schema_as_deep_as_no_validator_goes_is_refused_when_it_is_handed_in() -> (
    None
):
    """It does not end the program, neither now nor with the first answer."""
    schema: ak.JsonObject = {"type": "object"}
    for _ in range(400):
        schema = member(schema)
    with pytest.raises(ValueError, match="the schema is not valid"):
        AnswerSchema(schema)


class Late(msgspec.Struct):
    a: int

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError("negative")


@pytest.mark.parametrize("like", [Late, {"type": "string"}])
@pytest.mark.parametrize(
    "text", ["", "no", '{"a": -1}', '"\\ud800"', "\ud800", "[" * 100_000, "1e999", "{}"]
)
def test_an_odd_answer_is_an_error_of_the_answer_and_no_other(
    like: SchemaLike, text: str
) -> None:
    """A model may write anything; a turn must not fail for it."""
    answer = AnswerSchema(like)
    with pytest.raises(ak.ToolArgumentsError):
        answer.of_text(text)


def test_an_error_names_places_and_is_short() -> None:
    """Several reasons are told at once, and a long value is not repeated whole."""
    answer = AnswerSchema(
        {
            "type": "object",
            "properties": {"a": {"items": {"type": "integer"}}, "b": {"type": "null"}},
        }
    )
    with pytest.raises(ak.ToolArgumentsError) as caught:
        answer.of_text(f'{{"a": [1, "{"x" * 10_000}"], "b": 2}}')
    said = str(caught.value)
    assert "$.a[1]: " in said
    assert "$.b: " in said
    assert len(said) < 1000


class City(msgspec.Struct):
    name: str
    parts: list[City] = []


class Verdict(msgspec.Struct):
    winner: Literal["a", "b"]
    on: date | None = None


class Yes(msgspec.Struct, tag=True):
    why: str


class No(msgspec.Struct, tag=True):
    why: str


KINDS: list[tuple[SchemaLike, ak.JsonValue, ak.JsonValue]] = [
    (Verdict, {"winner": "a", "on": None}, {"winner": "c"}),
    (City, {"name": "x", "parts": [{"name": "y"}]}, {"name": "x", "parts": [1]}),
    (Yes | No, {"type": "Yes", "why": "so"}, {"type": "Maybe"}),
    (dict[str, int], {"a": 1}, {"a": "b"}),
    (list[City], [{"name": "x"}], [{}]),
    (int, 3, "three"),
    ({"$ref": "#/$defs/A", "$defs": INTEGER}, 1, "1"),
    (
        {
            "$ref": "#/$defs/N",
            "$defs": {"N": member({"$ref": "#/$defs/N"})},
        },
        {"a": {"a": {}}},
        {"a": {"a": 1}},
    ),
    (
        {
            "$ref": "#/$defs/B",
            "title": "b",
            "$defs": {"B": {"$ref": "#/$defs/C"}, "C": member({"type": "null"})},
        },
        {"a": None},
        {"a": 1},
    ),
    (
        {"$ref": "#/$defs/B", "minProperties": 1, "$defs": {"B": member(schema=True)}},
        {"a": 1},
        {},
    ),
    ({"$ref": "#"}, 1, None),
    ({"anyOf": [member({"type": "integer"}), {"type": "null"}]}, None, {"a": "x"}),
    (member({"type": "integer"}, oneOf=[{"required": ["a"]}]), {"a": 1}, {}),
    (
        {"type": ["object", "null"], "properties": {"a": {"$ref": "#"}}},
        {"a": None},
        1,
    ),
    ({"type": "array", "items": {"$ref": "#"}}, [[]], [1]),
    (
        {
            "properties": {
                "a": {"type": "null"},
                "$ref": {"$ref": "#/properties/a"},
            },
            "enum": [{"$ref": None}, {"$ref": "#/properties/a"}],
        },
        {"$ref": None},
        {"$ref": "#/properties/a"},
    ),
    (
        {"$id": "https://example.com/s", "type": "array", "items": {"$ref": "#"}},
        [[]],
        [1],
    ),
]


@pytest.mark.parametrize(("like", "value", "wrong"), KINDS)
def test_a_provider_is_shown_an_object_that_says_the_same(
    like: SchemaLike, value: ak.JsonValue, wrong: ak.JsonValue
) -> None:
    """Both vendors refuse a root that is not plainly an object, or is a choice."""
    answer = AnswerSchema(like)
    shown = msgspec.to_builtins(answer.parameters)
    assert shown["type"] == "object"
    assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "enum"} & set(shown)
    wrapped = set(shown.get("properties", ())) == {"value"}
    validator = jsonschema_rs.validator_for(shown, offline=True)
    for one, fits in ((value, True), (wrong, False)):
        arguments = cast("ak.JsonObject", {"value": one} if wrapped else one)
        if one is None and like == {"$ref": "#"}:
            continue  # it asserts nothing
        assert validator.is_valid(arguments) == fits
        if fits:
            answer.of_arguments(arguments)
        else:
            with pytest.raises(ak.ToolArgumentsError):
                answer.of_arguments(arguments)


def test_a_tool_of_a_function_shows_an_object_whatever_its_arguments_are() -> None:
    """Its schema is that of a struct of the arguments, never one of them."""

    def tell(city: City, verdict: Yes | No, other: Verdict | None = None) -> str:
        return f"{city} {verdict} {other}"

    shown = FunctionTool(tell).spec.parameters
    assert shown["type"] == "object"
    assert not {"$ref", "anyOf", "oneOf", "allOf", "not", "enum"} & set(shown)


def test_a_definition_that_was_put_in_place_is_not_shown_twice() -> None:
    """What the model reads is paid for with every request."""
    shown = AnswerSchema(Verdict).parameters
    assert "$defs" not in shown
    assert shown["required"] == ("winner",)
    assert "$defs" in AnswerSchema(City).parameters


def test_a_type_needs_no_extra_and_a_json_schema_says_which_it_needs() -> None:
    """The error is that of the caller, when it hands the schema in."""
    program = (
        "import sys; sys.modules['jsonschema_rs'] = None\n"
        "from agentkernel.bridges.subagents import AnswerSchema\n"
        "assert AnswerSchema(dict).of_text('{}') == {}\n"
        "try: AnswerSchema({'type': 'object'})\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "pip install 'trio-agentkernel[schema]'" in done.stdout
