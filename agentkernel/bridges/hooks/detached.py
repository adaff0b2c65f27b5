"""Hooks that nothing waits for: tasks of their agent, bounded, with a say afterwards.

A detached hook is started where the others of its event are, and outlives the turn: a
stop of the turn does not touch it, the end of the agent ends and joins it. What it
decides comes too late and is left aside; what it has to say enters with the next step.
A hook that rewakes may ask for that step itself, by exit 2.

Invariants. At most `MAX_DETACHED` of one agent are under way, and the next one is
refused, visibly; and hooks alone do not keep an agent going for ever. Each has one
`hook/invoked` and one `hook/result`, log first: what it says comes after its result. A
message of one run has one id, so that it enters once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias, final
from weakref import WeakKeyDictionary

import msgspec
import trio

import agentkernel as ak

from .hook import Hook
from .judge import judge, set_aside
from .notes import note, notes
from .record import invoked, returned
from .runs import Runs
from .spill import Spill
from .verdict import HookRun, Verdict

__all__ = ["MAX_DETACHED", "MAX_WAKES", "DetachedHooks"]

# How many detached hooks of one agent and one `Hooks` may be under way.
MAX_DETACHED: Final = 32
# How often in a row hooks may wake an agent that nobody else speaks to.
MAX_WAKES: Final = 8

_Tell: TypeAlias = Callable[[ak.Agent, str, str], None]


@final
class DetachedHooks:
    """Starts detached hooks, and delivers what they say."""

    def __init__(self, runs: Runs, spill: Spill, tell: _Tell) -> None:
        self._runs = runs
        self._spill = spill
        self._tell = tell
        self._running: WeakKeyDictionary[ak.Agent, int] = WeakKeyDictionary()

    def start(
        self,
        agent: ak.Agent,
        hook: Hook,
        stdin: bytes,
        on_refused: Callable[[], None],
    ) -> None:
        """Start a hook, or refuse it; either way the log says so. Not a checkpoint.

        Args:
          agent: whose event it is, and who owns the task.
          hook: what is run.
          stdin: what it is told.
          on_refused: called if it is not started.

        """
        session = agent.session
        hook_id = invoked(session, hook)
        if self._running.get(agent, 0) >= MAX_DETACHED:
            on_refused()
            problem = f"{MAX_DETACHED} detached hooks are under way already"
            run = HookRun(problem=problem)
            verdict = judge(hook, run)
            returned(session, hook_id, run, verdict)
            self._deliver(agent, hook, hook_id, verdict)
            return
        work = partial(self._run, agent, hook, hook_id, stdin)
        try:
            agent.start_soon(work, name=f"detached hook {hook.event}")
        except ak.AgentDisposedError:
            on_refused()
            cancelled = HookRun(cancelled=True)
            returned(session, hook_id, cancelled, judge(hook, cancelled))
            return
        self._running[agent] = self._running.get(agent, 0) + 1

    async def _run(
        self,
        agent: ak.Agent,
        hook: Hook,
        hook_id: str,
        stdin: bytes,
    ) -> None:
        """Run one hook to its end, record it, and say what it said.

        Always a checkpoint.

        Cancellation:
          Passes through once nothing of the hook runs any more and its result is in
          the log. One that was cut says nothing.

        """
        session = agent.session
        run, verdict = HookRun(cancelled=True), Verdict("cancelled")
        cut: list[HookRun] = []
        try:
            with suppress(ak.StorageError):
                await session.flush()
            run = await self._runs.run(
                hook, stdin, signal=ak.TurnSignal(), on_cut=cut.append
            )
            # It has come to its end, so what it found is kept: a file is soon written.
            with trio.CancelScope(shield=True):
                found = _tired(agent, set_aside(hook, run))
                verdict = await self._spill.fitted(found)
        finally:
            self._running[agent] -= 1
            returned(session, hook_id, cut[0] if cut else run, verdict)
        self._deliver(agent, hook, hook_id, verdict)

    def _deliver(
        self, agent: ak.Agent, hook: Hook, hook_id: str, verdict: Verdict
    ) -> None:
        """Tell the user, and put what the model is told into the inbox."""
        for message in verdict.messages:
            self._tell(agent, hook.event, message)
        verdict = msgspec.structs.replace(verdict, source=hook_id)
        for words in notes(agent, hook.event, verdict, kind="notice"):
            agent.inject(words)
        if verdict.wake is not None:
            agent.notice(note(agent, hook.event, verdict, verdict.wake, kind="notice"))


def _tired(agent: ak.Agent, verdict: Verdict) -> Verdict:
    """Let a wake wait for somebody else's if hooks have woken the agent often enough."""
    if verdict.wake is None or _wakes(agent.session.messages) < MAX_WAKES:
        return verdict
    message = "The agent is not woken: hooks have done it often enough"
    return Verdict(texts=(verdict.wake,), messages=(message,), detail=message)


def _wakes(messages: Sequence[ak.Message]) -> int:
    """Count the answers to hooks that woke, since anybody else has spoken."""
    count, answered = 0, True
    for message in reversed(messages):
        if isinstance(message, ak.AssistantMessage):
            answered = True
        if not isinstance(message, ak.UserMessage) or message.passive:
            continue
        if message.kind != "notice" or message.meta.get("source") != "hook":
            break
        count += answered
        answered = False
    return count
