"""The error tree that `agentkernel/_errors.py` draws is the one that it defines."""

from __future__ import annotations

import re

import agentkernel._errors as errors

# A line of the drawing: bars or spaces, a class name, and perhaps a remark.
BRANCH = re.compile(r"^(?P<bars>[\s│├└─|+`*-]*)(?P<name>[A-Z]\w*)(?:\s|\(|:|$)")


def drawn_tree() -> dict[str, str | None]:
    """Read the drawing as child -> parent; it ends at the first blank line."""
    lines = iter((errors.__doc__ or "").splitlines())
    tree: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in lines:
        match = BRANCH.match(line)
        if not path and (match is None or match["name"] != "AgentKernelError"):
            continue
        if match is None:
            break
        depth, name = len(match["bars"]), match["name"]
        while path and path[-1][0] >= depth:
            path.pop()
        assert name not in tree, f"{name} is drawn twice"
        tree[name] = path[-1][1] if path else None
        path.append((depth, name))
    return tree


def defined_tree() -> dict[str, str | None]:
    """Every exception class of the module, with the first base of its own kind."""
    own = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type)
        and issubclass(value, BaseException)
        and value.__module__.startswith("agentkernel")
    }
    return {
        name: next(
            (base.__name__ for base in value.__bases__ if base.__name__ in own), None
        )
        for name, value in own.items()
    }


def test_drawn_tree_equals_the_defined_one() -> None:
    assert drawn_tree() == defined_tree()


def test_every_error_says_when_it_is_raised() -> None:
    undocumented = [
        name for name in defined_tree() if not getattr(errors, name).__doc__
    ]
    assert not undocumented
