"""Lookup by name: an agent's own entries first, then the kernel's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import agentkernel as ak
from agentkernel.testing import ScriptedModel
from tests.race.parts import Probe


@pytest.mark.clause("L1c")
def test_an_own_entry_is_found_in_front_of_the_parents() -> None:
    """Taking it back shows the parent's again, and a second time changes nothing."""
    parent = ak.ModelRegistry()
    child = ak.ModelRegistry(parent)
    general, own = ScriptedModel(), ScriptedModel()
    parent.register("m", general)
    assert child.get("m") is general
    unregister = child.register("m", own)
    assert child.get("m") is own
    assert parent.get("m") is general
    unregister()
    unregister()
    assert child.get("m") is general
    assert "m" in child
    assert "n" not in child


@pytest.mark.clause("L1c")
def test_a_name_is_registered_once_at_each_level() -> None:
    """Two owners of one name would take each other's entry away."""
    registry = ak.ToolRegistry()
    unregister = registry.add(Probe("t"))
    with pytest.raises(ValueError, match="'t'"):
        registry.add(Probe("t"))
    unregister()
    registry.add(Probe("t"))
    unregister()
    assert "t" in registry


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    """A typo is seen at a glance."""
    parent = ak.ToolRegistry()
    parent.add(Probe("read"))
    child = ak.ToolRegistry(parent)
    child.add(Probe("write"))
    with pytest.raises(ak.UnknownNameError, match="read, write") as caught:
        child.get("raed")
    assert (caught.value.kind, caught.value.name) == ("tool", "raed")


@pytest.mark.clause("L1c")
def test_a_child_copies_what_its_parent_finds_and_keeps_its_own() -> None:
    """Later changes of the parent do not reach it; the kernel's do."""
    kernel = ak.ToolRegistry()
    parent, child = ak.ToolRegistry(kernel), ak.ToolRegistry(kernel)
    mine, theirs, shared = Probe("t"), Probe("t"), Probe("k")
    kernel.add(shared)
    remove = parent.add(theirs)
    parent.add(Probe("u"))
    child.add(mine)
    child.adopt(parent)
    remove()
    parent.add(Probe("later"))
    kernel.add(Probe("new"))
    assert child.get("t") is mine
    assert set(child.effective()) == {"t", "u", "k", "new"}


@pytest.mark.clause("L1c", "T7a")
def test_guards_are_asked_from_the_top_and_adopted_once() -> None:
    """A child is bound by what bound its parent, and the kernel's are not doubled."""
    kernel = ak.ToolRegistry()
    parent, child = ak.ToolRegistry(kernel), ak.ToolRegistry(kernel)

    def make(name: str) -> Callable[[ak.PreExecute], str | None]:
        def guard(_payload: ak.PreExecute) -> str | None:
            return name

        return guard

    first, second, third = make("kernel"), make("parent"), make("child")
    kernel.guard(first)
    parent.guard(second)
    remove = child.guard(third)
    child.adopt(parent)
    assert list(child.guards) == [first, second, third]
    remove()
    assert list(child.guards) == [first, second]
    assert list(parent.guards) == [first, second]
