"""Prints what the embedded model does on this machine; needs `scripts/weights`.

python benchmarks/local_model.py
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import trio

import agentkernel as ak
from agentkernel.abc import ModelRequest
from agentkernel.bridges.providers.local import LocalModel


def request(text: str, max_tokens: int) -> ModelRequest:
    message = ak.UserMessage("m", (ak.TextBlock(text),))
    return ModelRequest("", (message,), options={"max_tokens": max_tokens})


async def collect(model: LocalModel, asked: ModelRequest) -> Sequence[ak.Chunk]:
    async with model.stream(asked) as stream:
        return [chunk async for chunk in stream]


async def time_stop(model: LocalModel, text: str, chunks: int) -> float:
    """Measure from the cancel to the end of the block, the thread joined."""
    started = 0.0
    with trio.CancelScope() as scope:
        async with model.stream(request(text, 500)) as stream:
            if not chunks:
                await trio.sleep(0.5)  # somewhere in the prompt
                started = time.perf_counter()
                scope.cancel()
            async for _ in stream:
                chunks -= 1
                if not chunks:
                    started = time.perf_counter()
                    scope.cancel()
    return time.perf_counter() - started


async def main() -> None:
    print(f"cores: {os.cpu_count()}")
    async with LocalModel(max_tokens=500) as model:
        print(model)
        start = time.perf_counter()
        await model.load()
        print(f"load: {time.perf_counter() - start:.2f} s")
        long = "one two three four five six seven eight. " * 60
        start = time.perf_counter()
        chunks = await collect(model, request(long, 1))
        took = time.perf_counter() - start
        usage = next(c.usage for c in reversed(chunks) if isinstance(c, ak.UsageChunk))
        tokens = usage.input_tokens or 0
        print(f"prompt: {tokens} tokens, {tokens / took:.0f} a second")
        start = time.perf_counter()
        await collect(model, request("Tell me a long story about a whale.", 200))
        print(f"answer: 200 tokens, {200 / (time.perf_counter() - start):.0f} a second")
        seconds = [await time_stop(model, "Tell me a story.", 20) for _ in range(5)]
        print(f"stop in the answer: {max(seconds) * 1000:.0f} ms at most (of 5)")
        seconds = [await time_stop(model, f"{i} {long}", 0) for i in range(5)]
        print(f"stop in the prompt: {max(seconds) * 1000:.0f} ms at most (of 5)")


trio.run(main)
