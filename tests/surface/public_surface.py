"""Writes down what users can call: every public name, member and signature.

`python -m tests.surface.public_surface` writes `public-surface.txt`. A change of the
surface then shows as a change of that file, next to the change that made it.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import cast

import msgspec

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "tests" / "surface" / "public-surface.txt"
# Those that the list of public names in the documentation has.
REFERENCE = runpy.run_path(str(ROOT / "scripts" / "reference"))
MODULES = cast("tuple[str, ...]", REFERENCE["MODULES"])

# Dunder methods that are part of how an object is used.
USED = {
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
}


def declared(module: ModuleType) -> list[str]:
    """What a module says is public: `__all__`, else each `import x as x`."""
    names: list[str] | None = getattr(module, "__all__", None)
    if names is None:
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
        aliases = [alias for node in imports for alias in node.names]
        names = [alias.name for alias in aliases if alias.name == alias.asname]
    return sorted(names)


def annotation(value: object) -> str:
    """An annotation as it stands in the source."""
    if value is inspect.Parameter.empty:
        return ""
    return value if isinstance(value, str) else inspect.formatannotation(value)


def default(value: object) -> str:
    """A default in a form that is the same in every run."""
    if isinstance(value, enum.Enum):
        return str(value)
    if inspect.isroutine(value) or inspect.isclass(value):
        return str(getattr(value, "__qualname__", value))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def signature(fn: object, *, bound: bool = False) -> str:
    """The parameters of a function, less the first if it is a method."""
    try:
        found = inspect.signature(cast("type", fn))
    except (TypeError, ValueError):
        return "(...)"
    parts: list[str] = []
    previous: object = None
    parameters = [*found.parameters.values()][int(bound) :]
    for parameter in parameters:
        kind = parameter.kind
        if previous == inspect.Parameter.POSITIONAL_ONLY != kind:
            parts.append("/")
        before = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY}
        if kind == inspect.Parameter.KEYWORD_ONLY and previous not in before:
            parts.append("*")
        previous = kind
        stars: dict[object, str] = {
            inspect.Parameter.VAR_POSITIONAL: "*",
            inspect.Parameter.VAR_KEYWORD: "**",
        }
        text = stars.get(kind, "") + parameter.name
        if typed := annotation(parameter.annotation):
            text += f": {typed}"
        if parameter.default is not inspect.Parameter.empty:
            text += f" = {default(parameter.default)}"
        parts.append(text)
    if previous == inspect.Parameter.POSITIONAL_ONLY:
        parts.append("/")
    returned = annotation(found.return_annotation)
    return f"({', '.join(parts)})" + (f" -> {returned}" if returned else "")


def fields(cls: type[msgspec.Struct]) -> str:
    """The fields of a value, as they stand in the source."""
    typed: dict[str, object] = {}
    for owner in reversed(cls.__mro__):
        typed |= vars(owner).get("__annotations__", {})
    names = cls.__struct_fields__
    defaults = cls.__struct_defaults__
    missing = (msgspec.NODEFAULT,) * (len(names) - len(defaults))
    parts: list[str] = []
    for name, value in zip(names, (*missing, *defaults), strict=True):
        given = "" if value is msgspec.NODEFAULT else f" = {default(value)}"
        parts.append(f"{name}: {annotation(typed[name])}{given}")
    return f"({', '.join(parts)})"


def attributes(init: object) -> Iterator[str]:
    """The public attributes that a method sets, with the types it gives them."""
    source = inspect.getsource(cast("type", init))
    pattern = r"^ +self\.([a-z]\w*)(?:: ([^=]+?))? = (?!self\.)"
    for name, typed in re.findall(pattern, source, re.MULTILINE):
        yield f".{name}: {typed}" if typed else f".{name}"


def members(cls: type) -> Iterator[str]:
    """The public members of a class, its own and those of its private bases."""
    seen: set[str] = set()
    for owner in cls.__mro__:
        if not owner.__module__.startswith("agentkernel"):
            continue
        for name, value in vars(owner).items():
            if name == "__init__" and inspect.isfunction(value):
                yield from attributes(value)
            if name in seen or (name.startswith("_") and name not in USED):
                continue
            seen.add(name)
            if isinstance(value, property):
                assert value.fget is not None
                yield f"{name}{signature(value.fget, bound=True).replace('()', '', 1)}"
            elif isinstance(value, classmethod | staticmethod):
                word = type(cast("object", value)).__name__
                yield f"{word} {name}{signature(getattr(cls, name))}"
            elif inspect.isfunction(value):
                word = "async " if inspect.iscoroutinefunction(value) else ""
                yield f"{word}{name}{signature(value, bound=True)}"


def described(name: str, value: object) -> Iterator[str]:
    """The lines about one name."""
    if inspect.isclass(value):
        if issubclass(value, enum.Enum):
            choices = ", ".join(member.name for member in value)
            yield f"enum {name}: {choices}"
        elif getattr(value, "_is_protocol", False):
            yield f"protocol {name}"
        elif issubclass(value, msgspec.Struct):
            yield f"class {name}{fields(value)}"
        elif "__init__" in vars(value):
            yield f"class {name}{signature(value).removesuffix(' -> None')}"
        else:
            bases = ", ".join(base.__name__ for base in value.__bases__)
            yield f"class {name} of {bases}"
        yield from (f"    {line}" for line in sorted(members(value)))
    elif inspect.isroutine(value):
        word = "async " if inspect.iscoroutinefunction(value) else ""
        yield f"{word}{name}{signature(value)}"
    elif isinstance(value, int | str | float | tuple):
        yield f"{name} = {default(cast('object', value))}"
    else:
        yield name


def surface() -> str:
    """The whole page."""
    lines: list[str] = []
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        lines += ["", f"# {module_name}", ""]
        for name in declared(module):
            lines += described(name, getattr(module, name))
    return "\n".join(lines[1:]) + "\n"


if __name__ == "__main__":
    SNAPSHOT.write_text(surface(), "utf-8")
