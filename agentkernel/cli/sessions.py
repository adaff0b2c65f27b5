"""`agentkernel sessions`: what the store holds, without an agent of our own.

Listing, showing and exporting read the store and claim nothing, so they work beside
a kernel that has the session open.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec
import trio

from agentkernel import (
    AssistantReplied,
    InboxSpliced,
    MessageEntered,
    SessionEvent,
    SessionInfo,
    SessionStore,
    ToolCalled,
    ToolReturned,
    TurnEnded,
    encode_event,
    open_kernel,
)

from .chat import chat
from .console import Console, Streams
from .exits import Complaint
from .life import Life
from .opening import Extras
from .plain import escape_json, one_line, plain
from .settings import Settings, open_store
from .transcript import Transcript

__all__ = ["sessions"]


async def sessions(settings: Settings, extras: Extras, life: Life) -> int:
    """Look after sessions. Always a checkpoint.

    Cancellation:
      Nothing in the store has changed, but for `resume` and `fork`, which end as
      their agents do.

    Returns:
      The exit code.

    Raises:
      Complaint: if an argument names what the session does not have.
      StorageError: if the store cannot do it, or there is no such session.

    """
    if settings.action == "resume":
        return await _resume(settings, extras, life)
    store = extras.store or open_store(settings.store, os.environ)
    if settings.action == "fork":
        await _fork(store, settings, life)
        return 0
    async with store:
        if settings.action == "list":
            for info in await store.sessions():
                life.console.put(f"{_describe(info)}\n")
        elif settings.action == "export":

            def export(event: SessionEvent) -> None:
                line = encode_event(event, inline=True)[0].decode("utf-8", "replace")
                life.console.put(f"{escape_json(line)}\n")

            await _read(store, settings.session, life.console, export)
        else:
            await _show(store, settings.session, life)
    return 0


async def _resume(settings: Settings, extras: Extras, life: Life) -> int:
    """Chat in a session that must exist. Always a checkpoint.

    Cancellation:
      As `chat`.

    """
    if extras.store is None:
        async with open_store(settings.store, os.environ) as store:
            await store.read(settings.session, limit=1)
    return await chat(msgspec.structs.replace(settings, command="chat"), extras, life)


async def _fork(store: SessionStore, settings: Settings, life: Life) -> None:
    """Begin a new session with another one's history, and print its id.

    Always a checkpoint.

    Cancellation:
      There is no new session, or it is complete.

    Raises:
      Complaint: if the history has no event at which it was to be cut.

    """
    async with open_kernel(store) as kernel:
        if settings.at is not None:
            await _check_cut(store, settings.session, settings.at)
        handle = await kernel.fork(
            settings.session, settings.new_session or None, at=settings.at
        )
        life.console.put(f"{plain(handle.agent.id)}\n")
        await handle.dispose()


async def _check_cut(store: SessionStore, session_id: str, at: int) -> None:
    """Refuse an event that a session does not have; that it exists is for others.

    Always a checkpoint.

    Cancellation:
      Nothing happened.

    Raises:
      Complaint: if there is no such event.

    """
    for info in await store.sessions():
        if info.session_id == session_id and not 1 <= at <= info.last_seq:
            raise Complaint(
                f"--at {at}: session {session_id!r} has {info.last_seq} events, "
                "numbered from 1"
            )


async def _show(store: SessionStore, session_id: str, life: Life) -> None:
    """Print a session for people. Always a checkpoint.

    Cancellation:
      A part was printed.

    """
    console = life.console
    display = Streams(console, notices_to_output=True)
    say = display.notice
    transcript = Transcript(display)
    pending: dict[str, str] = {}

    def tell(event: SessionEvent) -> None:
        match event.data:
            case MessageEntered(message=message):
                say(f"> {plain(message.text)}")
            case AssistantReplied(message=message) if message.text:
                say(plain(message.text))
            case ToolCalled() | ToolReturned() | TurnEnded():
                transcript.tell(event)
            case InboxSpliced(removed=removed, inserted=inserted):
                for message_id in removed:
                    pending.pop(message_id, None)
                pending.update({m.id: m.text for m in inserted})
            case _:
                return

    await _read(store, session_id, console, tell)
    for text in pending.values():
        say(f"[queued: {one_line(text)}]")


async def _read(
    store: SessionStore,
    session_id: str,
    console: Console,
    tell: Callable[[SessionEvent], object],
) -> None:
    """Read all events, page by page, no faster than they are printed.

    Always a checkpoint.

    Cancellation:
      A part was told.

    """
    after = 0
    await trio.lowlevel.checkpoint()
    while page := await store.read(session_id, after=after):
        for event in page:
            tell(event)
            await console.room()
        after = page[-1].seq


def _describe(info: SessionInfo) -> str:
    changed = "-"
    if info.updated_at is not None:
        changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.updated_at))
    state = "open" if info.claimed else "closed"
    return f"{plain(info.session_id)}\t{changed}\t{info.last_seq} events\t{state}"
