"""A model that has two agents work for it at once, and one of them answer by a schema."""

from __future__ import annotations

import msgspec
import trio

import agentkernel as ak
from agentkernel.bridges.subagents import Persona, Subagents, agent_tool
from agentkernel.testing import ScriptedModel, call


class Verdict(msgspec.Struct):
    """What the judge has to answer with."""

    winner: str
    reason: str


async def main() -> None:
    """Let a model ask two agents, and let the program ask a third."""
    lead = ScriptedModel(
        [
            call("agent", agent="optimist", prompt="Is the plan good?"),
            call("agent", agent="critic", prompt="Is the plan good?"),
        ],
        ["They disagree."],
    )
    personas = (
        Persona("optimist", "sees what works", system="Be kind.", model="optimist"),
        Persona("critic", "sees what fails", system="Be strict.", model="critic"),
    )
    judge = ScriptedModel(
        [call("answer", winner="critic", reason="It is right.")], ["Done."]
    )
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("lead", lead)
        kernel.models.register("optimist", ScriptedModel(["It will work."]))
        kernel.models.register("critic", ScriptedModel(["It will not."]))
        kernel.models.register("judge", judge)
        tool = agent_tool(*personas)
        async with kernel.open("lead", model="lead", tools=[tool]) as agent:
            async with agent.ask("What do you think of the plan?") as reply:
                pass
            print("lead:", reply.outcome.text)
            for message in agent.session.messages:
                if isinstance(message, ak.ToolResults):
                    for result in message.results:
                        print("  told:", result.content[0])

            report = await Subagents([Persona("judge", model="judge")]).run(
                agent, "Who is right?", schema=Verdict
            )
            print("judge:", report.answer)
        stored = [info.session_id for info in await kernel.store.sessions()]
        print("sessions in the store:", len(stored))


if __name__ == "__main__":
    trio.run(main)
