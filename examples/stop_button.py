"""A stop button: the turn ends, what was queued is kept, and runs when asked for."""

from __future__ import annotations

import trio

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel


async def main() -> None:
    """Stop a long answer in the middle, then let the queue go on."""
    gate = Gate()
    model = ScriptedModel(
        ["It was a dark ", "and stormy ", gate, "night."],
        ["Here is the short version."],
    )
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("story", model)
        async with kernel.open("tales", model="story") as agent:
            agent.on(ak.StatusChanged, lambda event: print("status:", event.status))
            first = agent.followup("Tell me a story.")
            agent.followup("Too long. Shorter, please.")
            await gate.reached()

            receipt = agent.cancel(keep_inbox=True, turn=1)
            print(f"stopped turn {receipt.turn}, kept {len(receipt.kept)} message")
            await agent.when_idle()
            outcome = await agent.outcome(first.id)
            print(f"the first turn is {outcome.kind}; it said: {outcome.text!r}")

            agent.wake()
            await agent.when_idle()
            print(f"then: {agent.session.messages[-1].text!r}")


if __name__ == "__main__":
    trio.run(main)
