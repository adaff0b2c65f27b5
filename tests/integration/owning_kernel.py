"""A kernel in a process of its own that wants a session, works in it, and is told off.

`python -m tests.integration.owning_kernel KIND FOLDER NAME`. It says what happens to
it line by line, and goes on when it is sent a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.testing import ScriptedModel, call
from tests.integration.crashing_kernel import make_store


class Waiting:
    """A tool that works until the process is sent a line."""

    def __init__(self) -> None:
        self.spec = ak.ToolSpec("wait", "waits", {"type": "object"})
        self.parallel_safe = False
        self.max_seconds = None

    def check(self, arguments: ak.JsonObject) -> ak.JsonObject:
        return arguments

    async def run(self, invocation: ak.ToolInvocation) -> ak.ToolOutput:
        del invocation
        say("working")
        await told()
        return ak.ToolOutput.of("worked")


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201  # this is the program's output


async def told() -> None:
    await trio.to_thread.run_sync(sys.stdin.readline)


async def own(kind: str, folder: Path, name: str) -> None:
    say("ready")
    await told()
    async with ak.open_kernel(make_store(kind, folder)) as kernel:
        kernel.models.register("m", ScriptedModel([call("wait")], default=["done"]))
        try:
            handle = await kernel.create("s", model="m", tools=[Waiting()])
        except ak.SessionExistsError:
            try:
                handle = await kernel.resume("s", tools=[Waiting()])
            except ak.SessionBusyError:
                say("busy")
                return
        say("owner", handle.agent.session.epoch)
        agent = handle.agent
        sent = agent.followup(f"for {name}")
        outcome = await agent.outcome(sent.id)
        try:
            await handle.dispose()
        except ak.SessionDisplacedError as error:
            say("displaced", error.durable_seq)
        else:
            say("ended", outcome.kind)


if __name__ == "__main__":
    trio.run(own, sys.argv[1], Path(sys.argv[2]), sys.argv[3])
