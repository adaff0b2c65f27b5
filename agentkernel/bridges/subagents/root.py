"""The root of a tool's schema, as providers take it: an object, and nothing else. Pure.

A schema whose root is a reference gets what that names in its place. One whose root is
a choice, or no object, becomes the only member, `value`, of an object; references move
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias, cast

from agentkernel import JsonObject, JsonValue

__all__ = ["as_parameters"]

_Schema: TypeAlias = "dict[str, JsonValue]"
_VALUE: Final = "#/properties/value"
# Where schemas are kept that others refer to.
_SHELVES: Final = ("$defs", "definitions")
# With one of these at its root a schema is refused, by one provider or another.
_REFUSED: Final = frozenset(
    ["$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "enum", "if"]
)
# What may stand beside a reference without adding a demand of its own.
_REMARKS: Final = frozenset(
    ["$schema", "$comment", "title", "description", "default", "examples", *_SHELVES]
)
_BY_NAME: Final = frozenset(
    ["properties", "patternProperties", "dependentSchemas", *_SHELVES]
)
_LITERAL: Final = frozenset(["enum", "const", "default", "examples"])


def as_parameters(schema: JsonObject) -> tuple[JsonObject, bool]:
    """Make the schema of a tool's arguments out of that of a value.

    Returns:
      The schema, and whether the value is its member `value`.

    """
    opened = _opened(schema)
    if opened.get("type") == "object" and _REFUSED.isdisjoint(opened):
        return opened, False
    if "$id" in schema:
        # Its references are relative to itself, wherever it stands.
        return _around(dict(schema), {}), True
    kept = {key: schema[key] for key in ("$schema", *_SHELVES) if key in schema}
    inner = {key: part for key, part in schema.items() if key not in kept}
    outer = cast("_Schema", _moved(kept))
    return _around(cast("_Schema", _moved(inner)), outer), True


def _around(inner: _Schema, outer: _Schema) -> JsonObject:
    return {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
        **outer,
    }


def _opened(schema: JsonObject) -> JsonObject:
    """Put what the root refers to in the reference's place, if that says the same."""
    root, seen = schema, set[str]()
    while isinstance(target := root.get("$ref"), str) and target not in seen:
        seen.add(target)
        beside = {key: part for key, part in root.items() if key != "$ref"}
        found = _find(schema, target)
        if found is None or "$id" in found or not _REMARKS.issuperset(beside):
            return schema
        root = {**found, **beside}
    return _without_unused(root)


def _find(schema: JsonObject, target: str) -> JsonObject | None:
    """Look a definition up; None if it is not one that the schema keeps for that."""
    shelf, _, name = target.removeprefix("#/").partition("/")
    if not target.startswith("#/") or shelf not in _SHELVES or "/" in name:
        return None
    kept = schema.get(shelf)
    found = (
        kept.get(name.replace("~1", "/").replace("~0", "~"))
        if isinstance(kept, Mapping)
        else None
    )
    return found if isinstance(found, Mapping) else None


def _without_unused(root: JsonObject) -> JsonObject:
    """Leave definitions out that nothing refers to any more: they are in the root."""
    rest = {key: part for key, part in root.items() if key not in _SHELVES}
    return root if _refers(rest) else rest


def _refers(node: JsonValue) -> bool:
    if isinstance(node, Mapping):
        if "$ref" in node or "$dynamicRef" in node:
            return True
        return any(_refers(part) for part in node.values())
    return isinstance(node, list | tuple) and any(_refers(part) for part in node)


def _moved(node: JsonValue) -> JsonValue:
    """Copy schemas that now stand one level deeper than their references say."""
    if isinstance(node, list | tuple):
        return [_moved(part) for part in node]
    if not isinstance(node, Mapping):
        return node
    copy: _Schema = {}
    for key, part in node.items():
        if key == "$ref" and isinstance(part, str):
            copy[key] = _moved_target(part)
        elif key in _BY_NAME and isinstance(part, Mapping):
            copy[key] = {name: _moved(inner) for name, inner in part.items()}
        else:
            copy[key] = part if key in _LITERAL else _moved(part)
    return copy


def _moved_target(target: str) -> str:
    shelved = any(target.startswith(f"#/{shelf}/") for shelf in _SHELVES)
    if shelved or not (target == "#" or target.startswith("#/")):
        return target
    return _VALUE + target[1:]
