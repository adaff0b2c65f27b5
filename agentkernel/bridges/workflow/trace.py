"""What an agent's session says of the task that it was given. Pure.

The record of a workflow holds the reports of its agents; the session of an agent holds
everything that such a report is made of. When a run was cut off between the two, the
report is made again from here.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import final

import agentkernel as ak
from agentkernel.bridges.subagents import (
    NO_ANSWER,
    AnswerSchema,
    Report,
    add_usage,
)
from agentkernel.bridges.subagents.answer import ANSWER
from agentkernel.bridges.subagents.values import ChildEnding, failure_of

__all__ = ["Trace"]


@final
class Trace:
    """A fold of the session of one agent that was given one task.

    The agent may have had other turns before and behind, if somebody else sent to it,
    or a job of its own did. The task's own is the first that its prompt entered. An
    agent that owed a structured answer then was asked for it again: a later turn is
    the task's if it gave that answer.

    Attributes:
      usage: the tokens of its steps, as far as they are known.

    """

    def __init__(self, prompt: str, events: Iterable[ak.SessionEvent]) -> None:
        self.usage: ak.Usage | None = None
        self._prompt = prompt
        self._first: int | None = None
        self._last = 0
        self._copied = 0
        self._endings: dict[int, ak.Ending] = {}
        self._texts: dict[int, str] = {}
        self._asked: dict[str, ak.JsonObject] = {}
        self._given: ak.JsonObject | None = None
        # The first turn in which an answer was accepted.
        self._answered: int | None = None
        for event in events:
            self._take(event)

    def _take(self, event: ak.SessionEvent) -> None:
        fact = event.data
        if isinstance(fact, ak.SessionHeader):
            self._copied = fact.lineage.forked_at or 0
        if event.seq <= self._copied:
            return
        match fact:
            case ak.TurnStarted():
                self._last = fact.turn
            case ak.TurnEnded():
                self._endings[fact.turn] = fact.reason
            case ak.MessageEntered():
                if self._first is None and fact.message.text.startswith(self._prompt):
                    self._first = self._last
            case ak.AssistantReplied():
                self._texts[fact.turn] = fact.message.text
            case ak.StepEnded():
                self.usage = add_usage(self.usage, fact.usage)
            case _:
                self._take_call(fact)

    def _take_call(self, fact: ak.Fact) -> None:
        """Note the last answer that was given and accepted."""
        if isinstance(fact, ak.ToolCalled):
            if fact.name == ANSWER and self._first is not None:
                self._asked[fact.call_id] = fact.arguments
        elif isinstance(fact, ak.ToolReturned) and fact.error is None:
            given = self._asked.get(fact.call_id)
            if given is not None:
                self._given = given
                self._answered = self._answered or fact.turn

    def report(
        self, child: str, schema: AnswerSchema | None, *, unfinished: ChildEnding
    ) -> Report:
        """Say what became of the task.

        Args:
          child: the agent's session.
          schema: what its answer has to look like; None for text.
          unfinished: how it ended if its session does not say so.

        """
        number = self._first if schema is None else self._turn_of_answer(schema)
        ending = None if number is None else self._endings.get(number)
        if number is None or ending is None:
            return Report(
                child, unfinished, failure=failure_of(unfinished), usage=self.usage
            )
        text = self._texts.get(number, "")
        failure = failure_of(ending.kind, ending.message)
        answer: ak.JsonValue = None
        if schema is not None and failure is None:
            try:
                answer = self._answer(schema, text, by=number)
            except ak.ToolArgumentsError as error:
                words = f"The agent gave no answer that fits: {error}."
                failure = ak.ToolFailure(NO_ANSWER, words)
        return Report(child, ending.kind, text, answer, failure, self.usage)

    def _turn_of_answer(self, schema: AnswerSchema) -> int | None:
        """Find the turn that decides: that of the answer, else the last one.

        If the task's own did not complete, the agent was not asked again.
        """
        first = self._first
        if first is None:
            return None
        ending = self._endings.get(first)
        if ending is None or ending.kind != "completed":
            return first
        for number, ending in sorted(self._endings.items()):
            if number >= first and ending.kind == "completed":
                with suppress(ak.ToolArgumentsError):
                    self._answer(schema, self._texts.get(number, ""), by=number)
                    return number
        return self._last

    def _answer(self, schema: AnswerSchema, text: str, *, by: int) -> ak.JsonValue:
        """Read the answer that there was when a turn had ended.

        Raises:
          ToolArgumentsError: if there was none that fits.

        """
        given, since = self._given, self._answered
        if given is not None and since is not None and since <= by:
            return schema.of_arguments(given)
        return schema.of_text(text)
