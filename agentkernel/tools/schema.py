"""From a typed Python function to the schema of its arguments, and back to values.

`Parameters.of(fn)` reads a signature once: its annotations become a msgspec struct,
its docstring the description and the remarks on each argument. The struct makes the
JSON schema and checks and converts arguments, so that what a model is told and what is
accepted cannot differ. Pure: nothing here waits or touches the world.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias, TypeGuard, cast, final, get_type_hints

import msgspec

from agentkernel import (
    JsonObject,
    JsonValue,
    ToolArgumentsError,
    ToolInvocation,
    freeze,
)

from .docstring import parse_docstring

__all__ = ["AsyncFunction", "Function", "Parameters", "is_async"]

Function: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # any signature
_Schema: TypeAlias = dict[str, object]
_EXCERPT = 300
_REF = "#/$defs/"


@final
class Parameters:
    """What a function takes. Made by `Parameters.of`.

    Attributes:
      schema: the JSON schema of the arguments, an object without references (a type
        that contains itself keeps one).
      description: the docstring up to its first section.
      injected: the parameter that receives the `ToolInvocation`, if there is one.

    """

    def __init__(
        self,
        type_: type[msgspec.Struct],
        schema: JsonObject,
        description: str,
        injected: str | None,
    ) -> None:
        self.schema = schema
        self.description = description
        self.injected = injected
        self._type = type_

    @classmethod
    def of(cls, fn: Function) -> Parameters:
        """Read a function's signature and docstring.

        Raises:
          TypeError: if a parameter has no annotation, or one that JSON cannot
            carry, or if the function takes arguments that have no name.

        """
        hints = _read_hints(fn)
        description, remarks = parse_docstring(inspect.getdoc(fn) or "")
        injected: str | None = None
        fields: list[tuple[str, object] | tuple[str, object, object]] = []
        defaults: dict[str, object] = {}
        for name, parameter in inspect.signature(fn).parameters.items():
            _check_kind(fn, parameter)
            if name not in hints:
                raise TypeError(f"{_name(fn)}: parameter {name!r} has no annotation")
            if hints[name] is ToolInvocation:
                if injected is not None:
                    raise TypeError(f"{_name(fn)}: two parameters take the invocation")
                injected = name
            elif parameter.default is inspect.Parameter.empty:
                fields.append((name, hints[name]))
            else:
                value: object = parameter.default
                field = msgspec.field(default_factory=_copier(value))
                fields.append((name, hints[name], field))
                defaults[name] = value
        type_ = msgspec.defstruct(
            "Arguments",
            cast("list[str]", fields),  # msgspec's own type of it needs Any
            kw_only=True,
            forbid_unknown_fields=True,
        )
        schema = _build_schema(fn, type_, remarks, defaults)
        return cls(type_, schema, description, injected)

    def check(self, arguments: Mapping[str, object]) -> JsonObject:
        """Validate arguments and fill in what was left out. Not a checkpoint.

        Checking what was checked changes nothing.

        Raises:
          ToolArgumentsError: if they do not fit; it names the place.

        """
        value = self._convert(arguments)
        encoded = msgspec.json.encode(value, order="deterministic")
        return cast("JsonObject", freeze(msgspec.json.decode(encoded)))

    def values(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Convert arguments into what the function is called with, by name.

        Raises:
          ToolArgumentsError: if they do not fit; it names the place.

        """
        value = self._convert(arguments)
        return {name: getattr(value, name) for name in value.__struct_fields__}

    def _convert(self, arguments: Mapping[str, object]) -> msgspec.Struct:
        # Through JSON: the values are fresh and mutable, and it is the same strict
        # reading that arguments get on their way into another process.
        try:
            return msgspec.json.decode(
                msgspec.json.encode(freeze(arguments)), type=self._type
            )
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as exc:
            text = str(exc)
            if len(text) > _EXCERPT:
                text = f"{text[: _EXCERPT // 2]} ... {text[-_EXCERPT // 2 :]}"
            raise ToolArgumentsError(f"{text}; {self._expected()}") from None

    def _expected(self) -> str:
        names = cast("Mapping[str, object]", self.schema["properties"])
        required = cast("tuple[str, ...]", self.schema.get("required", ()))
        words = [n if n in required else f"{n} (optional)" for n in names]
        return f"expected: {', '.join(words) if words else 'no arguments'}"


def _read_hints(fn: Function) -> dict[str, object]:
    target = fn
    if not (inspect.isfunction(fn) or inspect.ismethod(fn)):
        target = type(fn).__call__
    try:
        return get_type_hints(target, include_extras=True)
    except NameError as exc:
        raise TypeError(
            f"{_name(fn)}: an annotation cannot be resolved ({exc}); it must name "
            "something that its module has at run time"
        ) from exc


def _check_kind(fn: Function, parameter: inspect.Parameter) -> None:
    if parameter.kind not in {
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    }:
        raise TypeError(
            f"{_name(fn)}: {parameter} has no name that a model could use; a tool "
            "takes plain named parameters"
        )


def _name(fn: Function) -> str:
    return getattr(fn, "__qualname__", type(fn).__qualname__)


def _copier(value: object) -> Callable[[], object]:
    """Each call gets a default of its own: a list in a signature is shared."""
    return lambda: copy.deepcopy(value)


def _build_schema(
    fn: Function,
    type_: type[msgspec.Struct],
    remarks: Mapping[str, str],
    defaults: Mapping[str, object],
) -> JsonObject:
    try:
        (root,), components = cast(
            "tuple[tuple[_Schema], dict[str, _Schema]]",
            msgspec.json.schema_components([type_], ref_template=_REF + "{name}"),
        )
    except TypeError as exc:
        raise TypeError(
            f"{_name(fn)}: no JSON schema for its arguments: {exc}"
        ) from exc
    recursive = {n for n in components if _reaches(n, n, components, set())}
    schema = cast("_Schema", _inline(root, components, recursive))
    schema.pop("title", None)
    properties = cast("dict[str, _Schema]", schema["properties"])
    for name, entry in properties.items():
        if name in defaults:
            entry["default"] = _to_json(fn, name, defaults[name])
        if name in remarks:
            entry["description"] = remarks[name]
    if recursive:
        schema["$defs"] = {
            n: _inline(components[n], components, recursive) for n in recursive
        }
    return cast("JsonObject", freeze(schema))


def _to_json(fn: Function, name: str, value: object) -> JsonValue:
    try:
        return freeze(msgspec.json.decode(msgspec.json.encode(value)))
    except TypeError as exc:
        raise TypeError(f"{_name(fn)}: the default of {name!r} is no JSON") from exc


def _inline(
    node: object, components: Mapping[str, _Schema], recursive: set[str]
) -> object:
    """Copy a schema with what its references name in their place."""
    if isinstance(node, list | tuple):
        items = cast("list[object]", node)
        return [_inline(item, components, recursive) for item in items]
    if not isinstance(node, dict):
        return node
    table = cast("_Schema", node)
    target = _target(table)
    if target is not None and target not in recursive:
        beside = {key: value for key, value in table.items() if key != "$ref"}
        return _inline({**components[target], **beside}, components, recursive)
    return {
        key: _inline(value, components, recursive)
        for key, value in table.items()
        # An empty list says nothing, and older drafts of the standard forbid it.
        if key != "required" or value != []
    }


def _target(table: _Schema) -> str | None:
    reference = table.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REF):
        return reference.removeprefix(_REF)
    return None


def _reaches(
    start: str, goal: str, components: Mapping[str, _Schema], seen: set[str]
) -> bool:
    """Whether one component refers to another, directly or not."""
    todo: list[object] = [components[start]]
    while todo:
        node = todo.pop()
        if isinstance(node, list | tuple):
            todo += cast("list[object]", node)
        elif isinstance(node, dict):
            table = cast("_Schema", node)
            target = _target(table)
            if target == goal:
                return True
            if target is not None and target not in seen:
                seen.add(target)
                todo.append(components[target])
            todo += table.values()
    return False


class AsyncFunction(Protocol):
    """Any async function, called by name."""

    async def __call__(self, **values: object) -> object:
        """Do its work; whether it waits is its own affair."""
        ...


def is_async(fn: Function) -> TypeGuard[AsyncFunction]:
    """Whether calling a function makes a coroutine."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  # an object with an async call
    )
