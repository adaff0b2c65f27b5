"""The tool by which a child gives a structured answer."""

from __future__ import annotations

from typing import Final, final

import trio

from agentkernel import (
    JsonObject,
    JsonValue,
    ToolArgumentsError,
    ToolInvocation,
    ToolOutput,
    ToolSpec,
)

from .schema import AnswerSchema

__all__ = ["ANSWER", "AnswerTool"]

ANSWER: Final = "answer"


@final
class AnswerTool:
    """Takes the answer of one child; made for that child, an `agentkernel.Tool`.

    Attributes:
      given: whether there is an answer.
      value: the answer; the last one counts.

    """

    parallel_safe = False
    max_seconds = None

    def __init__(self, schema: AnswerSchema) -> None:
        self.spec: ToolSpec = ToolSpec(
            ANSWER,
            "Give your final answer. Call this once, when you are done; then end "
            "without saying anything else.",
            schema.parameters,
        )
        self.given: bool = False
        self.value: JsonValue = None
        self._schema = schema

    def check(self, arguments: JsonObject, /) -> JsonObject:
        """Check that the answer fits its schema. Not a checkpoint.

        Raises:
          ToolArgumentsError: if it does not.

        """
        self._schema.of_arguments(arguments)
        return arguments

    async def run(self, call: ToolInvocation, /) -> ToolOutput:
        """Take the answer.

        Always a checkpoint.

        Cancellation:
          The answer was not taken.

        """
        await trio.lowlevel.checkpoint()
        self.value = self._schema.of_arguments(call.arguments)
        self.given = True
        return ToolOutput.of("The answer was recorded. You are done.")

    def take_text(self, text: str) -> str | None:
        """Accept an answer that was written instead; else say what is wrong."""
        if self.given:
            return None
        try:
            self.value = self._schema.of_text(text)
        except ToolArgumentsError as error:
            return str(error)
        self.given = True
        return None
