"""The bare Trio shell of a turn: what any implementation on Trio has to pay.

A cancel scope, a nursery, a generator of three chunks, a shielded checkpoint. No
message, no log, nobody to wake. It imports nothing but Trio, so that it can run
beside other frameworks, in their environments.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import trio

__all__ = ["bare_turn", "bare_turns"]


async def _three() -> AsyncGenerator[int]:  # noqa: RUF029  # it answers at once
    for number in range(3):
        yield number


async def bare_turn() -> None:
    with trio.CancelScope():
        async with trio.open_nursery():
            async for _ in _three():
                pass
    with trio.CancelScope(shield=True):
        await trio.lowlevel.checkpoint()


async def bare_turns(count: int) -> None:
    for _ in range(count):
        await bare_turn()
