"""Run the calls of one step: in parallel where that is safe, each with one result.

What is hard here, and the rules that come of it:

A call may be stopped at any of its waits, and yet gets exactly one result. So every
call is one frame (`_Call.run`) that appends its own result, whatever happens in it;
only a call whose frame never began is answered by the turn's closing.

`tool/call` says that the body starts next, and it is durable before that. Between
its append and the body lies a wait for the disk; a stop there finds a call that was
announced and not started, and the frame knows it, which the log alone would not.

Calls that are marked parallel-safe overlap; any other is a barrier: it starts when
all before it have ended, and those behind it wait for it. Calls run as tasks in the
turn's nursery. A barrier, and a lone call, runs in the turn's own task: the same
frame without a task switch.

A body may raise anything. A cancellation that Trio delivers here is the stop; the
few exceptions that must leave the kernel are kept for the turn to raise when the log
is balanced; all others, whatever their base, are the call's error result. That, and
the end of the body's time, is an output like any other: listeners of
`tools/post-execute` see each call that was announced and not stopped. A value that
comes back after the stop is recorded: what was done was done.

A body that ignores its cancellation must not spin, so each body runs in a scope of
its own, which the watchdog shields after a while; the same scope bounds its time.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, final

import trio

from .._errors import StorageError
from .._json import JsonObject, clean_text
from .._messages import (
    TextBlock,
    ToolCall,
    ToolFailure,
    ToolResult,
)
from .._session.events import ToolCalled, ToolReturned
from .._session.repair import ABORTED, ABORTED_BEFORE_DISPATCH
from ..abc import Tool, ToolInvocation, ToolOutput
from .approval import ask_without_slot, by_mark, undecided
from .failure import (
    cancelled_here,
    cancelled_part,
    fatal_leaf,
    fault,
    tool_failure,
)
from .payload import Allow, Approve, Ask, Deny, Execute, PostExecute, PreExecute
from .toolcheck import Refused, checked_arguments, find_tool
from .tooloutput import checked_output, keep_output, timed_out
from .work import Entry

if TYPE_CHECKING:
    from .turn import Turn

__all__ = ["run_calls"]


async def run_calls(
    turn: Turn, step: int, calls: tuple[ToolCall, ...], tools: dict[str, Tool]
) -> None:
    """Run all calls of a step; return when each has its result.

    Always a checkpoint.

    Cancellation:
      Calls that run get their results from their own frames; the rest is answered
      when the turn is closed.

    """
    frames = [_Call(turn, step, call, tools) for call in calls]
    limit = turn.driver.options.max_parallel_tool_calls
    start = 0
    while start < len(frames) and not turn.stopped:
        end = start + 1
        if frames[start].parallel_safe:
            while end < len(frames) and frames[end].parallel_safe:
                end += 1
        if end - start == 1:
            await frames[start].run()
        else:
            await _run_together(turn, frames[start:end], limit)
        start = end
    await trio.lowlevel.checkpoint_if_cancelled()


async def _run_together(turn: Turn, frames: list[_Call], limit: int) -> None:
    """Run parallel-safe calls in the turn's nursery, at most `limit` at once.

    Always a checkpoint.

    Cancellation:
      The wait ends; the nursery waits for the calls.

    """
    assert turn.nursery is not None
    slots = trio.Semaphore(limit)
    ended = trio.Event()
    left = len(frames)

    async def run(frame: _Call) -> None:
        nonlocal left
        try:
            await frame.run()
        finally:
            if frame.slots is not None:
                slots.release()
            left -= 1
            if not left:
                ended.set()

    for frame in frames:
        await slots.acquire()
        if turn.stopped:
            return
        frame.slots = slots
        turn.nursery.start_soon(run, frame, name=f"tool {frame.call.name}")
    await ended.wait()


@final
class _Call:
    """The frame of one call, from the model's wish to the result."""

    def __init__(
        self, turn: Turn, step: int, call: ToolCall, tools: dict[str, Tool]
    ) -> None:
        self.call = call
        self._turn = turn
        self._step = step
        self._driver = turn.driver
        self._tools = tools
        self._tool = tools.get(call.name)
        self._body_began = False
        # Where the call holds a slot, while it does; None for a call that runs alone.
        self.slots: trio.Semaphore | None = None
        # When the body, or a listener around it, was started.
        self._since = 0.0
        # What the body gave back or how it failed, whatever becomes of the listeners
        # around it.
        self._returned: ToolOutput | None = None

    @property
    def parallel_safe(self) -> bool:
        """Whether it may overlap; a call that cannot run harms nobody."""
        return self._tool is None or self._tool.parallel_safe

    async def run(self) -> None:  # noqa: ASYNC910  # waits only if it must
        """Take the call through its pipeline and append its one result.

        A checkpoint only if something in it passes one.

        Cancellation:
          Passes through, after the result was appended.

        """
        turn = self._turn
        try:
            output = await self._pipeline()
        except Refused as refused:
            output = ToolOutput(error=refused.failure)
        except BaseException as error:  # noqa: ASYNC103, BLE001  # sorted and noted; the cancellation in it goes on
            stopped = turn.stopped or cancelled_here()
            self._finish(self._failed(error, stopped=stopped))
            cancelled = cancelled_part(error)
            if cancelled is not None and cancelled_here():
                raise cancelled  # noqa: ASYNC104, B904  # it is what was caught, or a part of it
            return  # noqa: ASYNC104, ASYNC910  # the scope of the call ends here
        self._finish(output)

    def _failed(self, error: BaseException, *, stopped: bool) -> ToolOutput:
        """Sort what was raised: the result, and what else is to be said of it."""
        turn = self._turn
        fatal = fatal_leaf(error)
        found = fault(error, stopped=stopped)
        if fatal is not None:
            turn.leave(fatal)
        if not stopped or (fatal is not None and found is None):
            return ToolOutput(error=tool_failure(error))
        if found is not None:
            self._driver.dispatch.report(
                found, f"tool {self.call.name}, while it was stopped"
            )
        return self._stopped_output()

    def _stopped_output(self) -> ToolOutput:
        """Say what became of a call that was stopped: a value that is there counts."""
        if self._returned is not None:
            return self._returned
        return ToolOutput(
            error=ABORTED if self._body_began else ABORTED_BEFORE_DISPATCH
        )

    def _finish(self, output: ToolOutput) -> None:
        """Append the result and send it on its way to the disk."""
        turn, call, log = self._turn, self.call, self._turn.log
        content = output.content
        if output.error is not None and not content:
            content = (TextBlock(clean_text(output.error.message)),)
        message = ToolResult(call.call_id, call.name, content, output.error)
        log.append(
            ToolReturned(
                turn.number,
                self._step,
                call.call_id,
                message,
                error=output.error,
                meta=output.meta,
            )
        )
        self._driver.commons.writer.kick(log)

    async def _pipeline(self) -> ToolOutput:
        """Check, ask, announce, run, check: the order of `tools/…` events.

        A checkpoint only if something in it passes one.

        Cancellation:
          Passes through.

        """
        self._refuse_if_stopped()
        tool = find_tool(self.call, self._tools)
        arguments = checked_arguments(tool, self.call.arguments)
        arguments = await self._permit(tool, arguments)
        invocation = self._invocation(arguments)
        self._guard(invocation)
        self._refuse_if_stopped()
        await self._announce(arguments)
        self._refuse_if_stopped()
        output = await self._execute(tool, invocation)
        if self._turn.stopped:
            return output
        dispatch = self._driver.dispatch
        if dispatch.listeners(PostExecute):
            seconds = trio.current_time() - self._since
            payload = PostExecute(
                self._driver.agent, self._turn.signal, invocation, output, seconds
            )
            with self._doing("listener", "tools/post-execute"):
                changed = await dispatch.waterfall(payload, keep_output)
            if not self._turn.stopped:
                return checked_output(changed)
        return output

    def _refuse_if_stopped(self) -> None:
        if self._turn.stopped:
            raise Refused(ABORTED_BEFORE_DISPATCH)

    async def _permit(self, tool: Tool, arguments: JsonObject) -> JsonObject:
        """Let listeners allow, change, ask about or deny the call.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through; an approval that is cancelled is no denial.

        """
        dispatch, agent = self._driver.dispatch, self._driver.agent
        signal = self._turn.signal
        decision: Allow | Ask | Deny = by_mark(tool)
        if dispatch.listeners(PreExecute):
            payload = PreExecute(agent, signal, self._invocation(arguments))
            with self._doing("listener", "tools/pre-execute"):
                decision = await dispatch.waterfall(payload, undecided(tool))
            self._refuse_if_stopped()
        if isinstance(decision, Ask):
            if decision.arguments is not None:
                arguments = checked_arguments(tool, decision.arguments)
            question = Approve(
                agent, signal, self._invocation(arguments), decision.reason
            )
            with self._doing("approval", self.call.name):
                decision = await ask_without_slot(self._driver, question, self)
            self._refuse_if_stopped()
        if isinstance(decision, Deny):
            reason = clean_text(decision.reason) or "no reason was given"
            raise Refused(ToolFailure("DENIED", f"The call was denied: {reason}"))
        if decision.arguments is None:
            return arguments  # noqa: ASYNC910  # waits only if it must
        return checked_arguments(tool, decision.arguments)  # noqa: ASYNC910  # waits only if it must

    def _guard(self, invocation: ToolInvocation) -> None:
        """Ask the guards, who have the last word before the body."""
        guards = self._driver.tools.guards
        if not guards:
            return
        payload = PreExecute(self._driver.agent, self._turn.signal, invocation)
        for guard in guards:
            refusal = guard(payload)
            if refusal is not None:
                raise Refused(ToolFailure("DENIED", f"The call was refused: {refusal}"))

    async def _announce(self, arguments: JsonObject) -> None:
        """Append `tool/call` and wait until it is durable.

        Always a checkpoint.

        Cancellation:
          Passes through; the call is then answered as not started.

        """
        turn, call = self._turn, self.call
        seq = turn.log.append(
            ToolCalled(turn.number, self._step, call.call_id, call.name, arguments)
        )
        try:
            with self._doing("flush", turn.log.id):
                await self._driver.commons.writer.flush(turn.log, seq)
        except StorageError as error:
            raise Refused(
                ToolFailure("STORAGE", f"Not executed: {error.message}")
            ) from None

    async def _execute(self, tool: Tool, invocation: ToolInvocation) -> ToolOutput:
        """Run the body in its own scope, with its time limit, inside the listeners.

        A checkpoint only if the body or a listener passes one.

        Cancellation:
          Passes through once the body has ended.

        """
        name, limit = self.call.name, tool.max_seconds
        output: ToolOutput | None = None
        try:
            # Two scopes: the inner one may be shielded, from the limit as well.
            with nullcontext() if limit is None else trio.move_on_after(limit):
                with trio.CancelScope() as own:
                    with self._driver.work.doing("tool", name, own) as entry:
                        self._since = entry.since
                        output = await self._wrapped(tool, invocation)
        except BaseException as error:  # noqa: ASYNC103  # a fault is an output; the rest goes on
            if self._turn.stopped or cancelled_here() or fatal_leaf(error) is not None:
                raise
            output = self._returned = ToolOutput(error=tool_failure(error))
        if self._turn.stopped:
            return self._stopped_output()  # noqa: ASYNC910  # waits only if it must
        if output is None:
            # The limit ended the body, or a listener behind a body that had returned.
            output = self._returned = self._returned or timed_out(name, limit)
        return output  # noqa: ASYNC910  # waits only if it must

    async def _wrapped(self, tool: Tool, invocation: ToolInvocation) -> ToolOutput:
        """Run the body inside the listeners of `tools/execute`.

        A checkpoint only if the body or a listener passes one.

        Cancellation:
          Passes through; a value that the body gave is kept.

        """

        async def base(_payload: Execute) -> ToolOutput:
            return await self._body(tool, invocation)

        dispatch = self._driver.dispatch
        if not dispatch.listeners(Execute):
            return await self._body(tool, invocation)
        payload = Execute(self._driver.agent, self._turn.signal, invocation)
        output: ToolOutput = await dispatch.waterfall(payload, base)
        return checked_output(output)

    async def _body(self, tool: Tool, invocation: ToolInvocation) -> ToolOutput:
        """Run the body; from here on its value is the call's result.

        A checkpoint only if the body passes one.

        Cancellation:
          Passes through once the body has ended.

        """
        self._body_began = True
        self._returned = checked_output(await tool.run(invocation))
        return self._returned

    def _invocation(self, arguments: JsonObject) -> ToolInvocation:
        turn, call = self._turn, self.call
        return ToolInvocation(
            self._driver.agent,
            turn.signal,
            turn.number,
            self._step,
            call.call_id,
            call.name,
            arguments,
        )

    def _doing(self, kind: str, name: str) -> Entry:
        return self._driver.work.doing(kind, name)
