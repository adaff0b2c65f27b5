"""An agent in a program of its own, asked by a model through the Agent Client Protocol.

The program here is a page of Python; any program that speaks the protocol will do.
"""

from __future__ import annotations

import sys

import trio

import agentkernel as ak
from agentkernel.bridges.subagents import RemoteAgent, remote_agent_tool
from agentkernel.testing import ScriptedModel, call

PROGRAM = """
import json, sys

def send(**body):
    print(json.dumps({"jsonrpc": "2.0", **body}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        send(id=message["id"], result={"protocolVersion": 1})
    elif message["method"] == "session/new":
        send(id=message["id"], result={"sessionId": "one"})
    elif message["method"] == "session/prompt":
        said = message["params"]["prompt"][0]["text"]
        content = {"type": "text", "text": f"You said: {said}"}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        send(method="session/update", params={"sessionId": "one", "update": update})
        send(id=message["id"], result={"stopReason": "end_turn"})
"""


async def main() -> None:
    """Let a model ask the program."""
    remote = RemoteAgent((sys.executable, "-c", PROGRAM), permission="deny")
    tool = remote_agent_tool("parrot", "Repeats what it is told.", remote)
    model = ScriptedModel([call("parrot", prompt="hello")], ["It can speak."])
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("m", model)
        async with kernel.open("owner", model="m", tools=[tool]) as agent:
            async with agent.ask("Ask the parrot.") as reply:
                pass
            for message in agent.session.messages:
                if isinstance(message, ak.ToolResults):
                    print(message.results[0].content[0])
            print(reply.outcome.text)


if __name__ == "__main__":
    trio.run(main)
