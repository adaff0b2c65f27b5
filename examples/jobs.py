"""A command in the background: the agent goes on, and is told when it has ended."""

from __future__ import annotations

import trio

import agentkernel as ak
from agentkernel.bridges.jobs import Jobs, command_job
from agentkernel.testing import ScriptedModel


async def main() -> None:
    """Start a job, stop a turn beside it, and let the news wake the agent."""
    model = ScriptedModel(["Good, the build is done."])
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("m", model)
        jobs = Jobs(kernel, max_jobs=2)
        async with kernel.open("builder", model="m") as agent:
            body = command_job("echo compiling; echo linked")
            job = jobs.start(agent, body, kind="command", title="build")
            print("started:", job.title, job.status)
            print("a stop of the turn leaves it alone:", agent.cancel().effective)
            await job.wait()
            print(job.output, end="")
            await agent.when_idle()
            for message in agent.session.messages:
                if isinstance(message, ak.UserMessage | ak.AssistantMessage):
                    print(f"> {message.text.splitlines()[0]}")


if __name__ == "__main__":
    trio.run(main)
