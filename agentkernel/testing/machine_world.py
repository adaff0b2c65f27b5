"""What an agent of a state machine talks to: a model and tools that wait to be told.

Whatever the agent asks of the world becomes a `Waiting` in the world's list, until the
machine tells it how it goes on. Answers are written as in the scripts of a
`ScriptedModel`: texts, chunks (`call("look")`), exceptions to raise.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Sequence,
)
from contextlib import asynccontextmanager
from typing import TypeAlias, final

import msgspec
import trio

import agentkernel as ak

__all__ = ["Answer", "Waiting", "World"]

Answer: TypeAlias = Sequence[str | ak.Chunk | Exception]

# What everybody is told when the world is closed, in as many words.
_ENOUGH: Answer = ("enough",)


@final
class Waiting:
    """Something that waits to be told how it goes on.

    Attributes:
      kind: `request` of a model, `tool`, or a word of whoever waits.
      agent: the id of the agent that it works for.
      turn: of that agent; 0 outside of one.
      name: of the tool, or whatever tells it apart.
      told: set once it was told.

    """

    def __init__(self, kind: str, agent: str, turn: int, name: str) -> None:
        self.kind = kind
        self.agent = agent
        self.turn = turn
        self.name = name
        self.told: trio.Event = trio.Event()
        self._answer: Answer = ()

    def __repr__(self) -> str:
        return f"<Waiting {self.kind} {self.name} of {self.agent!r} turn {self.turn}>"

    def tell(self, answer: Answer) -> None:
        """Let it go on with an answer, the first one that it is given."""
        if not self.told.is_set():
            self._answer = answer
            self.told.set()

    async def wait(self) -> Answer:
        """Wait to be told.

        Always a checkpoint.

        Cancellation:
          The wait ends.

        """
        await self.told.wait()
        return self._answer


@final
class World:
    """A model, an `agentkernel.Model`, and a maker of tools; all of them wait.

    Attributes:
      waiting: who waits, the longest first.
      on_request: called with each request that a model is asked.

    """

    def __init__(self) -> None:
        self.waiting: list[Waiting] = []
        self.on_request: Callable[[ak.ModelRequest], object] | None = None
        self._closed = False

    async def wait(
        self, kind: str, agent: str, *, turn: int = 0, name: str = ""
    ) -> Answer:
        """Wait to be told; tools, hooks and jobs of a machine's own use this too.

        Always a checkpoint.

        Cancellation:
          Passes through; nobody waits any more.

        """
        if self._closed:
            await trio.lowlevel.checkpoint()
            return _ENOUGH
        waiting = Waiting(kind, agent, turn, name)
        self.waiting.append(waiting)
        try:
            return await waiting.wait()
        finally:
            self.waiting.remove(waiting)

    def close(self) -> None:
        """Tell everybody that it is enough, and have nobody wait any more."""
        self._closed = True
        for waiting in self.waiting:
            waiting.tell(_ENOUGH)

    def tool(
        self, name: str, *, parallel_safe: bool = True, description: str = ""
    ) -> ak.Tool:
        """Make a tool that waits: an exception in its answer is what its body raises.

        Its result is the texts of its answer.
        """
        spec = ak.ToolSpec(name, description or f"The tool {name}.", {"type": "object"})
        return _WorldTool(self, spec, parallel_safe=parallel_safe)

    @asynccontextmanager
    async def stream(
        self, request: ak.ModelRequest, /
    ) -> AsyncGenerator[AsyncIterator[ak.Chunk], None]:
        """Give an answer: one word at once, the rest when it is told."""
        asked = msgspec.structs.replace(request, messages=tuple(request.messages))
        if self.on_request is not None:
            self.on_request(asked)
        yield _WorldAnswer(self, asked)


@final
class _WorldAnswer:
    """One answer of a world's model while it is given."""

    def __init__(self, world: World, request: ak.ModelRequest) -> None:
        self._world = world
        self._request = request
        # What it was told and has not said yet; None as long as it was not told.
        self._rest: list[str | ak.Chunk | Exception] | None = None
        self._begun = False
        self._finish: ak.FinishChunk | None = ak.FinishChunk("stop")

    def __aiter__(self) -> _WorldAnswer:
        return self

    async def __anext__(self) -> ak.Chunk:
        """Give the next chunk, or raise what it is told.

        Always a checkpoint.

        Cancellation:
          Passes through.

        """
        await trio.lowlevel.checkpoint()
        if not self._begun:
            self._begun = True
            return ak.TextChunk("so ")
        if self._rest is None:
            asked = self._request
            self._rest = [
                *await self._world.wait(
                    "request", asked.session_id, turn=asked.turn, name=asked.model
                )
            ]
        if not self._rest:
            finish, self._finish = self._finish, None
            if finish is None:
                raise StopAsyncIteration
            return finish
        item = self._rest.pop(0)
        if isinstance(item, Exception):
            raise item
        chunk = ak.TextChunk(item) if isinstance(item, str) else item
        if isinstance(chunk, ak.ToolCallChunk):
            self._finish = ak.FinishChunk("tool-calls")
        return chunk


@final
class _WorldTool:
    """A tool of a world."""

    max_seconds = None

    def __init__(self, world: World, spec: ak.ToolSpec, *, parallel_safe: bool) -> None:
        self.spec = spec
        self.parallel_safe = parallel_safe
        self._world = world

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        """Take any arguments."""
        return arguments

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        """Wait, and give back the texts that it is told.

        Always a checkpoint.

        Cancellation:
          Passes through.

        Raises:
          Exception: the one that it is told.

        """
        answer = await self._world.wait(
            "tool", call.agent.id, turn=call.turn, name=call.name
        )
        for item in answer:
            if isinstance(item, Exception):
                raise item
        return ak.ToolOutput.of(" ".join(i for i in answer if isinstance(i, str)))
