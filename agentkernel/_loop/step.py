"""One step: one model request and the tool calls that its answer causes.

A step reads top to bottom: put the prompt together, let listeners look at the input,
let it enter, ask the model (again, if listeners want a retry), record the answer, run
its calls. After everything that is awaited it asks whether the turn was stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import msgspec
import trio

from .._errors import ModelError
from .._json import clean_text, freeze_object
from .._messages import Chunk, UserMessage
from .._session.events import (
    AssistantReplied,
    ChunkStreamed,
    Ending,
    MessageEntered,
    RequestConfigured,
    RetryScheduled,
    StepEnded,
    StepStarted,
)
from .._session.repair import MAX_STEPS, failed_result
from ..abc import Model, ModelRequest, Tool
from .failure import as_model_error, model_failure
from .inbox import admitted, reject_claim, settle_claim
from .payload import (
    Assemble,
    Enter,
    Fail,
    PreStep,
    Reject,
    Request,
    RequestError,
    Retry,
)
from .prompt import frozen_variables, join_sections
from .registry import check_spec
from .stream import Answer
from .toolcalls import run_calls

if TYPE_CHECKING:
    from .turn import Turn

__all__ = ["Step", "StepEnd"]


class StepEnd(msgspec.Struct, frozen=True):
    """How a step ended, for the turn to go on from.

    Attributes:
      ending: the turn ends with it; None if that is not the step's to say.
      owes: tool results wait for the model.
      cut: the answer was cut by the token limit.
      emptied: listeners left nothing of the input, and no request was made.

    """

    ending: Ending | None = None
    owes: bool = False
    cut: bool = False
    emptied: bool = False


@final
class Step:
    """One step of a turn, run once."""

    def __init__(self, turn: Turn, number: int, *, owed: bool, last: bool) -> None:
        self.turn = turn
        self.number = number
        # Whether tool results of the step before wait for the model.
        self.owed = owed
        # Whether the turn has no step after this one.
        self.last = last
        self._driver = turn.driver
        self._log = turn.log

    async def run(self) -> StepEnd:
        """Run the step.

        Always a checkpoint, unless its input is rejected or emptied.

        Cancellation:
          Passes through; the turn closes what is open.

        Raises:
          Interrupted: if the turn was stopped and nothing raised `Cancelled`.

        """
        turn, log = self.turn, self._log
        turn.check()
        system = await self._assemble()
        decision = await self._pre_step()
        if isinstance(decision, Reject):
            reject_claim(log)
            reason = clean_text(decision.reason) or None
            return StepEnd(Ending("blocked", message=reason))
        if not decision.messages and not self.owed:
            settle_claim(log, tuple(log.fold.inbox.claimed), "consumed")
            return StepEnd(emptied=True)
        self._enter(decision.messages)
        request, tools = self._build(system)
        answer = await self._ask(request)
        turn.usage = None
        message = answer.message(turn.number, self.number)
        log.append(
            AssistantReplied(turn.number, self.number, message, usage=answer.usage)
        )
        turn.check()
        calls = message.calls
        if calls and self.last:
            for call in calls:
                log.append(failed_result(turn.number, self.number, call, MAX_STEPS))
        elif calls:
            await run_calls(turn, self.number, calls, tools)
            turn.check()
        log.append(StepEnded(turn.number, self.number, usage=log.fold.step_usage))
        turn.check()
        if calls and self.last:
            return StepEnd(Ending("max-steps"))
        return StepEnd(owes=bool(calls), cut=answer.finish == "max-tokens")

    async def _assemble(self) -> str:
        """Put the system prompt together.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through; nothing has changed.

        """
        driver = self._driver
        sections = driver.prompt.sections()
        base = driver.options.system
        if not sections and not driver.dispatch.listeners(Assemble):
            return base  # noqa: ASYNC910  # waits only if it must
        payload = Assemble(
            driver.agent, self.turn.signal, sections, frozen_variables(driver.prompt)
        )
        with driver.work.doing("listener", "system-prompt/assemble"):
            made = await driver.dispatch.waterfall(payload, join_sections)
        self.turn.check()
        text = clean_text(made)
        return f"{base}\n\n{text}" if base and text else base or text

    async def _pre_step(self) -> Enter | Reject:
        """Let listeners accept, rewrite or reject the claimed input.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through; the input stays claimed.

        """
        driver, turn = self._driver, self.turn
        messages = tuple([m for _, m in self._log.fold.inbox.claimed.values()])
        if not driver.dispatch.listeners(PreStep):
            return Enter(messages)  # noqa: ASYNC910  # waits only if it must
        payload = PreStep(driver.agent, turn.signal, turn.number, self.number, messages)
        with driver.work.doing("listener", "agent/pre-step"):
            decision = await driver.dispatch.waterfall(payload, _enter_all)
        turn.check()
        if isinstance(decision, Reject):
            return decision
        return Enter(admitted(self._log, decision.messages))

    def _enter(self, messages: tuple[UserMessage, ...]) -> None:
        """Start the step and let the input enter it."""
        log, turn = self._log, self.turn
        with log.holding:
            log.commit(StepStarted(turn.number, self.number))
            for message in messages:
                log.commit(MessageEntered(message))
            if log.fold.inbox.claimed:
                settle_claim(log, tuple(log.fold.inbox.claimed), "consumed")
        turn.check()

    def _build(self, system: str) -> tuple[ModelRequest, dict[str, Tool]]:
        """Make the request from the log, the prompt and what is registered now."""
        driver, turn = self._driver, self.turn
        tools = driver.tools.effective()
        request = ModelRequest(
            system=system,
            messages=self._log.fold.history.view(),
            tools=tuple([tool.spec for tool in tools.values()]) if tools else (),
            model=driver.options.model,
            options=driver.options.model_options,
            signal=turn.signal,
            session_id=self._log.id,
            turn=turn.number,
            step=self.number,
        )
        return request, tools

    async def _ask(self, request: ModelRequest) -> Answer:
        """Ask the model until an attempt succeeds or its failure stands.

        Always a checkpoint.

        Cancellation:
          Passes through; what was streamed is kept by the turn.

        Raises:
          ModelError: if the last attempt's failure stands.

        """
        turn, log = self.turn, self._log
        attempt = 0
        while True:
            attempt += 1
            final = await self._configure(request, attempt)
            answer = Answer()
            error = await self._attempt(final, answer, attempt)
            turn.check()
            if error is None:
                return answer
            decision = await self._recover(error, answer, attempt)
            if isinstance(decision, Fail):
                raise error
            delay = max(0.0, float(decision.delay))
            failure, usage = model_failure(error), answer.usage
            where = turn.number, self.number, attempt
            log.append(RetryScheduled(*where, failure, delay, usage=usage))
            turn.usage = None
            turn.check()
            with self._driver.work.doing("retry", f"attempt {attempt + 1}"):
                await trio.sleep(delay)
            turn.check()

    async def _configure(self, request: ModelRequest, attempt: int) -> ModelRequest:
        """Let listeners change the request; log what it carries if that is new.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through.

        """
        driver, turn, log = self._driver, self.turn, self._log
        if attempt > 1:
            request = msgspec.structs.replace(request, attempt=attempt)
        if driver.dispatch.listeners(Request):
            payload = Request(
                driver.agent, turn.signal, turn.number, self.number, attempt, request
            )
            with driver.work.doing("listener", "agent/request"):
                request = await driver.dispatch.waterfall(payload, _unchanged)
            turn.check()
            request = _detached(request)
        known = log.fold.request
        if known is None or (
            known.system != request.system
            or known.tools != request.tools
            or known.model != request.model
            or known.options != request.options
        ):
            log.append(
                RequestConfigured(
                    request.system, request.tools, request.model, request.options
                )
            )
            turn.check()
        return request  # noqa: ASYNC910  # waits only if it must

    async def _attempt(
        self, request: ModelRequest, answer: Answer, attempt: int
    ) -> ModelError | None:
        """Stream one answer into the log; return the failure, if it failed.

        Always a checkpoint.

        Cancellation:
          Passes through; the stream is closed, its chunks stay in the log.

        """
        turn = self.turn
        try:
            model: Model = self._driver.models.get(request.model)
            with self._driver.work.doing("model", request.model):
                async with model.stream(request) as chunks:
                    try:
                        async for chunk in chunks:
                            if turn.stopped:
                                break
                            self._take(chunk, answer, attempt)
                    finally:
                        await _close(chunks)  # noqa: ASYNC102  # the generator sees the cancellation as well
        except Exception as error:
            if turn.stopped:
                raise
            return as_model_error(error)  # noqa: ASYNC910  # waits only if it must
        if answer.finish is None and not turn.stopped:
            return ModelError(
                "the stream ended before the answer did",
                code="truncated",
                retryable=True,
            )
        return None

    def _take(self, chunk: Chunk, answer: Answer, attempt: int) -> None:
        """Add a chunk to the answer, and to the log if observers are shown it."""
        turn, log = self.turn, self._log
        shown = answer.add(chunk)
        turn.usage = answer.usage
        if shown is not None:
            log.append(ChunkStreamed(turn.number, self.number, attempt, shown))
            self._driver.commons.writer.nudge(log)

    async def _recover(
        self, error: ModelError, answer: Answer, attempt: int
    ) -> Retry | Fail:
        """Ask listeners what to do about a failure; if one raises, it stands.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through.

        """
        driver, turn = self._driver, self.turn
        if not driver.dispatch.listeners(RequestError):
            return Fail()  # noqa: ASYNC910  # waits only if it must
        payload = RequestError(
            driver.agent,
            turn.signal,
            turn.number,
            self.number,
            attempt,
            error,
            answer.delivered,
        )
        try:
            with driver.work.doing("listener", "agent/request-error"):
                decision = await driver.dispatch.waterfall(payload, _fail)
        except Exception as raised:  # noqa: BLE001  # the original failure stands, whatever was raised
            turn.check()
            driver.dispatch.report(raised, "a listener of agent/request-error")
            return Fail()  # noqa: ASYNC910  # waits only if it must
        turn.check()
        return decision


async def _close(chunks: object) -> None:  # noqa: ASYNC910  # waits only if it must
    """Close a generator in this task when its reader has left early.

    A checkpoint only if the generator's cleanup passes one.

    Cancellation:
      Passes through the generator, which has then ended.

    """
    aclose = getattr(chunks, "aclose", None)
    if aclose is None:
        return  # noqa: ASYNC910  # waits only if it must
    try:
        await aclose()
    except BaseExceptionGroup as group:
        # A nursery around the yield wraps the exit of its own generator.
        _, rest = group.split(GeneratorExit)
        if rest is not None:
            raise


async def _enter_all(payload: PreStep) -> Enter:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Let the whole batch enter: the default decision."""
    return Enter(payload.messages)  # noqa: ASYNC910  # waits only if it must


def _detached(request: ModelRequest) -> ModelRequest:
    """Detach what the log keeps of a request from the listener that made it."""
    for spec in request.tools:
        check_spec(spec)
    return msgspec.structs.replace(
        request,
        system=clean_text(request.system),
        tools=tuple(request.tools),
        model=clean_text(request.model),
        options=freeze_object(dict(request.options), "options"),
    )


async def _unchanged(payload: Request) -> ModelRequest:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Send the request as it is: the default decision."""
    return payload.request  # noqa: ASYNC910  # waits only if it must


async def _fail(payload: RequestError) -> Fail:  # noqa: ASYNC124, RUF029  # a waterfall's base is awaited
    """Let the failure stand: the default decision."""
    return Fail()  # noqa: ASYNC910  # waits only if it must
