"""What is said to a remote agent, and what it says, from its start to its end.

Sits between `remote` and `peer`. One task has the conversation; the reader of the
connection brings what the agent tells.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

import msgspec
import outcome
import trio

from agentkernel import clean_text
from agentkernel.tools import BoundedOutput, ProcessGroup, open_process_group
from agentkernel.tools.attended import attended

from .acp import (
    ENDINGS,
    PROTOCOL,
    Content,
    Initialized,
    PermissionRequest,
    Prompted,
    SessionCreated,
    SessionUpdate,
)
from .peer import Peer, PeerError, PeerOptions, Pending
from .program import Decide, RemoteAgent, RemoteUpdate
from .serving import Handler
from .values import Report, failure_of
from .wire import MalformedError, cut, decode

__all__ = ["Conversation"]

# What a permission request is answered with once the turn is being stopped.
STOPPED: Final[object] = {"outcome": {"outcome": "cancelled"}}
_AUTHENTICATION: Final = -32000
_MAX_OPTION = 1000
_MAX_PROBLEM = 4000
_MAX_LAST_WORDS = 2000


@final
class Conversation:
    """One conversation with a remote agent; used by one task and its reader."""

    def __init__(
        self,
        remote: RemoteAgent,
        prompt: str,
        decide: Decide | None,
        on_update: Callable[[RemoteUpdate], object] | None,
    ) -> None:
        self.problem: str | None = None
        self.has_started: bool = False
        self._remote = remote
        self._prompt = prompt
        self._decide = decide
        self._on_update = on_update
        self._session = ""
        self._stop_reason: str | None = None
        self._prompting = Pending("session/prompt")
        self._stopping = False
        # What a function that was handed in has raised; it ends the conversation.
        self._failure: Exception | None = None
        self._talking = trio.CancelScope()
        self._text = BoundedOutput(remote.max_text_bytes)
        # The first half of a character whose second half the next message brings.
        self._half = ""

    async def run(self, where: str) -> ProcessGroup:
        """Start the program, have the conversation, and end the program.

        Always a checkpoint.

        Cancellation:
          As `run_remote`.

        Args:
          where: the folder that it is told to work in.

        Raises:
          OSError, ValueError, NotImplementedError: if it cannot be started.
          Exception: what a function that was handed in has raised.

        """
        remote = self._remote
        options = PeerOptions(
            max_line_bytes=remote.max_line_bytes,
            drain=remote.limits.drain,
            handlers={"session/request_permission": Handler(self._permit, STOPPED)},
            on_notification=self._on_notification,
            on_failure=self._on_failure,
        )
        async with open_process_group(
            remote.argv, cwd=remote.cwd, env=remote.env, limits=remote.limits
        ) as group:
            self.has_started = True
            async with trio.open_nursery() as nursery:
                peer = Peer(group, nursery, options)
                result = await attended(
                    functools.partial(self._talk, peer, where),
                    attendant=peer.run,
                    end=functools.partial(self._end, peer),
                )
        if self._failure is not None:
            raise self._failure
        if not (self._has_ended_itself() and _is_cancelled(result)):
            result.unwrap()
        return group

    def _has_ended_itself(self) -> bool:
        """Whether its turn is over by its own doing, whatever it was told since."""
        return self._stop_reason in ENDINGS and self._stop_reason != "cancelled"

    async def _talk(self, peer: Peer, where: str) -> None:
        """Set the session up, prompt, and wait for the end of the turn.

        Always a checkpoint.

        Cancellation:
          Passes through; `_end` comes next.

        """
        await trio.lowlevel.checkpoint()
        with self._talking:
            try:
                with trio.fail_after(self._remote.start_seconds):
                    await self._begin(peer, where)
                self._ask(peer)
                self._take(await peer.answer_of(self._prompting))
            except PeerError as error:
                self.problem = _explain(error, peer)
            except (MalformedError, ValueError) as error:
                self.problem = f"It broke the protocol: {error}"
            except trio.TooSlowError:
                late = f"It did not start within {self._remote.start_seconds:g} s"
                self.problem = _with_last_words(late, peer)

    async def _begin(self, peer: Peer, where: str) -> None:
        """Agree on the protocol and open a session.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        hello = {
            "protocolVersion": PROTOCOL,
            "clientCapabilities": {
                "fs": {"readTextFile": False, "writeTextFile": False},
                "terminal": False,
            },
            "clientInfo": {"name": "agentkernel", "version": "0.1"},
        }
        answer = await peer.request("initialize", hello)
        agreed = decode(answer, Initialized)
        if agreed.protocol_version != PROTOCOL:
            raise PeerError(
                f"it speaks version {agreed.protocol_version} of the protocol"
            )
        answer = await peer.request("session/new", {"cwd": where, "mcpServers": []})
        self._session = decode(answer, SessionCreated).session_id

    def _ask(self, peer: Peer) -> None:
        block = {"type": "text", "text": clean_text(self._prompt)}
        peer.ask(self._prompting, {"sessionId": self._session, "prompt": [block]})

    def _take(self, answer: msgspec.Raw) -> None:
        self._stop_reason = decode(answer, Prompted).stop_reason

    async def _end(self, peer: Peer, result: outcome.Outcome[None]) -> None:
        """Stop the remote turn by the protocol, and listen until it has answered.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller, and bounded by `cancel_seconds`.

        """
        self._stopping = True
        peer.serving.stop()
        await trio.lowlevel.checkpoint()
        broken_off = isinstance(result, outcome.Error) or self._failure is not None
        if not broken_off or self._prompting.take_back():
            return
        with trio.move_on_after(self._remote.cancel_seconds):
            if not self._prompting.answered.is_set():
                peer.notify("session/cancel", {"sessionId": self._session})
            await self._prompting.answered.wait()
            with suppress(PeerError, MalformedError):
                self._take(await peer.answer_of(self._prompting))

    def _on_failure(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._talking.cancel()

    async def _permit(self, params: msgspec.Raw) -> object:
        """Answer whether the remote may do something.

        Always a checkpoint.

        Cancellation:
          Passes through: the question is answered `cancelled`, which is no denial.

        Raises:
          Exception: what `decide` raises.

        """
        request = decode(params, PermissionRequest)
        await trio.lowlevel.checkpoint()
        if self._stopping or request.session_id != self._session:
            return STOPPED
        policy = self._remote.permission
        allowed = policy == "allow"
        if policy == "ask" and self._decide is not None:
            allowed = await self._decide(request.tool_call.title or "something")
        kinds = ["allow_once", "allow_always"]
        if not allowed:
            kinds = ["reject_once", "reject_always"]
        elif policy == "ask":
            kinds = ["allow_once"]
        for kind in kinds:
            for option in request.options:
                if option.kind == kind and len(option.option_id) <= _MAX_OPTION:
                    return _selected(option.option_id)
        # It offers no answer of ours: a yes is not given in another form than asked.
        return STOPPED

    def _on_notification(self, method: str, params: msgspec.Raw) -> None:
        """Take what the remote tells; what is not known is passed over."""
        if method != "session/update":
            return
        try:
            told = decode(params, SessionUpdate)
        except MalformedError:
            return
        update = told.update
        kind, text = update.session_update, update.title or ""
        if isinstance(update.content, Content):
            text = update.content.text
        if kind == "agent_message_chunk":
            text = self._whole(text)
            self._text.write(text.encode())
        if self._on_update is not None and self._failure is None:
            status = None if update.status is None else clean_text(update.status)
            self._on_update(RemoteUpdate(clean_text(kind), clean_text(text), status))

    def _whole(self, text: str) -> str:
        """Put a character together whose halves came in two messages."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._half, text = text[-1], text[:-1]
        return clean_text(text)

    def report(self) -> Report:
        """Say what became of the work."""
        self._text.write(clean_text(self._half).encode())
        text = self._text.captured().text
        child = cut(self._session) or "remote"
        if self.problem is None and self._stop_reason not in ENDINGS:
            self.problem = f"It stopped for {self._stop_reason!r}"
        if self.problem is not None or self._stop_reason is None:
            problem = failure_of("error", cut(self.problem or "", _MAX_PROBLEM))
            return Report(child, "error", text, failure=problem)
        ending = ENDINGS[self._stop_reason]
        return Report(child, ending, text, failure=failure_of(ending))


def _is_cancelled(result: outcome.Outcome[None]) -> bool:
    return isinstance(result, outcome.Error) and isinstance(
        result.error, trio.Cancelled
    )


def _selected(option_id: str) -> object:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


def _explain(error: PeerError, peer: Peer) -> str:
    if error.code == _AUTHENTICATION:
        return "It needs to be signed in first, outside of here"
    if error.code is not None:
        return f"It said: {error.message}"
    if not peer.ended.is_set() or peer.problem is not None:
        return error.message
    left = "" if peer.exit_code is None else f" with exit code {peer.exit_code}"
    return _with_last_words(f"{error.message}{left}", peer)


def _with_last_words(problem: str, peer: Peer) -> str:
    """Add the end of what a program wrote to standard error."""
    words = peer.stderr.strip()[-_MAX_LAST_WORDS:]
    return f"{problem}: {words}" if words else problem
