"""Small things that several modules need and that belong to none of them."""

from __future__ import annotations

import inspect
import itertools
import secrets
from threading import get_ident as thread_id
from time import time as wall_clock

import msgspec

__all__ = ["fix_module_metadata", "new_id", "thread_id", "wall_clock"]


def new_id() -> str:
    """Make a random id: 20 hexadecimal characters, 80 bits."""
    return secrets.token_hex(10)


def fix_module_metadata(module_name: str, namespace: dict[str, object]) -> None:
    """Make public objects say that they live where users import them from.

    The annotations of value classes become types first: their names would be looked
    up in the module that the class says it is from.
    """
    seen: set[int] = set()
    for name, value in namespace.items():
        if not name.startswith("_"):
            _resolve_annotations(value, namespace)
            _fix_one(module_name, name, value, seen)


def _resolve_annotations(value: object, namespace: dict[str, object]) -> None:
    """Turn the annotations of a value class into types, names of the facade included."""
    if isinstance(value, type) and issubclass(value, msgspec.Struct):
        value.__annotations__ = inspect.get_annotations(
            value, eval_str=True, locals=namespace
        )


def _fix_one(
    module_name: str, name: str, value: object, seen: set[int], depth: int = 0
) -> None:
    if id(value) in seen or depth > 2:
        return
    seen.add(id(value))
    home = getattr(value, "__module__", None)
    if not isinstance(home, str) or not home.startswith("agentkernel."):
        return
    try:
        value.__module__ = module_name
    except (AttributeError, TypeError):
        return
    if isinstance(value, type):
        for key, member in itertools.islice(vars(value).items(), 200):
            _fix_one(module_name, f"{name}.{key}", member, seen, depth + 1)
