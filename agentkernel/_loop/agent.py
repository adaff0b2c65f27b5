"""What an application holds of an agent: its verbs and its views."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar, final, overload

import msgspec
import trio

from .._errors import AgentDisposedError
from .._session.session import Session
from .._signal import USER, CancelCause, TurnSignal
from ..abc import ToolInvocation
from .approval import ask_approval
from .ask import Reply
from .dispatch import Listener
from .driver import Driver
from .inbox import Inbox, MessageLike, as_message
from .maintenance import maintain
from .options import AgentOptions
from .outcome import Outcome, wait_outcome
from .own_turn import refuse_own_turn
from .payload import (
    Allow,
    Blocker,
    Deny,
    Notification,
    Serial,
    Status,
    Waterfall,
)
from .prompt import Prompt
from .registry import ModelRegistry, ToolRegistry
from .verbs import CancelReceipt, Sent, accept, cancel, wake

if TYPE_CHECKING:
    from .kernel import Kernel

__all__ = ["Agent"]

T = TypeVar("T")
P = TypeVar("P")
D = TypeVar("D")


@final
class Agent:
    """A live session with a driver. Made by a kernel, equal only to itself.

    Its verbs belong to the kernel's Trio thread and need no current task: a callback
    of a host loop may call them. It lives until its handle, or its kernel, disposes
    of it.
    """

    def __init__(self, driver: Driver, session: Session, kernel: Kernel) -> None:
        self._driver = driver
        self._kernel = kernel
        self.session = session
        self.inbox: Inbox = Inbox(driver)

    def __repr__(self) -> str:
        return f"<Agent {self.id!r} {self.status}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._driver.log.id

    @property
    def kernel(self) -> Kernel:
        """The kernel that it lives in."""
        return self._kernel

    @property
    def status(self) -> Status:
        """`running` from a wake until the agent has converged, else `idle`."""
        return self._driver.status

    @property
    def options(self) -> AgentOptions:
        """What it was opened with."""
        return self._driver.options

    @property
    def models(self) -> ModelRegistry:
        """The agent's own models, in front of the kernel's."""
        return self._driver.models

    @property
    def tools(self) -> ToolRegistry:
        """The agent's own tools, in front of the kernel's."""
        return self._driver.tools

    @property
    def prompt(self) -> Prompt:
        """The agent's own prompt sections, in front of the kernel's."""
        return self._driver.prompt

    @property
    def parent(self) -> Agent | None:
        """The agent that this one was created for, None for most."""
        parent = self._driver.parent
        return None if parent is None else parent.agent

    def followup(self, message: MessageLike) -> Sent:
        """Put a message at the end of `next_turn` and wake: it gets its own turn.

        Not a checkpoint. An idle agent is `running` when this returns.

        Raises:
          MessageConflictError: if the session knows the id with another body.
          AgentDisposedError: if the session is closed.
          WrongThreadError: if this is not the kernel's thread.

        """
        return accept(self._driver, message, "next_turn", verb="followup")

    def steer(self, message: MessageLike) -> Sent:
        """Put a message at the end of `next_step` and wake: it joins the turn.

        Not a checkpoint. Raises as `followup`.
        """
        return accept(self._driver, message, "next_step", verb="steer")

    def inject(self, message: MessageLike) -> Sent:
        """Put a message at the end of `next_step` and do not wake: it rides along.

        Not a checkpoint. Raises as `followup`.
        """
        return accept(self._driver, message, "next_step", verb="inject", passive=True)

    def notice(self, message: MessageLike, *, parked: bool = False) -> Sent:
        """Tell the agent a fact: that a job or a child has ended, say.

        It joins the next step of a busy agent and wakes an idle one; a broad cancel
        keeps it, parked. Not a checkpoint. Raises as `followup`.

        Args:
          message: the news.
          parked: do not wake an idle agent for it: it waits for the next wake, as
            what a resume finds does.

        """
        driver = self._driver
        body = as_message(message, driver.commons.make_id, passive=False)
        body = msgspec.structs.replace(body, kind="notice")
        return accept(driver, body, "next_step", verb="notice", parked=parked)

    def start_soon(
        self, fn: Callable[[], Awaitable[object]], /, *, name: str | None = None
    ) -> Callable[[], None]:
        """Start a task that belongs to the agent and outlives its turns.

        It is cancelled and joined when the agent is disposed of, before the session
        closes; a stop of a turn does not touch it. It works for this agent, in the
        kernel's own context and not in the caller's. What it raises is reported as
        `agent/error`. Not a checkpoint.

        Returns:
          A function that tells this task to end, by cancellation; harmless when called
          again. A task that ignores that is named by `blockers` and `agent/stuck`.

        Raises:
          AgentDisposedError: if the agent's disposal has begun.
          WrongThreadError: if this is not the kernel's thread.

        """
        driver = self._driver
        driver.refuse_if_closed("start_soon")
        if driver.lifecycle != "live":
            raise AgentDisposedError(self.id)
        known = name or str(getattr(fn, "__qualname__", fn))
        return driver.background.start(fn, known)

    def wake(self) -> bool:
        """Drain what is parked, from the front. Not a checkpoint.

        Returns:
          Whether this started a drain, or latched one for after a stop.

        Raises:
          AgentDisposedError: if the session is closed.

        """
        return wake(self._driver)

    def cancel(
        self,
        cause: CancelCause = USER,
        *,
        keep_inbox: bool = False,
        turn: int | None = None,
    ) -> CancelReceipt:
        """Stop the live turn and drop pending input, or keep it parked.

        The cause is fixed, `agent/cancel-requested` is notified, pending input is
        dropped, the turn's signal fires and its scope is cancelled, all before this
        returns. The work itself ends later: await `when_idle`. Not a checkpoint; an
        agent with nothing to stop is left as it is.

        Args:
          cause: on whose behalf; the first one of a turn counts.
          keep_inbox: keep pending input, and put back what was claimed but has not
            entered a step; it waits for the next wake.
          turn: do nothing unless this is the live turn and it has not been stopped:
            a stop that comes late, or twice, touches nothing that came after.

        Returns:
          What was stopped, dropped and kept.

        """
        return cancel(self._driver, cause, keep_inbox=keep_inbox, turn=turn)

    async def when_idle(self) -> None:
        """Wait until the agent has settled, turns that replace a stopped one included.

        Parked input does not delay it; after disposal it waits for the driver's exit.
        Always a checkpoint.

        Cancellation:
          The wait ends; nothing else changes.

        Raises:
          OwnTurnError: at once, if called inside a turn of this agent, or inside one
            of a child for whose `when_idle()` or `outcome()` such a turn waits. Who
            waits for a child otherwise, by reading it, is not found out.

        """
        driver = self._driver
        driver.commons.check_thread("when_idle")
        refuse_own_turn(driver, "when_idle")
        waited, task = False, trio.lowlevel.current_task()
        driver.work.waiting.add(task)
        try:
            while True:  # noqa: ASYNC913  # the first time round passes one
                if driver.status == "running" and driver.lifecycle == "live":
                    await driver.idle_waiters.park()
                elif driver.lifecycle != "live" and not driver.gone.is_set():
                    await driver.gone.wait()
                elif waited:
                    return  # noqa: ASYNC910  # the first time round passed one
                else:
                    # Asked again afterwards: somebody may send during this checkpoint.
                    await trio.lowlevel.checkpoint()
                waited = True
        finally:
            driver.work.waiting.discard(task)

    async def outcome(self, message_id: str) -> Outcome:
        """Wait until it is final what became of a message.

        That is when the flush of its turn has settled, or when it was discarded. A
        message whose turn ended `error` before it entered is pending again, parked;
        its outcome is that error until a later turn claims it.
        Always a checkpoint.

        Cancellation:
          The wait ends; nothing else changes.

        Raises:
          UnknownNameError: if the session never accepted such an id.
          AgentDisposedError: if the agent went while the message was pending; a
            resume finds it again.
          OwnTurnError: if it had to wait, inside a turn of this agent or inside one of
            a child that such a turn waits for.

        """
        self._driver.commons.check_thread("outcome")
        return await wait_outcome(self._driver, message_id)

    def ask(self, message: MessageLike) -> Reply:
        """Send a followup and read its reply: `async with agent.ask("…") as reply`.

        See `Reply`. Not a checkpoint; the message is sent on entry.
        """
        return Reply(self, message)

    async def run_maintenance(self, fn: Callable[[TurnSignal], Awaitable[T]]) -> T:
        """Run `fn(signal)` as the only work of an idle agent, without a turn.

        Input that arrives meanwhile waits until it is over. Always a checkpoint.

        Cancellation:
          A cancellation of the caller stops `fn` and is raised once it has ended.

        Raises:
          AgentBusyError: if the agent is running.
          MaintenanceCancelled: if a cancel or the disposal reached it; raised once
            `fn` has ended, whatever it returned.
          Exception: what `fn` raised, and nobody else is told.

        """
        return await maintain(self._driver, fn)

    async def approve(self, call: ToolInvocation, reason: str) -> Allow | Deny:
        """Ask whoever may decide, for what a call of a live turn wants to do.

        The question goes through the `Approve` listeners, as that of the call itself
        does; without any the answer is a denial. Always a checkpoint.

        Cancellation:
          Passes through: a question that is cancelled is not denied.

        Raises:
          TurnCancelled: if the turn was stopped.
          ValueError: if the turn of the call is over, or ends before the answer is
            there, or is another agent's: nothing could close the question then.
          Exception: what a listener raised.

        """
        await trio.lowlevel.checkpoint()
        return await ask_approval(self._driver, call, reason)

    def blockers(self) -> tuple[Blocker, ...]:
        """List what quiescence waits for now, and tasks that were told to end.

        Empty for an idle agent, unless such a task of it is still there.
        """
        return self._driver.work.blockers()

    @overload
    def on(
        self, event: type[Notification[P]], listener: Callable[[P], object], /
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self, event: type[Serial[P]], listener: Callable[[P], Awaitable[object]], /
    ) -> Callable[[], None]: ...
    @overload
    def on(
        self,
        event: type[Waterfall[P, D]],
        listener: Callable[[P, Callable[[P], Awaitable[D]]], Awaitable[D]],
        /,
    ) -> Callable[[], None]: ...
    def on(self, event: type, listener: Listener, /) -> Callable[[], None]:
        """Register a listener for this agent; it dies with the agent.

        Not a checkpoint.

        Returns:
          A function that unregisters it; harmless when called again.

        Raises:
          TypeError: if the listener is async where it must be sync, or the reverse.
          WrongThreadError: if this is not the kernel's thread.

        """
        self._driver.commons.check_thread("on")
        return self._driver.dispatch.own.add(event, listener)

    def refuse_own_turn(self, verb: str) -> None:
        """Raise `OwnTurnError` if the current task works inside a turn of this agent."""
        refuse_own_turn(self._driver, verb)
