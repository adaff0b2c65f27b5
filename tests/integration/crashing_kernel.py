"""A program that is killed while an agent works: `SIGKILL`, at a chosen point.

`python -m tests.integration.crashing_kernel KIND FOLDER POINT...` forks one process
for each point, which plays `story` in a folder of its own and dies there. A point is
one of

- `step:N`: before the N-th step of a Trio task;
- `call:N`, `done:N`: before, or after, the N-th call that a thread of the store makes
  into SQLite or the operating system: between any two parts of a write;
- `half:N`: in the N-th append of the JSONL store, when half of it is written;
- `inside:N`: while the N-th of those calls is at work, wherever it is;
- `count`: nowhere; the numbers that there are go into the file `counts`;
- `ONE+OTHER`: at one of these, and in another process, which resumes what that one
  left, at the other.

What the story was told to be durable goes into the file `acks`, line by line, what
its tools did into the file `effects`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import FrameType
from typing import NoReturn

import trio

import agentkernel as ak
from agentkernel.stores import JsonlStore, SqliteStore
from agentkernel.stores.files import File, Files
from agentkernel.testing import Gate, ScriptedModel, call

__all__ = ["Effect", "digest", "make_store", "story"]

_CALLS = frozenset(
    {
        "connect",
        "execute",
        "executemany",
        "flock",
        "fsync",
        "ftruncate",
        "mkdir",
        "open",
        "replace",
        "unlink",
        "write",
    }
)
_LONG = "long " * 20_000

Ack = Callable[[str], object]


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Killer(trio.abc.Instrument):
    """Counts the points that there are, and kills the process at one of them."""

    def __init__(self, point: str) -> None:
        self.kind, _, number = point.partition(":")
        self.number = int(number or 0)
        self.counts: Counter[str] = Counter()

    def reached(self, kind: str) -> bool:
        self.counts[kind] += 1
        return kind == self.kind and self.counts[kind] == self.number

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        del task
        if self.reached("step"):
            die()

    def profile(self, frame: FrameType, event: str, called: object) -> None:
        """Look at every call into C that a thread makes; a profiling function."""
        del frame
        if event not in {"c_call", "c_return", "c_exception"}:
            return
        if getattr(called, "__name__", "") not in _CALLS:
            return
        if event != "c_call":
            if self.reached("done"):
                die()
            return
        if self.reached("call"):
            die()
        if self.reached("inside"):
            sys.setprofile(None)
            # Starts the more steps ahead, the later in the story it is.
            threading.Thread(target=self._soon, daemon=True).start()

    def _soon(self) -> None:
        for _ in range(self.number * 37 % 400):
            pass
        die()


class KillingFiles(Files):
    """A disk on which a write may be cut in half by the end of its process."""

    def __init__(self, killer: Killer) -> None:
        self.killer = killer

    def create(self, path: Path) -> File:
        return KillingFile(self.killer, path, super().create(path).descriptor)

    def open(self, path: Path) -> File:
        return KillingFile(self.killer, path, super().open(path).descriptor)


class KillingFile(File):
    def __init__(self, killer: Killer, path: Path, descriptor: int) -> None:
        super().__init__(path, descriptor)
        self.killer = killer

    def append(self, data: bytes) -> None:
        if self.killer.reached("half"):
            super().append(data[: len(data) // 2])
            die()
        super().append(data)


def make_store(
    kind: str, folder: Path, files: Files | None = None
) -> JsonlStore | SqliteStore:
    if kind == "jsonl":
        return JsonlStore(folder / "jsonl", files=files)
    return SqliteStore(folder / "agents.db")


def digest(event: ak.SessionEvent) -> str:
    """Name an event by its content: equal before and after it was stored."""
    line, blobs = ak.encode_event(event)
    stored = ak.decode_event(line, blobs.__getitem__)
    assert stored is not None
    line, _ = ak.encode_event(stored)
    return sha256(line).hexdigest()


class Effect:
    """A tool that does something to the world, once for each call."""

    def __init__(
        self,
        name: str,
        act: Callable[[str], object],
        *,
        parallel_safe: bool = False,
        then: Callable[[], object] | None = None,
    ) -> None:
        self.spec = ak.ToolSpec(name, f"does {name}", {"type": "object"})
        self.parallel_safe = parallel_safe
        self.max_seconds = None
        self._act = act
        self._then = then

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, invocation: ak.ToolInvocation) -> ak.ToolOutput:
        await trio.lowlevel.checkpoint()
        self._act(invocation.call_id)
        await trio.lowlevel.checkpoint()
        if self._then is not None:
            self._then()
        return ak.ToolOutput.of(f"did {invocation.call_id}")


def message(text: str) -> ak.UserMessage:
    name = text.split(maxsplit=1)[0]
    return ak.UserMessage(name, (ak.TextBlock(text),))


def script(held: Gate) -> ScriptedModel:
    broken = ak.ModelError("broken", code="connection", retryable=True)
    calls = [call("mark", n=1), call("mark", n=2), call("order")]
    return ScriptedModel(
        ["I look. ", *calls],
        ["done ", "with it"],
        ["par", broken],
        ["second ", "answer"],
        ["cut ", held, "never said"],
        ["last ", call("mark", n=3)],
        default=["more"],
    )


async def story(store: ak.SessionStore, ack: Ack, act: Callable[[str], object]) -> None:
    """Play turns with tools, steering, a retry, a stop and a parked queue."""
    held = Gate()
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", script(held))
        steer = partial(_steer, kernel, ack)
        tools = [
            Effect("mark", act, parallel_safe=True),
            Effect("order", act, then=steer),
        ]
        agent = (await kernel.create("s", model="m", tools=tools)).agent
        agent.on(ak.RequestError, _retry)
        async with watched(agent, ack):
            await _play(agent, held, ack)


async def again(store: ak.SessionStore, ack: Ack, act: Callable[[str], object]) -> None:
    """Resume what a killed process left, and go on with it."""
    async with ak.open_kernel(store, strict=True) as kernel:
        kernel.models.register("m", ScriptedModel(default=["resumed"]))
        tools = [Effect("mark", act, parallel_safe=True), Effect("order", act)]
        try:
            agent = (await kernel.resume("s", tools=tools)).agent
        except ak.SessionNotFoundError:
            return
        async with watched(agent, ack):
            agent.wake()
            later = agent.followup(message("later"))
            await agent.session.flush(later.seq)
            ack(f"sent {later.id}")
            outcome = await agent.outcome(later.id)
            ack(f"outcome {later.id} {outcome.kind}")


async def _play(agent: ak.Agent, held: Gate, ack: Ack) -> None:
    async def told(sent: ak.Sent) -> None:
        await agent.session.flush(sent.seq)
        ack(f"sent {sent.id}")

    async def ended(sent: ak.Sent) -> None:
        outcome = await agent.outcome(sent.id)
        ack(f"outcome {sent.id} {outcome.kind}")

    one = agent.followup(message("one"))
    await told(one)
    await ended(one)
    await told(agent.inject(message("rides")))
    two, three = (
        agent.followup(message(f"two {_LONG}")),
        agent.followup(message("three")),
    )
    await told(three)
    await ended(two)
    await held.reached()
    five = agent.followup(message("five"))
    agent.cancel(keep_inbox=True)
    held.open()
    await told(five)
    await ended(three)
    await agent.when_idle()
    four = agent.followup(message("four"))
    await ended(five)
    await ended(four)


def _steer(kernel: ak.Kernel, ack: Ack) -> None:
    agent = kernel.get("s")
    sent = agent.steer(message("steered"))

    async def told() -> None:
        await agent.session.flush(sent.seq)
        ack(f"sent {sent.id}")

    agent.start_soon(told)


async def _retry(
    _payload: ak.RequestError,
    _following: Callable[[ak.RequestError], Awaitable[ak.Retry | ak.Fail]],
) -> ak.Retry | ak.Fail:
    return ak.Retry()


@asynccontextmanager
async def watched(agent: ak.Agent, ack: Ack) -> AsyncGenerator[None]:
    """Acknowledge every event that is durable, as a viewer of the session sees it."""

    async def watch() -> None:
        async with agent.session.subscribe(durable=True) as events:
            async for event in events:
                assert isinstance(event, ak.SessionEvent)
                ack(f"event {event.seq} {digest(event)}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield
        await agent.session.flush()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


def play(kind: str, folder: Path, point: str) -> None:
    """Play the story, or go on with it, in this process, which ends with it."""
    first = not folder.exists()
    folder.mkdir(exist_ok=True)
    killer = Killer(point)
    flags = os.O_CREAT | os.O_APPEND | os.O_WRONLY
    acks, effects = os.open(folder / "acks", flags), os.open(folder / "effects", flags)

    def note(file: int, line: str) -> None:
        os.write(file, f"{line}\n".encode())

    files = KillingFiles(killer)
    store = make_store(kind, folder, files)
    threading.setprofile(killer.profile)
    trio.run(
        story if first else again,
        store,
        partial(note, acks),
        partial(note, effects),
        instruments=[killer],
    )
    threading.setprofile(None)
    counts = "\n".join(f"{name} {number}" for name, number in killer.counts.items())
    (folder / "counts").write_text(counts, "utf-8")


def main(kind: str, folder: Path, points: list[str]) -> None:
    for point in points:
        for part in point.split("+"):
            pid = os.fork()
            if not pid:
                play(kind, folder / point.replace(":", "-"), part)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            if status and not os.WIFSIGNALED(status):
                sys.exit(f"the process of {point} failed: {status}")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
