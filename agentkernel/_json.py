"""JSON values: their type, how they are frozen, and the one rule for text.

Everything that a durable event holds is one of these values. `freeze` detaches a
value from its caller and makes it immutable; `clean_text` is the rule for strings
that no encoder accepts: surrogate pairs are joined, and half a pair on its own
becomes U+FFFD. The rule is applied where text enters the kernel, so that memory,
log, observers and requests always hold the same string.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeAlias, cast

__all__ = ["EMPTY", "FrozenDict", "JsonObject", "JsonValue", "clean_text", "freeze"]


class FrozenDict(dict[str, "JsonValue"]):
    """A JSON object that cannot be changed; equal to a dict of the same items."""

    __slots__ = ()

    def __setitem__(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this JSON object is part of a frozen value; copy it first")

    def __delitem__(self, *_args: object, **_kwargs: object) -> NoReturn:
        self.__setitem__()

    def __ior__(self, *_args: object, **_kwargs: object) -> NoReturn:  # type: ignore[misc]  # every mutator is refused
        self.__setitem__()

    def clear(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse, as every other way to change the object does."""
        self.__setitem__()

    def pop(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse."""
        self.__setitem__()

    def popitem(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse."""
        self.__setitem__()

    def setdefault(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse."""
        self.__setitem__()

    def update(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse."""
        self.__setitem__()

    def __hash__(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # a frozen value may be a key
        """Hash by the names only: equal objects have equal names."""
        return hash(frozenset(self))


EMPTY = FrozenDict()

if TYPE_CHECKING:
    JsonValue: TypeAlias = (
        bool
        | int
        | float
        | str
        | Sequence["JsonValue"]
        | Mapping[str, "JsonValue"]
        | None
    )
    JsonObject: TypeAlias = Mapping[str, JsonValue]
else:
    # What a decoder makes of them: it knows no recursive types, and has to build
    # frozen values.
    JsonValue = object
    JsonObject = FrozenDict


def freeze(value: object, where: str = "$") -> JsonValue:
    """Copy a JSON value into one that cannot be changed.

    Raises:
      TypeError: if something in it is not JSON: the message names the place.

    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{where}: {value} is not a JSON number")
        return value
    if isinstance(value, Mapping):
        return freeze_object(cast("Mapping[object, object]", value), where)
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        return tuple(freeze(v, f"{where}[{i}]") for i, v in enumerate(items))
    raise TypeError(f"{where}: {type(value).__name__} is not a JSON value")


def freeze_object(
    value: Mapping[str, object] | Mapping[object, object], where: str = "$"
) -> FrozenDict:
    """Copy a JSON object into one that cannot be changed; see `freeze`."""
    for key in value:
        if not isinstance(key, str):
            raise TypeError(f"{where}: the key {key!r} is not a string")
    return FrozenDict(
        {clean_text(str(k)): freeze(v, f"{where}.{k}") for k, v in value.items()}
    )


def clean_text(text: str) -> str:
    """Join surrogate pairs and replace what is left of them by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
