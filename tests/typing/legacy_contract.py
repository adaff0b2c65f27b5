"""The public surface under mypy 1.10 with the stubs and the plugin of trio-typing.

Checked by `scripts/check` in an environment of its own, never run. It uses the
surface as an application does that still has trio-typing installed.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

import agentkernel as ak
from agentkernel.bridges.providers import AnthropicModel, OpenAIModel, RetryPolicy
from agentkernel.testing import Gate, ScriptedModel, call
from agentkernel.tools import tool


def show(*values: object) -> None:
    """Stand for whatever an application does with what it gets."""


@tool(parallel_safe=True)
async def add(first: int, second: int) -> str:
    """Add two numbers."""
    await trio.lowlevel.checkpoint()
    return str(first + second)


async def shorten(
    payload: ak.PreStep, next_: ak.Next[ak.PreStep, ak.Enter | ak.Reject]
) -> ak.Enter | ak.Reject:
    """Decide about input."""
    if any(len(message.text) > 100 for message in payload.messages):
        return ak.Reject("too long")
    return await next_(payload)


async def stopping(payload: ak.TurnStopping) -> None:
    """See a turn's end coming."""
    await trio.lowlevel.checkpoint()
    payload.agent.steer("one more thing")


def watch(payload: ak.StatusChanged) -> None:
    """Look at a status."""
    status: str = payload.status
    show(payload.agent.id, status)


async def talk(kernel: ak.Kernel) -> ak.Outcome:
    """Use an agent's verbs."""
    async with kernel.open("session", model="main", tools=[add]) as agent:
        unregister: Callable[[], None] = agent.on(ak.PreStep, shorten)
        agent.on(ak.StatusChanged, watch)
        agent.on(ak.TurnStopping, stopping)
        sent: ak.Sent = agent.followup("hello")
        agent.steer(ak.UserMessage("id", (ak.TextBlock("wait"),)))
        agent.inject("by the way")
        woken: bool = agent.wake()
        receipt: ak.CancelReceipt = agent.cancel(ak.USER, keep_inbox=woken, turn=1)
        kept: tuple[str, ...] = receipt.kept
        show(kept, agent.inbox.next_turn, agent.blockers())
        await agent.when_idle()
        async with agent.ask("again") as reply:
            async for text in reply.text():
                show(text.upper())
        async with agent.session.subscribe(after=sent.seq) as events:
            async for item in events:
                if isinstance(item, ak.SessionEvent):
                    show(item.seq, item.type)
        number: int = await agent.run_maintenance(maintain)
        show(number)
        unregister()
        return reply.outcome


async def maintain(signal: ak.TurnSignal) -> int:
    """Work on an idle agent."""
    signal.raise_if_cancelled()
    await trio.lowlevel.checkpoint()
    return 1


async def main() -> None:
    """Open a kernel."""
    model: ak.Model = ScriptedModel([call("add", first=1, second=2)], ["3", Gate()])
    async with ak.open_kernel(store=ak.SqliteStore("agents.db")) as kernel:
        kernel.models.register("main", model)
        kernel.models.register("other", OpenAIModel("name"))
        kernel.models.register("third", AnthropicModel("name"))
        show(RetryPolicy())
        handle: ak.AgentHandle = await kernel.create("s", model="main")
        outcome = await talk(kernel)
        text: str = outcome.text
        show(text)
        await handle.dispose()


trio.run(main)
