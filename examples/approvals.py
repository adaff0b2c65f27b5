"""Approvals: a policy allows, denies and asks; a client answers, once or for good."""

from __future__ import annotations

import trio

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals, StaleApprovalError
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools import tool
from agentkernel.tools.approval import Policy, Rule

POLICY = Policy(
    (
        Rule("allow", "read_note"),
        Rule("deny", "delete_note", reason="notes are kept"),
        Rule("ask", "write_note", scope="session"),
    )
)


@tool(parallel_safe=True)
async def read_note(name: str) -> str:
    """Read a note."""
    await trio.lowlevel.checkpoint()
    return f"the note {name}"


@tool
async def write_note(name: str) -> str:
    """Write a note."""
    await trio.lowlevel.checkpoint()
    return f"{name} is written"


@tool
async def delete_note(name: str) -> str:
    """Delete a note."""
    await trio.lowlevel.checkpoint()
    return f"{name} is gone"


async def answer_first_question(approvals: Approvals, agent: ak.Agent) -> None:
    """Be a client: wait for a question in the log, look at it, say yes for good."""
    async with agent.session.subscribe() as events:
        async for event in events:
            if not isinstance(event, ak.SessionEvent):
                continue
            if isinstance(event.data, ak.ApprovalAsked):
                break
    (question,) = approvals.open()
    print(f"may {question.name} run with {dict(question.arguments)}? yes, always")
    approvals.answer(question.id, "allow", scope="session")
    try:
        approvals.answer(question.id, "deny")
    except StaleApprovalError as error:
        print("a second client is told:", error.decision)


async def main() -> None:
    """Have the model read, write twice and delete."""
    model = ScriptedModel(
        [call("read_note", name="a"), call("write_note", name="b")],
        [call("write_note", name="c"), call("delete_note", name="a")],
        ["That was all."],
    )
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("notes", model)
        approvals = Approvals(kernel, POLICY)
        tools = [read_note, write_note, delete_note]
        async with kernel.open("notes", model="notes", tools=tools) as agent:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer_first_question, approvals, agent)
                agent.followup("Tidy up my notes.")
                await agent.when_idle()
            for event in agent.session.events:
                if isinstance(event.data, ak.ToolReturned):
                    result = event.data.message
                    text = "".join(
                        block.text
                        for block in result.content
                        if isinstance(block, ak.TextBlock)
                    )
                    print(f"{result.name}: {text}")


if __name__ == "__main__":
    trio.run(main)
