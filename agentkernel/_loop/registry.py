"""What an agent can look up by name: its own entries first, then the kernel's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, final

from .._errors import UnknownNameError, WrongThreadError
from .._messages import ToolSpec
from .._util import thread_id
from ..abc import Model, Tool
from .payload import PreExecute

__all__ = ["Guard", "ModelRegistry", "Registry", "ToolRegistry", "check_spec"]

T = TypeVar("T")

Guard = Callable[[PreExecute], str | None]


class Registry(Generic[T]):
    """Entries by name, over a parent that is asked for what is not here.

    A change takes effect at the next step. What changes it belongs to the kernel's
    thread, and raises `WrongThreadError` in another.
    """

    kind = "entry"

    def __init__(self, parent: Registry[T] | None = None) -> None:
        self._parent = parent
        self._entries: dict[str, T] = {}
        # What a lookup may find at all; None is everything.
        self._only: frozenset[str] | None = None
        self._thread = thread_id()

    def register(self, name: str, entry: T) -> Callable[[], None]:
        """Add an entry, in front of one of that name in the parent.

        Returns:
          A function that removes it; harmless when called again.

        Raises:
          ValueError: if this registry has an entry of that name.

        """
        self._check_thread("register")
        if name in self._entries:
            raise ValueError(f"a {self.kind} named {name!r} is registered already")
        self._entries[name] = entry
        widened = self._only is not None and name not in self._only
        if self._only is not None:
            self._only |= {name}

        def unregister() -> None:
            if self._entries.get(name) is entry:
                del self._entries[name]
                if widened and self._only is not None:
                    self._only -= {name}

        return unregister

    def get(self, name: str) -> T:
        """Look a name up.

        Raises:
          UnknownNameError: if neither this registry nor its parent knows it.

        """
        if self._only is None or name in self._only:
            if name in self._entries:
                return self._entries[name]
            if self._parent is not None and name in self._parent:
                return self._parent.get(name)
        raise UnknownNameError(self.kind, name, tuple(self.effective()))

    def effective(self) -> dict[str, T]:
        """List what a lookup would find, as a new dictionary."""
        found = {} if self._parent is None else self._parent.effective()
        found.update(self._entries)
        if self._only is None:
            return found
        return {name: entry for name, entry in found.items() if name in self._only}

    def keep(self, names: Iterable[str]) -> None:
        """Hide every entry but these from lookups, the parent's entries included.

        What is registered here later is found again. A registry that adopts this one
        is bound in the same way. Not a checkpoint.
        """
        self._check_thread("keep")
        kept = frozenset(names)
        self._only = kept if self._only is None else self._only & kept

    def _check_thread(self, verb: str) -> None:
        """Refuse a verb that is called outside the thread of its owner."""
        if thread_id() != self._thread:
            raise WrongThreadError(f"{self.kind}s.{verb}")

    def adopt(self, other: Registry[T]) -> None:
        """Copy what another registry finds, as a child does of its parent."""
        if other._only is not None:
            self._only = other._only | frozenset(self._entries)
        self._entries = {**other.effective(), **self._entries}

    def __contains__(self, name: str) -> bool:
        if self._only is not None and name not in self._only:
            return False
        return name in self._entries or (
            self._parent is not None and name in self._parent
        )


@final
class ModelRegistry(Registry[Model]):
    """Models by the name that agents are opened with."""

    kind = "model"


@final
class ToolRegistry(Registry[Tool]):
    """Tools by the name that the model calls, and the guards before their bodies."""

    kind = "tool"

    def __init__(self, parent: ToolRegistry | None = None) -> None:
        super().__init__(parent)
        self._above = parent
        self._guards: tuple[Guard, ...] = ()

    def add(self, tool: Tool) -> Callable[[], None]:
        """Register a tool under its own name.

        Raises:
          ValueError: if this registry has a tool of that name.
          TypeError: if its spec is none.

        """
        check_spec(tool.spec)
        return self.register(tool.spec.name, tool)

    def adopt(self, other: Registry[Tool]) -> None:
        """Copy what another registry finds, and be bound by its guards as well."""
        super().adopt(other)
        if isinstance(other, ToolRegistry):
            # The kernel's guards are above this registry, as they are above that one.
            self._guards = (*other._guards, *self._guards)  # noqa: SLF001  # another of its own class

    def guard(self, fn: Guard) -> Callable[[], None]:
        """Add a last check before a body starts; a text it returns refuses the call.

        Guards run after approval, on the final arguments; they are plain functions.

        Returns:
          A function that removes the guard.

        """
        self._check_thread("guard")
        self._guards = (*self._guards, fn)

        def unregister() -> None:
            self._guards = tuple(g for g in self._guards if g is not fn)

        return unregister

    @property
    def guards(self) -> tuple[Guard, ...]:
        """Every guard that a call passes: the parent's first."""
        above = self._above.guards if self._above is not None else ()
        return above + self._guards


def check_spec(spec: object) -> None:
    """Refuse what is no spec of a tool, however it looks.

    Raises:
      TypeError: if it is not.

    """
    if not isinstance(spec, ToolSpec):
        raise TypeError(f"a tool's spec must be a ToolSpec, not {type(spec).__name__}")
