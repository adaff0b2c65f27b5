"""The rows that every other framework is measured on, beside the bare shell.

The framework runs in an asyncio loop of its own, the shell in `trio.run`, in the same
process and the same rounds.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Protocol

import trio

from ..measure import TINY, Figures, Row, Sizes, against, machine, show, timed
from ..shell import bare_turns

__all__ = ["Peer", "compare"]

# Into how long a conversation the late turn is.
_LATE = 100


class Peer(Protocol):
    """One framework, used as its documentation says, its model answering at once."""

    async def turn(self) -> str:
        """One message, an answer of three chunks, read as they come."""
        ...

    async def tool_turn(self) -> str:
        """One message, one call of a tool that adds, the answer."""
        ...

    async def talk(self) -> str:
        """One more turn of a conversation that is kept."""
        ...


def compare(distribution: str, peer: Peer) -> None:
    """Print a framework's rows."""
    sizes = TINY if "--tiny" in sys.argv else Sizes()
    count = max(1, sizes.turns // 8)
    name = f"{distribution} {version(distribution)}"
    print(f"{name}\n{machine()}\n", flush=True)
    with asyncio.Runner() as loop:
        assert loop.run(peer.turn()) == "one two three"
        assert loop.run(peer.tool_turn()) == "one two three"
        works: dict[str, Callable[[], Awaitable[str]]] = {
            "turn of three text chunks": peer.turn,
            "turn with one tool call": peer.tool_turn,
            f"turns behind the {_LATE}th of a conversation": peer.talk,
        }
        for work, once in works.items():
            late = once == peer.talk
            loop.run(_repeat(once, min(_LATE, sizes.late_turn) if late else count))
            taken: list[float] = []
            bare: list[float] = []
            for _ in range(sizes.rounds):
                taken.append(loop.run(timed(count, lambda: _repeat(once, count))))  # noqa: B023  # awaited here
                bare.append(trio.run(_bare, 10 * count))
                if late:
                    # What was measured has made the conversation longer.
                    count = max(1, count // 2)
            ratio = against(Figures(taken), Figures(bare))
            show(Row(work, "us", Figures(taken), "shell", Figures(bare), ratio))


async def _repeat(once: Callable[[], Awaitable[str]], count: int) -> None:
    for _ in range(count):
        await once()


async def _bare(count: int) -> float:
    return await timed(count, lambda: bare_turns(count))
