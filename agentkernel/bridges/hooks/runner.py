"""What the listeners of hooks share: running an event's hooks, and what follows.

Made by `Hooks`, one for each of them; it keeps what is known of each agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, final
from weakref import WeakKeyDictionary

import agentkernel as ak

from .detached import DetachedHooks
from .executor import HookExecutor
from .hook import Hook, HookEvent
from .matcher import Dialect, condition_holds
from .runs import Runs
from .settings import HookSettings
from .spill import Spill
from .verdict import Verdict
from .waited import WaitedHooks

__all__ = ["HOOK_MESSAGE", "AgentState", "Runner"]

# The name of the extension that holds a hook's words to the user.
HOOK_MESSAGE: Final = "hook/message"


@final
class AgentState:
    """What is kept of one agent while it lives."""

    def __init__(self) -> None:
        # Whether the hooks of its start have run, and what they said to the model:
        # it enters with the first step that something enters.
        self.started = False
        self.greetings: list[ak.UserMessage] = []
        # Messages that hooks steered: no prompts of anybody.
        self.own: set[str] = set()
        # How often the end of `turn` was refused.
        self.turn = 0
        self.blocks = 0
        # Hooks that run once and have run, or run now.
        self._spent: set[tuple[object, ...]] = set()

    def spend(self, hooks: Iterable[Hook]) -> None:
        """Note that hooks have had their time, of those that have one only."""
        self._spent.update(_key(hook) for hook in hooks if _runs_once(hook))

    def is_spent(self, hook: Hook) -> bool:
        """Whether a hook, or another one that is equal to it, has had its time."""
        return _key(hook) in self._spent

    def forget(self, hook: Hook) -> None:
        """Note that a hook has not had its time after all."""
        self._spent.discard(_key(hook))


@final
class Runner:
    """Runs the hooks of some settings for the agents of one scope."""

    def __init__(
        self,
        scope: ak.Kernel | ak.Agent,
        settings: HookSettings,
        executor: HookExecutor,
        spill: Spill,
        *,
        cwd: str,
        names: Mapping[str, str],
    ) -> None:
        self.scope = scope
        self.settings = settings
        self.names = names
        runs = Runs(executor)
        self._spill = spill
        self._waited = WaitedHooks(runs, spill)
        self._detached = DetachedHooks(runs, spill, self.tell)
        self._cwd = cwd
        self._states: WeakKeyDictionary[ak.Agent, AgentState] = WeakKeyDictionary()

    def covers(self, agent: ak.Agent) -> bool:
        """Whether an agent is one of the scope's."""
        one: ak.Agent | None = agent
        while one is not None:
            if one is self.scope:
                return True
            one = one.parent
        return isinstance(self.scope, ak.Kernel)

    async def run(
        self,
        agent: ak.Agent,
        event: HookEvent,
        subject: str | None,
        fields: dict[str, ak.JsonValue],
        signal: ak.TurnSignal,
    ) -> Verdict:
        """Run the hooks of an event that concern its subject.

        A checkpoint only if there are any.

        Cancellation:
          Passes through once all of them have ended.

        """
        hooks = self._chosen(agent, event, subject, fields.get("tool_input"))
        told = self._begin(agent, event, fields, hooks)
        waited = [hook for hook in hooks if not hook.detached]
        self._detach(agent, [hook for hook in hooks if hook.detached], told)
        if not waited:
            return Verdict()  # noqa: ASYNC910  # waits only if it must
        verdict = await self._waited.run(
            agent.session,
            waited,
            told,
            signal=signal,
            on_unfinished=self.state(agent).forget,
        )
        for message in verdict.messages:
            self.tell(agent, event, message)
        if verdict.stop is not None:
            self.tell(agent, event, verdict.stop)
        return verdict

    def observe(
        self,
        agent: ak.Agent,
        event: HookEvent,
        subject: str | None,
        fields: dict[str, ak.JsonValue],
    ) -> None:
        """Start the hooks of an event that nothing waits for, as detached ones.

        Not a checkpoint.
        """
        hooks = self._chosen(agent, event, subject, None)
        self._detach(agent, hooks, self._begin(agent, event, fields, hooks))

    def _begin(
        self,
        agent: ak.Agent,
        event: HookEvent,
        fields: dict[str, ak.JsonValue],
        hooks: Sequence[Hook],
    ) -> dict[Dialect, bytes]:
        """Note what has had its one time, and write what the hooks are told."""
        self.state(agent).spend(hooks)
        dialects: set[Dialect] = {hook.dialect for hook in hooks}
        return {name: self._told(agent, event, fields, name) for name in dialects}

    def _detach(
        self, agent: ak.Agent, hooks: Sequence[Hook], told: Mapping[Dialect, bytes]
    ) -> None:
        state = self.state(agent)
        for hook in hooks:
            forget = partial(state.forget, hook)
            self._detached.start(agent, hook, told[hook.dialect], forget)

    def _chosen(
        self,
        agent: ak.Agent,
        event: HookEvent,
        subject: str | None,
        arguments: ak.JsonValue,
    ) -> tuple[Hook, ...]:
        """List the hooks that run, in the order of the settings, each once."""
        state = self.state(agent)
        unique: dict[object, Hook] = {}
        for hook in self.settings.of(event):
            if state.is_spent(hook) or not hook.matcher.fits(subject):
                continue
            if (
                hook.condition is None
                or not isinstance(arguments, Mapping)
                or condition_holds(hook.condition, subject or "", arguments)
            ):
                unique.setdefault(hook.identity, hook)
        return tuple(unique.values())

    def _told(
        self,
        agent: ak.Agent,
        event: HookEvent,
        fields: dict[str, ak.JsonValue],
        dialect: Dialect,
    ) -> bytes:
        """Write the object that hooks of a dialect read."""
        stdin: dict[str, ak.JsonValue] = {
            "session_id": agent.id,
            "transcript_path": None,
            "cwd": self._cwd,
            "permission_mode": "default",
            "hook_event_name": event,
        }
        if agent.parent is not None:
            stdin |= {"agent_id": agent.id, "agent_type": agent.options.model}
        stdin |= fields
        if dialect == "claude":
            return json.dumps(stdin).encode() + b"\n"
        # Codex always names the model, and ends without a newline.
        return json.dumps(stdin | {"model": agent.options.model}).encode()

    async def fitted(self, text: str) -> str:  # noqa: ASYNC910  # waits only if it must
        """Shorten what several hooks say together.

        A checkpoint only if it is written to a file.

        Cancellation:
          Passes through before a file is begun.

        """
        return (await self._spill.fitted(Verdict(reason=text))).reason

    def tell(self, agent: ak.Agent, event: str, text: str) -> None:
        """Tell the user something, as a fact. Not a checkpoint."""
        agent.session.append(ak.Extension(HOOK_MESSAGE, {"event": event, "text": text}))

    def state(self, agent: ak.Agent) -> AgentState:
        """Look up what is kept of an agent."""
        return self._states.setdefault(agent, AgentState())


def _key(hook: Hook) -> tuple[object, ...]:
    return (hook.event, *hook.identity)


def _runs_once(hook: Hook) -> bool:
    """Whether it runs one time in each opening of a session.

    The start is told again to those that a stop has cut, and not to what goes on.
    """
    starts = hook.event in {"SessionStart", "SubagentStart"}
    return hook.once or (hook.detached and starts)
