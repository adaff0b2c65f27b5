"""Listeners: who registered for which event, and how an event goes through them.

Listeners of the kernel come before those of the agent, each in the order of
registration; in a waterfall the first is the outermost. The ambient initiator is the
event's agent while a listener runs. What a listener of a waterfall comes to is what the
event's class declares, or it is an error that names both. An event that nobody listens
to costs one look into a dictionary.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, final, get_args

from .._signal import TurnSignal
from .payload import Appended, ErrorReported, Notification, Serial, Waterfall

if TYPE_CHECKING:
    from .agent import Agent

__all__ = ["Dispatcher", "Listeners", "current_agent", "initiator"]

logger = logging.getLogger(__name__)

P = TypeVar("P")
D = TypeVar("D")
N = TypeVar("N")

Listener: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # listeners differ in their parameters

initiator: Final[ContextVar[Agent | None]] = ContextVar(
    "agentkernel.initiator", default=None
)


def current_agent() -> Agent | None:
    """Name the agent that this code works for; None outside of any.

    It says nothing about whether that agent lives, runs a turn or may be stopped
    from here. Not a checkpoint.
    """
    return initiator.get()


@final
class _Registration:
    """One listener; equal only to itself, so that a function may register twice."""

    __slots__ = ("decides", "fn", "reported")

    def __init__(self, event: type, fn: Listener) -> None:
        self.fn = fn
        # What it may come to; nothing if it decides nothing.
        self.decides = _decisions(event)
        self.reported = False


@final
class Listeners:
    """The listeners of one owner: the kernel, or one agent."""

    def __init__(self) -> None:
        # Only events that somebody listens to have an entry.
        self.by_event: dict[type, tuple[_Registration, ...]] = {}

    def add(self, event: type, fn: Listener) -> Callable[[], None]:
        """Register a listener; the result unregisters it, and may be called again.

        Raises:
          TypeError: if `event` is no event, or `fn` is async where it must be sync
            or the other way round.

        """
        _check_kind(event, fn)
        registration = _Registration(event, fn)
        self.by_event[event] = (*self.by_event.get(event, ()), registration)

        def unregister() -> None:
            kept = tuple(
                r for r in self.by_event.get(event, ()) if r is not registration
            )
            if kept:
                self.by_event[event] = kept
            else:
                self.by_event.pop(event, None)

        return unregister

    def clear(self) -> None:
        """Unregister everybody."""
        self.by_event.clear()


@final
class Dispatcher:
    """Sends one agent's events through the kernel's listeners and its own."""

    def __init__(
        self,
        agent: Agent,
        kernel: Listeners,
        own: Listeners,
        on_contained: Callable[[Exception], None],
    ) -> None:
        self._agent = agent
        self.own = own
        # The tables themselves: this is looked at for every event.
        self._kernel = kernel.by_event
        self._own = own.by_event
        # Told of every contained failure; the kernel's strict mode collects them.
        self._on_contained = on_contained

    def hears_appended(self) -> bool:
        """Whether anybody listens to the log; asked for every event of it."""
        return Appended in self._own or Appended in self._kernel

    def listeners(self, event: type) -> tuple[_Registration, ...]:
        """List everybody who listens to an event, outermost first."""
        kernel, own = self._kernel.get(event), self._own.get(event)
        if kernel is None:
            return () if own is None else own
        return kernel if own is None else kernel + own

    def notify(self, event: type[Notification[N]], *fields: object) -> None:
        """Tell observers, if there are any: the payload is made only then.

        Not a checkpoint. What an observer raises is contained, and reported once for
        each observer.
        """
        listeners = self.listeners(event)
        if not listeners:
            return
        payload = event(self._agent, *fields)
        token = initiator.set(self._agent)
        try:
            for registration in listeners:
                self._tell(registration, payload)
        finally:
            initiator.reset(token)

    def report(self, error: BaseException, where: str) -> None:
        """Publish `agent/error` and log it. Not a checkpoint."""
        logger.error("agent %s: %s: %s", self._agent.id, where, type(error).__name__)
        logger.debug("the error was", exc_info=error)
        self.notify(ErrorReported, error, where)

    async def serial(self, payload: Serial[P]) -> None:  # noqa: ASYNC910  # waits only if it must
        """Await the listeners one after the other; what one raises ends the series.

        A checkpoint only if a listener passes one.

        Cancellation:
          Passes through the listener that waits; later ones do not run.

        """
        for registration in self.listeners(type(payload)):
            if payload.signal.cancelled:
                return  # noqa: ASYNC910  # waits only if it must
            token = initiator.set(self._agent)
            try:
                await _awaited(registration.fn, payload)
            finally:
                initiator.reset(token)

    async def waterfall(
        self,
        payload: Waterfall[P, D],
        base: Callable[[P], Awaitable[D]],
    ) -> D:
        """Let listeners decide, the first one outermost, `base` innermost.

        A checkpoint only if a listener or `base` passes one.

        Cancellation:
          Passes through.

        Raises:
          TypeError: if a listener returns what is no decision on this event.

        """
        event = type(payload)
        listeners = self.listeners(event)
        if not listeners:
            return await base(payload)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a payload is its own P
        return await self._descend(event, listeners, base, payload)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a payload is its own P

    async def _descend(
        self,
        event: type,
        listeners: tuple[_Registration, ...],
        base: Callable[[P], Awaitable[D]],
        payload: P,
    ) -> D:
        signal: TurnSignal | None = getattr(payload, "signal", None)
        if signal is not None:
            # Behind every listener's await: what was stopped begins nothing more.
            signal.raise_if_cancelled()
        if not listeners:
            return await base(payload)
        first = listeners[0]
        following = partial(self._descend, event, listeners[1:], base)
        token = initiator.set(self._agent)
        try:
            decision: D = await _awaited(first.fn, payload, following)
        finally:
            initiator.reset(token)
        if signal is None or not signal.cancelled:
            _expect_decision(event, first, decision)
        return decision

    def _tell(self, registration: _Registration, payload: object) -> None:
        """Call one observer and contain what it raises."""
        try:
            _refuse_awaitable(registration.fn(payload))
        except Exception as error:  # noqa: BLE001  # observers may be anybody's; none may stop the kernel
            self._on_contained(error)
            if registration.reported:
                return
            registration.reported = True
            where = f"observer {_name(registration.fn)} of {type(payload).__name__}"
            if isinstance(payload, ErrorReported):
                logger.error("%s failed: %s", where, type(error).__name__)  # noqa: TRY400  # a traceback may hold messages; it is logged at DEBUG
            else:
                self.report(error, where)


async def _awaited(fn: Listener, *args: object) -> Any:  # type: ignore[explicit-any]  # noqa: ANN401  # what it decides is typed where it registered
    """Call an async listener; an object that gives nothing to await is a mistake.

    A checkpoint only if the listener passes one.

    Cancellation:
      Passes through.

    """
    result = fn(*args)
    if not inspect.isawaitable(result):
        raise TypeError(f"listener {fn!r} must be async: it returned {result!r}")
    return await result


def _decisions(event: type) -> tuple[type, ...]:
    """List the classes of decision that a waterfall declares; other events have none."""
    if Waterfall not in event.__mro__:
        return ()
    declared = get_args(vars(event)["__orig_bases__"][0])[1]
    return get_args(declared) or (declared,)


def _expect_decision(event: type, listener: _Registration, decision: object) -> None:
    """Refuse what is no decision on a waterfall, as after a forgotten `return`."""
    if not isinstance(decision, listener.decides):
        names = " or ".join(each.__name__ for each in listener.decides)
        raise TypeError(
            f"listener {_name(listener.fn)} of {event.__name__} must return {names}, "
            f"not {type(decision).__name__}"
        )


def _name(fn: Listener) -> str:
    name: str = getattr(fn, "__qualname__", repr(fn))
    return name


def _refuse_awaitable(result: object) -> None:
    """Refuse an observer that turned out to be async."""
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("an observer of a notification must not be async")


def _check_kind(event: type, fn: Listener) -> None:
    """Refuse a listener that cannot fit, when it is registered."""
    if not issubclass(event, (Notification, Serial, Waterfall)):
        raise TypeError(f"{event!r} is not an event; pass a class such as PreStep")
    target = fn.func if isinstance(fn, partial) else fn
    called = getattr(type(target), "__call__", None)  # noqa: B004  # its kind is asked, not whether it is there
    is_async = inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        called
    )
    if issubclass(event, Notification):
        if is_async:
            raise TypeError(
                f"{event.__name__} is a notification: its observer must be a plain "
                "function; start a task of your own for what has to wait"
            )
    elif not is_async and inspect.isfunction(target):
        raise TypeError(f"{event.__name__} is awaited: its listener must be async")
