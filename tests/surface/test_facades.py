"""The public surface: what a facade shows, and where its names say they live."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pydoc
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "agentkernel"


def facades() -> list[str]:
    """The package, its ports, and each public package directly inside it."""
    folders = [init.parent.name for init in PACKAGE.glob("[!_]*/__init__.py")]
    names = ["agentkernel", *(f"agentkernel.{name}" for name in ["abc", *folders])]
    return [
        name for name in sorted(names) if importlib.util.find_spec(name) is not None
    ]


def declared(module: ModuleType) -> set[str]:
    """What the module says is public: `__all__`, else each `import x as x`."""
    names: list[str] | None = getattr(module, "__all__", None)
    if names is not None:
        assert len(names) == len(set(names)), "a name is in __all__ twice"
        return set(names)
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    return {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }


def visible(module: ModuleType) -> set[str]:
    """What a user finds on the module, imports of whole modules included."""
    names = {name for name in dir(module) if not name.startswith("_")}
    return {
        name
        for name in names - {"annotations", "TYPE_CHECKING"}
        if not is_submodule(module, name)
    }


def is_submodule(module: ModuleType, name: str) -> bool:
    value = getattr(module, name)
    return isinstance(value, ModuleType) and value.__name__.startswith("agentkernel.")


# `agentkernel.abc` is no facade: it defines what it declares, and imports the rest.
@pytest.mark.parametrize("name", sorted({*facades()} - {"agentkernel.abc"}))
def test_facade_shows_exactly_what_it_declares(name: str) -> None:
    """A name that leaks from a facade becomes somebody's import."""
    module = importlib.import_module(name)
    public = declared(module)
    assert {lost for lost in public if not hasattr(module, lost)} == set()
    assert visible(module) == public


@pytest.mark.parametrize("name", facades())
def test_public_names_live_where_users_import_them_from(name: str) -> None:
    """Tracebacks, pickles and documentation show `__module__`."""
    module = importlib.import_module(name)
    private = {
        public: where
        for public in declared(module)
        if isinstance(
            where := getattr(getattr(module, public), "__module__", None), str
        )
        and re.match(r"agentkernel\b.*\._", where)
    }
    assert not private


def test_every_public_name_is_in_the_documentation() -> None:
    guides = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if path.name != "contract.md" and path.parent.name != "decisions"
    ]
    if not guides:
        pytest.skip("docs/ holds no guide")
    text = "\n".join(path.read_text("utf-8") for path in [ROOT / "README.md", *guides])
    words = set(re.findall(r"\w+", text))
    missing = {
        f"{facade}.{name}"
        for facade in facades()
        if not facade.startswith("agentkernel.bridges")
        for name in declared(importlib.import_module(facade))
        if name not in words
    }
    assert not missing, sorted(missing)


def test_help_shows_every_public_name() -> None:
    """A class whose annotations nobody can resolve cannot be looked up by a user."""
    module = importlib.import_module("agentkernel")
    for name in sorted(declared(module)):
        assert pydoc.render_doc(getattr(module, name)), name


def test_every_public_value_class_can_be_taken_apart() -> None:
    """Its fields carry types, not names that only its own module knows."""
    module = importlib.import_module("agentkernel")
    for name in sorted(declared(module)):
        value = getattr(module, name)
        if isinstance(value, type) and issubclass(value, msgspec.Struct):
            assert isinstance(msgspec.structs.fields(value), tuple)
