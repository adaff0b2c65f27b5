"""Shell hooks: scripts in `examples/hooks` look at prompts, calls and the end."""

from __future__ import annotations

from pathlib import Path

import trio

import agentkernel as ak
from agentkernel.bridges.hooks import HOOK_MESSAGE, Hooks, load_settings
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools import tool

FOLDER = Path(__file__).parent / "hooks"


@tool
async def run_command(command: str) -> str:
    """Pretend to run a command."""
    await trio.lowlevel.checkpoint()
    return f"ran {command}"


def tell(payload: ak.Appended) -> None:
    """Print what hooks do, as it comes into the log."""
    match payload.event.data:
        case ak.HookReturned() as fact:
            print(f"  hook: {fact.outcome}, decision {fact.decision}")
        case ak.Extension(name=name, body={"text": text}) if name == HOOK_MESSAGE:
            print(f"  for you: {text}")
        case ak.ToolReturned(message=result):
            texts = [b.text for b in result.content if isinstance(b, ak.TextBlock)]
            print(f"{result.name}: {' '.join(texts)}")
        case ak.MessageEntered(message=message):
            print(f"to the model: {message.text}")
        case _:
            pass


async def main() -> None:
    """Have a model try two commands, and stop too early once."""
    model = ScriptedModel(
        [call("run_command", command="ls"), call("run_command", command="rm -r /")],
        ["Done."],
        ["Done, and I said thank you."],
    )
    settings = load_settings(FOLDER / "settings.json")
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("shell", model)
        # Hooks of this file know the tool by the name that it has elsewhere.
        Hooks(kernel, settings, cwd=FOLDER, names={"run_command": "Bash"})
        async with kernel.open("demo", model="shell", tools=[run_command]) as agent:
            agent.on(ak.Appended, tell)
            agent.followup("Clean up.")
            await agent.when_idle()


if __name__ == "__main__":
    trio.run(main)
