"""The other process of the store tests: a program that is run, stopped and killed.

It uses a JSONL store and a SQLite store in the same folder side by side, so that one
process tests both, and prints what has happened to it, a line for each step.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import trio

import agentkernel as ak

__all__ = ["KINDS", "event", "open_store", "read_all"]

KINDS: tuple[str, ...] = ("jsonl", "sqlite")


def open_store(
    kind: str, folder: Path, *, patience: float = 30.0
) -> ak.JsonlStore | ak.SqliteStore:
    if kind == "jsonl":
        return ak.JsonlStore(folder / "jsonl")
    return ak.SqliteStore(folder / "agents.db", busy_timeout=patience)


def event(seq: int, author: str = "worker", *, size: int = 0) -> ak.SessionEvent:
    """Make an event of which one can tell who wrote it; long ones become blobs."""
    text = f"{author} {seq} " + "x" * (size or (seq * 37) % 700)
    if seq % 10 == 0 and not size:
        text += "y" * 70_000
    fact = ak.MessageEntered(ak.UserMessage(f"m{seq}", (ak.TextBlock(text),)))
    return ak.SessionEvent(seq, float(seq), fact)


async def read_all(store: ak.SessionStore, session_id: str) -> list[ak.SessionEvent]:
    events: list[ak.SessionEvent] = []
    while page := await store.read(session_id, after=len(events), limit=7):
        events += page
    return events


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  # this is the program's output


async def write(stores: Sequence[tuple[str, ak.SessionStore]], token: str) -> None:
    """Append to one session in each store, until displaced everywhere or killed."""
    claims = {
        kind: await store.claim("s", token=token, create=True) for kind, store in stores
    }
    say("ready")
    last = dict.fromkeys(claims, 0)
    while last:
        for kind, store in stores:
            if kind not in last:
                continue
            size = last[kind] % 3 + 1
            events = [event(last[kind] + n) for n in range(1, size + 1)]
            if await store.write([ak.Append(claims[kind], events)]):
                say(kind, "displaced")
                del last[kind]
                continue
            last[kind] += size
            say(kind, last[kind])


async def take(stores: Sequence[tuple[str, ak.SessionStore]], token: str) -> None:
    """Claim every session there is, once told to, and hold what was got."""
    say("ready")
    await trio.to_thread.run_sync(sys.stdin.readline)
    for kind, store in stores:
        for info in await store.sessions():
            try:
                claim = await store.claim(info.session_id, token=token, create=False)
            except ak.SessionBusyError:
                continue
            say(kind, info.session_id, claim.epoch)
    say("done")
    await trio.sleep_forever()


async def fill(stores: Sequence[tuple[str, ak.SessionStore]], token: str) -> None:
    """Run into a limit of the operating system on the size of files, and out of it."""
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    for kind, store in stores:
        claim = await store.claim("s", token=token, create=True)
        await store.write([ak.Append(claim, [event(1)])])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, unlimited[1]))
        rest = [event(seq, size=40_000) for seq in range(2, 6)]
        for _ in range(3):
            try:
                await store.write([ak.Append(claim, rest)])
            except ak.StorageError as error:
                say(kind, "failed", type(error).__name__)
            seen = await store.read("s")
            say(kind, "sees", len(seen))
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        say(kind, "displaced", len(await store.write([ak.Append(claim, rest)])))
        say(kind, "sees", len(await store.read("s")))


MODES = {"write": write, "take": take, "fill": fill}


async def main(mode: str, folder: Path, token: str) -> None:
    async with AsyncExitStack() as stack:
        stores = [
            (kind, await stack.enter_async_context(open_store(kind, folder)))
            for kind in KINDS
        ]
        await MODES[mode](stores, token)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
