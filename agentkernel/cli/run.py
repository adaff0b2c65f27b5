"""`agentkernel run`: one message, its answer, an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import final

import trio

from agentkernel import (
    USER,
    Agent,
    ErrorReported,
    MessageNotPendingError,
    Outcome,
    SessionEvent,
    StatusChanged,
    StorageError,
    encode_event,
)

from .approval import Answer, describe_answers, read_answer
from .console import Streams
from .exits import Exit, code_of
from .life import Life
from .opening import Extras, has_terminal, open_agent
from .plain import escape_json, one_line
from .settings import Settings
from .transcript import Transcript

__all__ = ["run"]


async def run(settings: Settings, extras: Extras, life: Life) -> int:
    """Ask once and tell what comes. Always a checkpoint.

    Cancellation:
      The agent is disposed of, then it passes through.

    Returns:
      The exit code.

    """
    prompt = settings.prompt
    interactive = has_terminal() and prompt != "-"
    if prompt == "-":
        prompt = await _read_all()
    question = _Question(life)
    ask = question.ask if interactive else None
    async with open_agent(settings, extras, ask) as agent:
        life.watch(agent)
        once = _Once(settings, life, agent)
        outcome = await once.run(prompt)
        life.console.notice(f"[session {agent.id}]")
    return code_of(outcome)


@final
class _Once:
    """One message of one agent, and who stops it."""

    def __init__(self, settings: Settings, life: Life, agent: Agent) -> None:
        self._json = settings.json
        self._life = life
        self._agent = agent
        self._message_id = ""
        # The last event that was told.
        self._told = 0
        self._storage_failed = False
        self._transcript = Transcript(Streams(life.console))
        life.on_interrupt = self._stop
        agent.on(ErrorReported, self._on_error)
        agent.on(StatusChanged, self._on_status)

    async def run(self, prompt: str) -> Outcome:
        """Send, tell every event, and return when the last one was told.

        Always a checkpoint.

        Cancellation:
          Passes through; the agent goes on until it is disposed of.

        """
        agent = self._agent
        self._told = agent.session.last_seq
        self._message_id = agent.followup(prompt).id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell)
            outcome = await agent.outcome(self._message_id)
            await agent.when_idle()
            nursery.cancel_scope.cancel()
        await self._tell(follow=False)
        return outcome

    async def _tell(self, *, follow: bool = True) -> None:
        """Tell the events that were not told yet. Always a checkpoint.

        Cancellation:
          What was told is known; nothing is told twice.

        """
        session = self._agent.session
        async with session.subscribe(
            after=self._told, follow=follow, buffer=None
        ) as events:
            async for event in events:
                if isinstance(event, SessionEvent):
                    self._tell_one(event)
                    self._told = event.seq
                await self._life.console.room()

    def _tell_one(self, event: SessionEvent) -> None:
        if self._json:
            line = encode_event(event, inline=True)[0].decode("utf-8", "replace")
            self._life.console.put(f"{escape_json(line)}\n")
        else:
            self._transcript.tell(event)

    def _stop(self) -> None:
        """Stop the turn; what others have queued stays, what we asked does not."""
        self._life.notice("[stopping]")
        self._agent.cancel(USER, keep_inbox=True)
        with suppress(MessageNotPendingError):
            self._agent.inbox.remove(self._message_id)

    def _on_error(self, payload: ErrorReported) -> None:
        self._storage_failed |= isinstance(payload.error, StorageError)

    def _on_status(self, payload: StatusChanged) -> None:
        """Give up when the store does not take the message: nobody waits for a retry."""
        if payload.status == "idle" and self._storage_failed:
            self._life.end(Exit.STORAGE)


@final
class _Question:
    """Asks on the terminal that the command was started from, line by line."""

    def __init__(self, life: Life) -> None:
        self._life = life

    async def ask(self, question: str, /, *, may_last: bool) -> Answer:
        """Ask until there is an answer. Always a checkpoint.

        Cancellation:
          The question stays unanswered.

        """
        console = self._life.console
        console.notice(f"[allow {question}?]")
        while True:
            console.put(f"[{describe_answers(may_last=may_last)}] ", error=True)
            await trio.lowlevel.wait_readable(0)
            data = os.read(0, 4096)
            if not data:
                return "no"
            answer = read_answer(data.decode("utf-8", "replace"), may_last=may_last)
            if answer is not None:
                return answer
            console.notice(f"[{one_line(repr(data), 40)} is no answer]")


async def _read_all() -> str:
    """Read standard input to its end. Always a checkpoint.

    Cancellation:
      What was read is lost.

    """
    pieces: list[bytes] = []
    while True:
        with suppress(PermissionError):  # a regular file is always ready
            await trio.lowlevel.wait_readable(sys.stdin.fileno())
        await trio.lowlevel.checkpoint()
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            return b"".join(pieces).decode("utf-8", "replace").rstrip("\n")
        pieces.append(piece)
