"""The schema of an answer, and whether a value fits it.

An answer is described by a Python type, which msgspec checks, or by a JSON schema,
which is checked here as far as `KEYWORDS` goes: a schema that asserts more is refused
when it is handed in, so that nothing is let through unchecked. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, cast, final

import msgspec

from agentkernel import JsonObject, JsonValue, ToolArgumentsError, freeze

__all__ = ["KEYWORDS", "AnswerSchema", "SchemaLike", "problem_of"]

SchemaLike: TypeAlias = "type | JsonObject"

# What is asserted, and what says nothing about values.
KEYWORDS: Final = frozenset(
    [
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "oneOf",
        "allOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "$ref",
        "$defs",
    ]
)
_REMARKS: Final = frozenset(
    [
        "title",
        "description",
        "default",
        "examples",
        "format",
        "$schema",
        "$id",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
    ]
)
_TYPES: Final[dict[str, Callable[[object], bool]]] = {
    "object": lambda v: isinstance(v, Mapping),
    "array": lambda v: isinstance(v, list | tuple),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "integer": lambda v: (
        (isinstance(v, int) and not isinstance(v, bool))
        or (isinstance(v, float) and v.is_integer())
    ),
}
_Node: TypeAlias = "Mapping[str, object]"


@final
class AnswerSchema:
    """What a structured answer has to look like. Immutable.

    Attributes:
      schema: the JSON schema of the answer.
      parameters: a schema of an object, for a tool: that of the answer, or one with
        the answer as its only member.

    """

    def __init__(self, like: SchemaLike) -> None:
        """Read a type or a JSON schema.

        Raises:
          ValueError: if a JSON schema asserts something that cannot be checked here.
          TypeError: if a type cannot be described.

        """
        self._type: type[object] | None = None
        if isinstance(like, Mapping):
            _refuse_unknown(like, "$")
            schema: object = like
        else:
            self._type = like
            schema = msgspec.json.schema(like)
        self.schema: JsonObject = cast("JsonObject", freeze(schema))
        self._wrapped = self.schema.get("type") != "object" and self._type is None
        if self._type is not None:
            self._wrapped = not _describes_object(self.schema)
        self.parameters: JsonObject = self.schema
        if self._wrapped:
            self.parameters = cast(
                "JsonObject",
                freeze(
                    {
                        "type": "object",
                        "properties": {"value": self._inner()},
                        "required": ["value"],
                        "$defs": self.schema.get("$defs", {}),
                    }
                ),
            )

    def of_arguments(self, arguments: JsonObject) -> JsonValue:
        """Check the arguments of the answering tool.

        Returns:
          The answer.

        Raises:
          ToolArgumentsError: if they do not fit; it names the place.

        """
        if not self._wrapped:
            return self.check(arguments)
        if "value" not in arguments:
            raise ToolArgumentsError("the answer lacks its member `value`")
        return self.check(arguments["value"])

    def check(self, value: JsonValue) -> JsonValue:
        """Check a value.

        Returns:
          The value, frozen, with the defaults of a type filled in.

        Raises:
          ToolArgumentsError: if it does not fit; it names the place.

        """
        if self._type is not None:
            try:
                made: object = msgspec.convert(value, self._type)
            except msgspec.ValidationError as error:
                raise ToolArgumentsError(str(error)) from None
            return freeze(msgspec.to_builtins(made))
        problem = problem_of(value, self.schema)
        if problem is not None:
            raise ToolArgumentsError(problem)
        return freeze(value)

    def of_text(self, text: str) -> JsonValue:
        """Read an answer that was given as text, in a code fence or without.

        Raises:
          ToolArgumentsError: if it is no JSON, or does not fit.

        """
        fenced = re.search(r"```(?:json)?\s*\n(.*?)\n?```", text, re.DOTALL)
        try:
            value: JsonValue = msgspec.json.decode(fenced[1] if fenced else text)
        except msgspec.DecodeError as error:
            raise ToolArgumentsError(f"the answer is no JSON: {error}") from None
        return self.check(value)

    def _inner(self) -> JsonObject:
        return {key: part for key, part in self.schema.items() if key != "$defs"}


def _describes_object(schema: JsonObject) -> bool:
    """Whether a schema that msgspec made is that of an object."""
    target = schema.get("$ref")
    definitions = schema.get("$defs")
    if isinstance(target, str) and isinstance(definitions, Mapping):
        inner = definitions.get(target.rpartition("/")[2])
        return isinstance(inner, Mapping) and inner.get("type") == "object"
    return schema.get("type") == "object"


def _refuse_unknown(node: object, where: str) -> None:
    if not isinstance(node, Mapping):
        return
    schema = cast("_Node", node)
    for key, part in schema.items():
        if key not in KEYWORDS and key not in _REMARKS:
            raise ValueError(f"{where}: the schema keyword {key!r} cannot be checked")
        for name, child in _children(key, part):
            _refuse_unknown(child, f"{where}.{name}")


def _children(key: str, part: object) -> Iterator[tuple[str, object]]:
    """Yield the schemas inside a keyword."""
    if key in {"properties", "$defs"} and isinstance(part, Mapping):
        members = cast("_Node", part)
        yield from ((f"{key}.{name}", child) for name, child in members.items())
    elif key in {"items", "additionalProperties"}:
        yield key, part
    elif key in {"anyOf", "oneOf", "allOf"} and isinstance(part, Sequence):
        branches = cast("Sequence[object]", part)
        yield from ((f"{key}[{i}]", child) for i, child in enumerate(branches))


def problem_of(
    value: object, schema: _Node, *, root: _Node | None = None, where: str = "$"
) -> str | None:
    """Say where and why a value does not fit a JSON schema; None if it does."""
    root = schema if root is None else root
    target = schema.get("$ref")
    if isinstance(target, str):
        return problem_of(value, _resolve(root, target), root=root, where=where)
    return (
        _wrong_type(value, schema, where)
        or _wrong_value(value, schema, where)
        or _wrong_number(value, schema, where)
        or _wrong_branch(value, schema, root, where)
        or _wrong_object(value, schema, root, where)
        or _wrong_array(value, schema, root, where)
    )


def _resolve(root: _Node, target: str) -> _Node:
    node: object = root
    for name in target.removeprefix("#").strip("/").split("/"):
        if not isinstance(node, Mapping) or name not in node:
            raise ValueError(f"the schema holds no {target!r}")
        node = cast("_Node", node)[name]  # pyright: ignore[reportUnnecessaryCast]  # without it, it says, this is partly unknown
    return cast("_Node", node)


def _wrong_type(value: object, schema: _Node, where: str) -> str | None:
    wanted = schema.get("type")
    if wanted is None:
        return None
    names = [wanted] if isinstance(wanted, str) else list(cast("list[str]", wanted))
    if any(_TYPES[name](value) for name in names):
        return None
    return f"{where}: expected {' or '.join(names)}"


def _wrong_value(value: object, schema: _Node, where: str) -> str | None:
    if "const" in schema and not _same(value, schema["const"]):
        return f"{where}: expected {schema['const']!r}"
    choices = schema.get("enum")
    if isinstance(choices, list | tuple):
        listed = cast("Sequence[object]", choices)
        if not any(_same(value, choice) for choice in listed):
            return f"{where}: expected one of {list(listed)!r}"
    if not isinstance(value, str):
        return None
    return _wrong_size(len(value), schema, where, "Length") or (
        f"{where}: does not fit the pattern {schema['pattern']!r}"
        if "pattern" in schema and not re.search(str(schema["pattern"]), value)
        else None
    )


def _same(one: object, other: object) -> bool:
    """Whether two JSON values are equal: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def _wrong_number(value: object, schema: _Node, where: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    tests: dict[str, Callable[[float, float], bool]] = {
        "minimum": lambda v, limit: v >= limit,
        "maximum": lambda v, limit: v <= limit,
        "exclusiveMinimum": lambda v, limit: v > limit,
        "exclusiveMaximum": lambda v, limit: v < limit,
    }
    for key, fits in tests.items():
        if key in schema and not fits(value, cast("float", schema[key])):
            return f"{where}: {value} breaks {key} {schema[key]}"
    return None


def _wrong_size(size: int, schema: _Node, where: str, of: str) -> str | None:
    least, most = schema.get(f"min{of}"), schema.get(f"max{of}")
    if isinstance(least, int) and size < least:
        return f"{where}: {size} is fewer than min{of} {least}"
    if isinstance(most, int) and size > most:
        return f"{where}: {size} is more than max{of} {most}"
    return None


def _wrong_branch(value: object, schema: _Node, root: _Node, where: str) -> str | None:
    for key in ("allOf", "anyOf", "oneOf"):
        branches = cast("Sequence[_Node]", schema.get(key, ()))
        if not branches:
            continue
        problems = [problem_of(value, b, root=root, where=where) for b in branches]
        fitting = problems.count(None)
        needed = {"allOf": len(branches), "anyOf": max(1, fitting), "oneOf": 1}[key]
        if fitting != needed:
            found = "; ".join(problem for problem in problems if problem)
            return found or f"{where}: fits {fitting} branches of oneOf"
    return None


def _wrong_object(value: object, schema: _Node, root: _Node, where: str) -> str | None:
    if not isinstance(value, Mapping):
        return None
    members = cast("_Node", value)
    for name in cast("Sequence[str]", schema.get("required", ())):
        if name not in members:
            return f"{where}: lacks {name!r}"
    known = cast("Mapping[str, _Node]", schema.get("properties", {}))
    others = schema.get("additionalProperties", True)
    for name, member in members.items():
        inner: object = known.get(name, others)
        if inner is False:
            return f"{where}: has no member {name!r}"
        if isinstance(inner, Mapping):
            node = cast("_Node", inner)
            problem = problem_of(member, node, root=root, where=f"{where}.{name}")
            if problem is not None:
                return problem
    return None


def _wrong_array(value: object, schema: _Node, root: _Node, where: str) -> str | None:
    if not isinstance(value, list | tuple):
        return None
    items = cast("Sequence[object]", value)
    problem = _wrong_size(len(items), schema, where, "Items")
    if problem is not None:
        return problem
    inner = schema.get("items")
    if isinstance(inner, Mapping):
        node = cast("_Node", inner)
        for index, item in enumerate(items):
            problem = problem_of(item, node, root=root, where=f"{where}[{index}]")
            if problem is not None:
                return problem
    return None
