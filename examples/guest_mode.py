"""Under another event loop: asyncio hosts Trio, and its callbacks call the verbs."""

from __future__ import annotations

import asyncio

import trio

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel


async def agents(ready: asyncio.Future[ak.Agent], gate: Gate) -> ak.Outcome:
    """Run a kernel inside Trio, as a guest of asyncio's loop."""
    model = ScriptedModel(["Let me think ", gate])
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("thinker", model)
        async with kernel.open("guest", model="thinker") as agent:
            sent = agent.followup("What is the answer?")
            await gate.reached()
            ready.set_result(agent)
            return await agent.outcome(sent.id)


async def main() -> None:
    """Host the guest, and press its stop button from a callback of the host."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[ak.Outcome] = loop.create_future()
    ready: asyncio.Future[ak.Agent] = loop.create_future()
    gate = Gate()
    trio.lowlevel.start_guest_run(
        agents,
        ready,
        gate,
        run_sync_soon_threadsafe=loop.call_soon_threadsafe,
        done_callback=lambda result: done.set_result(result.unwrap()),
    )
    agent = await ready
    loop.call_soon(lambda: print("stopped turn", agent.cancel().turn))
    outcome = await done
    print(f"{outcome.kind}: {outcome.text!r}")


if __name__ == "__main__":
    asyncio.run(main())
