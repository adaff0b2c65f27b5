"""`agentkernel chat`: a conversation on a terminal that never waits for the agent.

Three tasks share one agent: one tells the session's events, one reads keys, one draws
anew after the program was suspended. Decisions are synchronous and end in a verb of
the agent; whatever changes is shown because it is in the log.
"""

from __future__ import annotations

import sys
from typing import Final, final

import trio

from agentkernel import (
    USER,
    Agent,
    Appended,
    MessageEntered,
    SessionEvent,
    StatusChanged,
    TurnEnded,
    TurnStarted,
    UserMessage,
)

from .editor import Key
from .exits import Complaint, Exit
from .life import Life
from .opening import Extras, open_agent
from .plain import one_line, plain
from .screen import Screen
from .settings import Settings
from .terminal import Keyboard
from .transcript import Transcript

__all__ = ["chat"]

_HELP: Final = """\
Enter sends; while the agent works it queues. !text steers the turn that runs.
Esc or Ctrl-C stops the turn and keeps the queue; Ctrl-C when idle leaves.
/queue shows what waits   /drop [N] forgets all of it, or one   /wake runs it
/help shows this   /quit leaves   (a message that begins with / or !: double it)"""


async def chat(settings: Settings, extras: Extras, life: Life) -> int:
    """Talk until the user leaves. Always a checkpoint.

    Cancellation:
      The agent is disposed of and the terminal given back, then it passes through.

    Returns:
      The exit code.

    Raises:
      Complaint: if there is no terminal.

    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Complaint("chat needs a terminal; without one use: agentkernel run")
    keyboard, screen = Keyboard(), Screen(life.console)
    life.restore, life.notice = keyboard.restore, screen.notice
    with keyboard.taken():
        async with open_agent(settings, extras, screen.ask) as agent:
            life.watch(agent)
            await _Conversation(life, keyboard, screen, agent).run()
    return Exit.COMPLETED


@final
class _Conversation:
    """One agent, one terminal, and what the keys mean."""

    def __init__(
        self, life: Life, keyboard: Keyboard, screen: Screen, agent: Agent
    ) -> None:
        self._life = life
        self._keyboard = keyboard
        self._screen = screen
        self._agent = agent
        self._transcript = Transcript(screen)
        # The turn that is open in the log, and the last event that was told.
        self._turn: int | None = None
        self._told = agent.session.last_seq
        # Messages whose text is on the screen already, as it was typed.
        self._shown: set[str] = set()
        self._stopping = False
        self._leaving = False
        agent.on(Appended, self._on_event)
        agent.on(StatusChanged, self._on_status)
        life.on_interrupt = self._on_interrupt
        life.on_again = self._on_again

    async def run(self) -> None:
        """Talk until the command's scope is cancelled. Always a checkpoint.

        Cancellation:
          Passes through; the agent goes on until it is disposed of.

        """
        agent = self._agent
        count = len(agent.session.messages)
        told = f", {count} messages so far" if count else ""
        self._screen.notice(
            f"[session {plain(agent.id)}, model {plain(agent.options.model)}{told};"
            " /help]"
        )
        self._tell_parked()
        self._update()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tell)
                nursery.start_soon(self._draw_again)
                await self._read_keys()
        finally:
            self._screen.set_state(prompting=False, holding=False)
            self._screen.notice(
                f"[left; go on with: agentkernel sessions resume {plain(agent.id)}]"
            )

    async def _tell(self) -> None:
        """Tell the session's events as they come. Always a checkpoint.

        Cancellation:
          Passes through.

        """
        session = self._agent.session
        async with session.subscribe(after=self._told, buffer=None) as events:
            async for event in events:
                await self._screen.free()
                if isinstance(event, SessionEvent):
                    self._tell_one(event)
                    self._told = event.seq
                    self._update()
                await self._life.console.room()

    def _tell_one(self, event: SessionEvent) -> None:
        match event.data:
            case MessageEntered(message=message) if message.id not in self._shown:
                self._screen.notice(f"[now: {one_line(message.text)}]")
            case _:
                self._transcript.tell(event)

    def _update(self) -> None:
        """Show the prompt once the agent is idle and all is told."""
        idle = self._agent.status == "idle"
        done = idle and self._told == self._agent.session.last_seq
        self._screen.set_state(prompting=done, holding=not idle)

    def _on_event(self, payload: Appended) -> None:
        match payload.event.data:
            case TurnStarted(turn=turn):
                self._turn = turn
            case TurnEnded():
                self._turn = None
            case _:
                return

    def _on_status(self, payload: StatusChanged) -> None:
        if payload.status == "idle":
            self._life.interrupts.settled()
            if self._stopping:
                self._stopping = False
                self._tell_parked()
            if self._leaving:
                self._life.end(Exit.COMPLETED)
        self._update()

    # --- stopping

    def _stop(self) -> bool:
        """Stop what runs and keep the queue; false, and words, if it ends already."""
        receipt = self._agent.cancel(USER, keep_inbox=True, turn=self._turn)
        if receipt.effective:
            self._stopping = True
            self._screen.notice("[stopping]")
        elif self._agent.status == "running":
            self._life.explain()
        return receipt.effective

    def _on_interrupt(self) -> None:
        """Stop, or leave if there is nothing left to stop."""
        if self._agent.status == "idle" or not self._stop():
            self._on_again()

    def _on_again(self) -> None:
        """Leave as soon as the agent is idle."""
        self._leaving = True
        if self._agent.status == "idle":
            self._life.end(Exit.COMPLETED)

    # --- keys

    async def _read_keys(self) -> None:
        """Do what the keys say, until the terminal is gone. Always a checkpoint.

        Cancellation:
          Passes through; no key is lost.

        """
        while keys := await self._keyboard.read():
            for key in keys:
                self._press(key)
            self._screen.draw()
        self._life.end(Exit.HANGUP)

    def _press(self, key: Key) -> None:
        match key.kind:
            case "enter":
                self._submit(self._screen.take())
            case "escape" if self._agent.status == "running":
                self._stop()
            case "escape":
                self._screen.press(Key("kill"))
            case "stop":
                self._on_interrupt()
            case "end" if self._screen.empty:
                self._end_of_input()
            case _:
                self._screen.press(key)

    def _end_of_input(self) -> None:
        if self._agent.status == "idle":
            self._life.end(Exit.COMPLETED)
        else:
            self._screen.notice("[the agent is working: Esc stops it]")

    def _submit(self, text: str) -> None:
        if self._screen.answer(text) or not text.strip():
            return
        if text.startswith("/") and not text.startswith("//"):
            self._command(text)
        elif text.startswith("!") and not text.startswith("!!"):
            self._send(text[1:].strip(), steer=True)
        else:
            self._send(text[text.startswith(("//", "!!")) :], steer=False)

    def _send(self, text: str, *, steer: bool) -> None:
        if not text:
            return
        busy = self._agent.status == "running"
        queued = bool(self._pending())
        sent = (self._agent.steer if steer else self._agent.followup)(text)
        if steer or not (busy or queued):
            self._shown.add(sent.id)
        if busy:
            waiting = len(self._pending())
            self._screen.notice("[steering]" if steer else f"[queued: {waiting}]")

    def _command(self, text: str) -> None:
        name, _, argument = text.strip().partition(" ")
        match name:
            case "/help":
                for line in _HELP.splitlines():
                    self._screen.notice(line)
            case "/queue":
                for number, message in enumerate(self._pending(), 1):
                    self._screen.notice(f"[{number}: {one_line(message.text)}]")
                if not self._pending():
                    self._screen.notice("[nothing is queued]")
            case "/drop":
                self._drop(argument.strip())
            case "/wake":
                if not self._agent.wake():
                    self._screen.notice("[nothing to wake]")
            case "/quit":
                self._life.end(Exit.COMPLETED)
            case _:
                self._screen.notice(f"[{one_line(name, 40)} is no command; /help]")

    def _drop(self, which: str) -> None:
        pending = self._pending()
        if which:
            number = int(which) if which.isascii() and which.isdigit() else 0
            pending = pending[number - 1 : number] if number else ()
        for message in pending:
            self._agent.inbox.remove(message.id)
        self._screen.notice(f"[dropped: {len(pending)}]")

    def _pending(self) -> tuple[UserMessage, ...]:
        return (*self._agent.inbox.next_step, *self._agent.inbox.next_turn)

    def _tell_parked(self) -> None:
        if self._pending():
            self._screen.notice(
                f"[{len(self._pending())} queued: /queue shows them, /wake runs them,"
                " /drop forgets them]"
            )

    async def _draw_again(self) -> None:
        """Draw the input line when the program was suspended. Always a checkpoint.

        Cancellation:
          Passes through.

        """
        while True:
            await self._keyboard.resumed.wait()
            self._keyboard.resumed = trio.Event()
            self._screen.draw()
