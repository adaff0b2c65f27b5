"""The shared Hypothesis vocabulary: every value that a log may hold.

A new fact joins `facts()` by itself; a new field of an unusual kind needs a strategy
in `_for_type`, which fails loudly for what it does not know.
"""

from __future__ import annotations

import types
import typing
from typing import Literal

import msgspec
from hypothesis import strategies as st

import agentkernel as ak
from agentkernel._json import FrozenDict
from agentkernel._session.events import FACTS, FORMAT

__all__ = ["events", "facts", "json_objects", "json_values", "texts"]

# What encoders get wrong: line separators, controls, NUL, an emoji, our own marker.
AWKWARD = [
    "",
    "\u2028",
    "\u2029",
    "\x85",
    "\x00",
    "a\x00b",
    "\N{GRINNING FACE}",
    "\uffff",
    '"\\',
    "$blob",
    "$$blob",
    '{"$blob":1}',
    "\r\n",
]


def texts() -> st.SearchStrategy[str]:
    """Text as the kernel holds it: without halves of surrogate pairs."""
    return st.sampled_from(AWKWARD) | st.text(max_size=20)


def floats() -> st.SearchStrategy[float]:
    return st.floats(allow_nan=False, allow_infinity=False)


def json_values() -> st.SearchStrategy[ak.JsonValue]:
    """Frozen JSON, with big integers and names that look like ours."""
    leaves = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.sampled_from([2**63, -(2**64), 10**40])
        | floats()
        | texts()
    )
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(texts(), inner, max_size=3).map(FrozenDict)
        ),
        max_leaves=8,
    )


def json_objects() -> st.SearchStrategy[FrozenDict]:
    return st.dictionaries(texts(), json_values(), max_size=3).map(FrozenDict)


def blobs() -> st.SearchStrategy[ak.Blob]:
    return st.binary(max_size=40).map(ak.Blob)


def facts() -> st.SearchStrategy[ak.Fact]:
    """Every fact that a log may hold, with every field it may have."""
    every = st.one_of([_fact(cls) for cls in FACTS.values()])
    return every.map(lambda fact: typing.cast("ak.Fact", fact)).filter(_allowed)


def events() -> st.SearchStrategy[ak.SessionEvent]:
    return st.builds(
        ak.SessionEvent,
        seq=st.integers(1, 2**53),
        time=floats(),
        data=facts(),
        ignorable=st.booleans(),
    )


def _fact(cls: type[ak.Fact]) -> st.SearchStrategy[object]:
    if cls is ak.SessionHeader:
        return st.builds(
            cls,
            format=st.just(FORMAT),
            options=json_objects(),
            lineage=_for_struct(ak.Lineage),
        )
    return _for_struct(cls)


def _allowed(fact: ak.Fact) -> bool:
    """Keep an aborted ending as coarse as it has to be."""
    ending = getattr(fact, "reason", None) or getattr(fact, "ending", None)
    if isinstance(ending, ak.Ending) and ending.kind == "aborted":
        return ending == ak.Ending("aborted")
    return True


def _for_struct(cls: type[msgspec.Struct]) -> st.SearchStrategy[object]:
    fields = {f.name: _for_type(f.type) for f in msgspec.structs.fields(cls)}
    return st.builds(cls, **fields)


def _for_type(kind: object) -> st.SearchStrategy[object]:
    if kind in _LEAVES:
        return _LEAVES[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return st.one_of([_for_type(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(_for_type(arguments[0]), max_size=3).map(tuple)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _for_struct(kind)
    raise NotImplementedError(f"no strategy for {kind}")


# Annotations are as the codec has resolved them: `object` is any JSON value.
_LEAVES: dict[object, st.SearchStrategy[object]] = {
    type(None): st.none(),
    bool: st.booleans(),
    int: st.integers(0, 2**53),
    float: floats(),
    str: texts(),
    object: json_values(),
    FrozenDict: json_objects(),
    ak.Blob: blobs(),
}
