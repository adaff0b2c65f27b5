"""What is decided about a call before anybody is asked: its tool, its arguments."""

from __future__ import annotations

from collections.abc import Mapping

from .._errors import ToolArgumentsError
from .._json import FrozenDict, JsonObject, clean_text, freeze_object
from .._messages import ToolCall, ToolFailure
from ..abc import Tool

__all__ = ["Refused", "checked_arguments", "find_tool"]


class Refused(Exception):  # control flow inside one call
    """The call will not run; the failure is its result."""

    def __init__(self, failure: ToolFailure) -> None:
        self.failure = failure
        super().__init__(failure.code)


def find_tool(call: ToolCall, tools: Mapping[str, Tool]) -> Tool:
    """Find the tool of a call.

    Raises:
      Refused: if there is no such tool, or the arguments are no object.

    """
    tool = tools.get(call.name)
    if tool is None:
        known = ", ".join(sorted(tools)) or "none"
        text = f"There is no tool named {call.name!r}. Known tools: {known}."
        raise Refused(ToolFailure("UNKNOWN_TOOL", text))
    if call.problem is not None:
        raise Refused(ToolFailure("INVALID_ARGUMENTS", call.problem))
    return tool


def checked_arguments(tool: Tool, arguments: JsonObject) -> JsonObject:
    """Let a tool check its arguments; freeze what it makes of them.

    Raises:
      Refused: if they do not fit.

    """
    try:
        made = tool.check(arguments)
        if made is arguments and isinstance(made, FrozenDict):
            return made  # what the model's own arguments are already
        return freeze_object(dict(made))
    except ToolArgumentsError as error:
        failure = ToolFailure("INVALID_ARGUMENTS", clean_text(str(error)))
        raise Refused(failure) from None
