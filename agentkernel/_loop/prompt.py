"""The system prompt: named sections with variables, put together for each step."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeAlias, final

import msgspec

from .._errors import WrongThreadError
from .._json import JsonObject, clean_text, freeze
from .._util import thread_id
from .payload import Assemble

__all__ = ["Prompt", "Section", "join_sections"]

Text: TypeAlias = str | Callable[[], str]

_VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_.-]*)\s*\}\}")


class Section(msgspec.Struct, frozen=True):
    """A named part of the system prompt; the lower `order` comes first."""

    name: str
    text: str
    order: int = 0


@final
class Prompt:
    """Sections and variables of the kernel or of one agent.

    An agent's section replaces the kernel's of the same name; likewise variables.
    `{{ name }}` in a section becomes the variable's value; a name that is not set
    stays as it stands.
    """

    def __init__(self, parent: Prompt | None = None) -> None:
        self._parent = parent
        self._sections: dict[str, tuple[Text, int]] = {}
        self._variables: dict[str, str] = {}
        self._thread = thread_id()

    def section(self, name: str, text: Text, *, order: int = 0) -> Callable[[], None]:
        """Set a section; a function is called for each assembly.

        Returns:
          A function that removes it; harmless when called again.

        """
        self._check_thread("section")
        entry = (text, order)
        self._sections[name] = entry

        def unregister() -> None:
            if self._sections.get(name) is entry:
                del self._sections[name]

        return unregister

    def variable(self, name: str, value: str) -> None:
        """Set a variable."""
        self._check_thread("variable")
        self._variables[name] = value

    def _check_thread(self, verb: str) -> None:
        if thread_id() != self._thread:
            raise WrongThreadError(f"prompt.{verb}")

    def sections(self) -> tuple[Section, ...]:
        """List the effective sections in their order."""
        effective = self.effective()
        if not effective:
            return ()
        made = (
            Section(name, text() if callable(text) else text, order)
            for name, (text, order) in effective.items()
        )
        return tuple(sorted(made, key=lambda section: section.order))

    def variables(self) -> dict[str, str]:
        """List the effective variables."""
        above = self._parent.variables() if self._parent is not None else {}
        return {**above, **self._variables}

    def adopt(self, other: Prompt) -> None:
        """Copy what another prompt holds, as a child does of its parent."""
        self._sections = {**other.effective(), **self._sections}
        self._variables = {**other.variables(), **self._variables}

    def effective(self) -> dict[str, tuple[Text, int]]:
        """List texts and orders by name, the parent's among them."""
        found = {} if self._parent is None else self._parent.effective()
        found.update(self._sections)
        return found


async def join_sections(payload: Assemble) -> str:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Fill in variables and join sections with a blank line: the default assembly.

    Not a checkpoint.

    Cancellation:
      Cannot be cancelled: it never waits.

    """
    values = payload.variables

    def fill(match: re.Match[str]) -> str:
        value = values.get(match.group(1))
        return match.group(0) if value is None else str(value)

    texts = (_VARIABLE.sub(fill, section.text) for section in payload.sections)
    return clean_text("\n\n".join(text for text in texts if text))  # noqa: ASYNC910  # waits only if it must


def frozen_variables(prompt: Prompt) -> JsonObject:
    """List a prompt's variables as a payload carries them."""
    frozen = freeze(prompt.variables())
    assert isinstance(frozen, dict)
    return frozen
