"""The schema of an answer: what a provider is shown of it, and whether a value fits.

An answer is described by a Python type, which msgspec checks, or by a JSON schema,
which the package `jsonschema-rs` checks (the extra `schema`). Either is read to its
end when it is handed in; afterwards the only error is that of an answer that does not
fit. Nothing is fetched: a reference that leaves the schema is an error. Pure.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Final, Protocol, TypeAlias, cast, final

import msgspec

from agentkernel import JsonObject, JsonValue, ToolArgumentsError, freeze

from .root import as_parameters

__all__ = ["AnswerSchema", "SchemaLike"]

SchemaLike: TypeAlias = "type | UnionType | JsonObject"

_INSTALL: Final = "install the extra: pip install 'trio-agentkernel[schema]'"
_EXCERPT: Final = 300
# So many reasons are told to a model at once.
_REASONS: Final = 3


class _Problem(Protocol):
    """Why a value does not fit; at hand-in the value is the schema itself."""

    message: str
    instance_path: Sequence[str | int]


class _Validator(Protocol):
    def iter_errors(self, instance: object, /) -> Iterator[_Problem]: ...


class _Library(Protocol):
    def validator_for(self, schema: object, *, offline: bool) -> _Validator: ...


@final
class AnswerSchema:
    """What a structured answer has to look like. Immutable.

    Attributes:
      schema: the JSON schema of the answer.
      parameters: a schema of an object, for a tool: that of the answer, or one with
        the answer as its only member. Providers take no other at the root.

    """

    def __init__(self, like: SchemaLike) -> None:
        """Read a type or a JSON schema.

        Raises:
          ValueError: if a JSON schema is not valid; it names the place.
          TypeError: if a type cannot be described.
          ImportError: if a JSON schema is given and the extra is not installed.

        """
        self._type: type[object] | UnionType | None = None
        self._validator: _Validator | None = None
        if isinstance(like, Mapping):
            schema: object = like
            self._validator = _validator_of(like)
        else:
            self._type = like
            schema = msgspec.json.schema(like)
        self.schema: JsonObject = cast("JsonObject", freeze(schema))
        parameters, self._wrapped = as_parameters(self.schema)
        self.parameters: JsonObject = cast("JsonObject", freeze(parameters))

    def of_arguments(self, arguments: JsonObject) -> JsonValue:
        """Check the arguments of the answering tool.

        Returns:
          The answer.

        Raises:
          ToolArgumentsError: if they do not fit; it names the place.

        """
        if not self._wrapped:
            return self.check(arguments)
        if "value" not in arguments:
            raise ToolArgumentsError("the answer lacks its member `value`")
        return self.check(arguments["value"])

    def check(self, value: JsonValue) -> JsonValue:
        """Check a value.

        Returns:
          The value, frozen, with the defaults of a type filled in.

        Raises:
          ToolArgumentsError: if it does not fit; it names the place.

        """
        try:
            if self._validator is None:
                made: object = msgspec.convert(value, self._type)
                return freeze(msgspec.to_builtins(made))
            _refuse(self._validator, value)
            return freeze(value)
        except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
            raise ToolArgumentsError(_excerpt(str(error))) from None

    def of_text(self, text: str) -> JsonValue:
        """Read an answer that was given as text, in a code fence or without.

        Raises:
          ToolArgumentsError: if it is no JSON, or does not fit.

        """
        fenced = re.search(r"```(?:json)?\s*\n(.*?)\n?```", text, re.DOTALL)
        try:
            value: JsonValue = msgspec.json.decode(fenced[1] if fenced else text)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ToolArgumentsError(f"the answer is no JSON: {error}") from None
        return self.check(value)


def _validator_of(schema: JsonObject) -> _Validator:
    """Compile a JSON schema: what is wrong with it is found here.

    Raises:
      ValueError: if it is not valid.
      ImportError: if the extra is not installed.

    """
    try:
        library = cast("_Library", importlib.import_module("jsonschema_rs"))
    except ImportError as error:
        raise ImportError(f"a JSON schema cannot be checked; {_INSTALL}") from error
    try:
        return library.validator_for(msgspec.to_builtins(schema), offline=True)
    except (TypeError, ValueError, RecursionError) as error:
        path = cast("Sequence[str | int]", getattr(error, "instance_path", ()))
        said = str(getattr(error, "message", error))
        raise ValueError(
            f"the schema is not valid: {_place(path)}: {_excerpt(said)}"
        ) from None


def _refuse(validator: _Validator, value: JsonValue) -> None:
    """Refuse a value that does not fit.

    Raises:
      ToolArgumentsError: if there is a reason; it says the first few.

    """
    reasons: list[str] = []
    for problem in validator.iter_errors(msgspec.to_builtins(value)):
        said = _excerpt(problem.message)
        reasons.append(f"{_place(problem.instance_path)}: {said}")
        if len(reasons) == _REASONS:
            break
    if reasons:
        raise ToolArgumentsError("; ".join(reasons))


def _place(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "$" + "".join(steps)


def _excerpt(text: str) -> str:
    if len(text) <= _EXCERPT:
        return text
    return f"{text[: _EXCERPT // 2]} ... {text[-_EXCERPT // 2 :]}"
