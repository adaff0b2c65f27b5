"""Agents in a program of their own, talked to by the Agent Client Protocol.

    prompt ─▶ process group ─▶ initialize ─▶ session/new ─▶ session/prompt ─▶ Report
                                   ▲ updates, permission requests ▼

Each run has a process of its own, in the block of one task. A stop becomes the
protocol's own: `session/cancel` is sent, open permission requests are answered
`cancelled`, and the program is listened to until it has answered its prompt, has ended,
or has used up `cancel_seconds`. Then its input is closed and its whole process group
is ended (SIGTERM, grace, SIGKILL) and reaped, on every way out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias, final

import msgspec
import trio

from agentkernel.tools import BoundedOutput, ProcessLimits, open_process_group

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
from .peer import Handler, Peer, PeerError, Pending
from .values import Report, failure_of

__all__ = ["Decide", "RemoteAgent", "RemoteUpdate", "run_remote"]

# What a permission request is answered with once the turn is being stopped.
STOPPED: Final[object] = {"outcome": {"outcome": "cancelled"}}
_AUTHENTICATION: Final = -32000

Decide: TypeAlias = Callable[[str], Awaitable[bool]]


class RemoteAgent(msgspec.Struct, frozen=True, eq=False):
    """A program that speaks the protocol, and how it is dealt with.

    Attributes:
      argv: program and arguments.
      cwd: the folder that it is to work in, and that it is started in.
      env: its whole environment; None for one without what looks secret.
      permission: what its questions are answered with, if nobody is asked.
      max_line_bytes: the longest message that is taken from it.
      max_text_bytes: how much of its text is kept.
      start_seconds: how long it may take until its session is there.
      cancel_seconds: how long it may take to answer after a stop.
      limits: `hangup` and `grace` of its process group.

    """

    argv: tuple[str, ...]
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    permission: Literal["allow", "deny", "ask"] = "ask"
    max_line_bytes: int = 16 * 1024 * 1024
    max_text_bytes: int = 256 * 1024
    start_seconds: float = 60.0
    cancel_seconds: float = 10.0
    limits: ProcessLimits = ProcessLimits(hangup=1.0, grace=2.0)


class RemoteUpdate(msgspec.Struct, frozen=True):
    """What a remote agent has said or done.

    Attributes:
      kind: the protocol's word for it, such as `agent_message_chunk` or `tool_call`.
      text: more of its message, or the title of what it does.
      status: of what it does, if that has one.

    """

    kind: str
    text: str = ""
    status: str | None = None


async def run_remote(
    remote: RemoteAgent,
    prompt: str,
    *,
    decide: Decide | None = None,
    on_update: Callable[[RemoteUpdate], object] | None = None,
) -> Report:
    """Start a remote agent, have it do one task, and end it.

    Always a checkpoint.

    Cancellation:
      The remote is told, listened to until it has answered, and ended; then the
      cancellation passes through. It takes `cancel_seconds` and the limits of the
      process group at most.

    Args:
      remote: the program.
      prompt: what it is told.
      decide: asked with the title of what the remote wants to do, where its
        permission is `ask`; without it the answer is no.
      on_update: told of what it says and does, synchronously.

    Returns:
      What became of it. A program that cannot be started, breaks the protocol or
      ends early is a report with a failure.

    """
    run = _Run(remote, prompt, decide, on_update)
    try:
        async with open_process_group(
            remote.argv, cwd=remote.cwd, env=remote.env, limits=remote.limits
        ) as group:
            stopped = None
            async with trio.open_nursery() as nursery:
                peer = run.connect(
                    Peer(
                        group,
                        nursery,
                        max_line_bytes=remote.max_line_bytes,
                        on_notification=run.on_notification,
                        handlers={
                            "session/request_permission": Handler(run.permit, STOPPED)
                        },
                    )
                )
                nursery.start_soon(peer.run)
                try:
                    await run.talk()
                except trio.Cancelled as exc:  # noqa: ASYNC103  # raised again below
                    stopped = exc  # outside of the nursery, so that it stays itself
                    with trio.CancelScope(shield=True):
                        await run.stop()
                peer.scope.cancel()
                nursery.cancel_scope.cancel()
            if stopped is not None:
                raise stopped
    except (OSError, NotImplementedError) as error:
        run.problem = f"It cannot be started: {error}"
        await trio.lowlevel.checkpoint()
    return run.report()


@final
class _Run:
    """One conversation with a remote agent; used by one task and its reader."""

    def __init__(
        self,
        remote: RemoteAgent,
        prompt: str,
        decide: Decide | None,
        on_update: Callable[[RemoteUpdate], object] | None,
    ) -> None:
        self.problem: str | None = None
        self._remote = remote
        self._prompt = prompt
        self._decide = decide
        self._on_update = on_update
        self._peer: Peer | None = None
        self._session = ""
        self._stop_reason: str | None = None
        self._prompting = Pending("session/prompt")
        self._stopping = False
        self._text = BoundedOutput(remote.max_text_bytes)

    def connect(self, peer: Peer) -> Peer:
        """Take the connection."""
        self._peer = peer
        return peer

    async def talk(self) -> None:
        """Set the session up, prompt, and wait for the end of the turn.

        Always a checkpoint.

        Cancellation:
          Passes through; `stop` comes next.

        """
        assert self._peer is not None
        peer, remote = self._peer, self._remote
        try:
            with trio.fail_after(remote.start_seconds):
                await self._begin(peer)
            await peer.ask(
                self._prompting,
                {
                    "sessionId": self._session,
                    "prompt": [{"type": "text", "text": self._prompt}],
                },
            )
            self._take(await peer.answer_of(self._prompting))
        except PeerError as error:
            self.problem = _explain(error)
        except msgspec.DecodeError as error:
            self.problem = f"It broke the protocol: {error}"
        except trio.TooSlowError:
            self.problem = f"It did not start within {remote.start_seconds:g} s"
        await trio.lowlevel.checkpoint()

    async def _begin(self, peer: Peer) -> None:
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
        agreed = msgspec.json.decode(answer, type=Initialized)
        if agreed.protocol_version != PROTOCOL:
            raise PeerError(
                f"it speaks version {agreed.protocol_version} of the protocol"
            )
        where = str(await trio.Path(self._remote.cwd or ".").resolve())
        answer = await peer.request("session/new", {"cwd": where, "mcpServers": []})
        self._session = msgspec.json.decode(answer, type=SessionCreated).session_id

    async def stop(self) -> None:
        """Stop the remote turn by the protocol, and listen until it has answered.

        Always a checkpoint.

        Cancellation:
          Shielded by its caller, and bounded by `cancel_seconds`.

        """
        assert self._peer is not None
        self._stopping = True
        if not self._session:
            await trio.lowlevel.checkpoint()
            return
        with trio.move_on_after(self._remote.cancel_seconds):
            await self._peer.notify("session/cancel", {"sessionId": self._session})
            with suppress(PeerError, msgspec.DecodeError):
                self._take(await self._peer.answer_of(self._prompting))

    def _take(self, answer: msgspec.Raw) -> None:
        self._stop_reason = msgspec.json.decode(answer, type=Prompted).stop_reason

    async def permit(self, params: msgspec.Raw) -> object:
        """Answer whether the remote may do something.

        Always a checkpoint.

        Cancellation:
          Passes through: the question is answered `cancelled`, which is no denial.

        """
        request = msgspec.json.decode(params, type=PermissionRequest)
        await trio.lowlevel.checkpoint()
        if self._stopping or request.session_id != self._session:
            return STOPPED
        allowed = self._remote.permission == "allow"
        if self._remote.permission == "ask" and self._decide is not None:
            allowed = await self._decide(request.tool_call.title or "something")
        wanted = "allow_once" if allowed else "reject_once"
        for kind in (wanted, wanted.replace("once", "always")):
            for option in request.options:
                if option.kind == kind:
                    return _selected(option.option_id)
        # It offers no answer of ours: a yes is not given in another form than asked.
        return STOPPED

    def on_notification(self, method: str, params: msgspec.Raw) -> None:
        """Take what the remote tells; what is not known is passed over."""
        if method != "session/update":
            return
        try:
            told = msgspec.json.decode(params, type=SessionUpdate)
        except msgspec.ValidationError:
            return
        update = told.update
        kind, text = update.session_update, update.title or ""
        if isinstance(update.content, Content):
            text = update.content.text
        if kind == "agent_message_chunk":
            self._text.write(text.encode())
        if self._on_update is not None:
            self._on_update(RemoteUpdate(kind, text, update.status))

    def report(self) -> Report:
        """Say what became of the work."""
        text = self._text.captured().text
        child = self._session or "remote"
        if self.problem is None and self._stop_reason not in ENDINGS:
            self.problem = f"It stopped for {self._stop_reason!r}"
        if self.problem is not None or self._stop_reason is None:
            problem = failure_of("error", self.problem)
            return Report(child, "error", text, failure=problem)
        ending = ENDINGS[self._stop_reason]
        return Report(child, ending, text, failure=failure_of(ending))


def _selected(option_id: str) -> object:
    return {"outcome": {"outcome": "selected", "optionId": option_id}}


def _explain(error: PeerError) -> str:
    if error.code == _AUTHENTICATION:
        return "It needs to be signed in first, outside of here"
    return f"It said: {error.message}" if error.code is not None else error.message
