"""The bare Trio shell of a turn: what any implementation on Trio has to pay.

A cancel scope, a nursery, a generator of three chunks, a shielded checkpoint. No
message, no log, nobody to wake. It imports nothing but Trio, so that it can run
beside other frameworks, in their environments.

`DrivenShell` is the same turn where an agent runs it: in a task of its own that is
woken through a channel, for somebody who waits until it is idle again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import trio

__all__ = ["DrivenShell", "bare_turn", "bare_turns"]


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


class DrivenShell:
    def __init__(self) -> None:
        self._wakes, self._woken = trio.open_memory_channel[None](1)
        self._idle = trio.lowlevel.ParkingLot()

    async def run(self) -> None:
        while True:
            await self._woken.receive()
            await bare_turn()
            self._idle.unpark_all()

    async def turns(self, count: int) -> None:
        for _ in range(count):
            self._wakes.send_nowait(None)
            await self._idle.park()
