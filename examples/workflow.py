"""A workflow that fails half way, and goes on from there when it is run again."""

from __future__ import annotations

import trio

import agentkernel as ak
from agentkernel.bridges.workflow import (
    Flow,
    Progress,
    WorkflowAgentError,
    WorkflowOptions,
    run_workflow,
)
from agentkernel.testing import ScriptedModel


async def study(flow: Flow) -> str:
    """Look at three files side by side, then sum up."""
    flow.phase("read")
    found = await flow.parallel(
        [lambda f, n=name: f.agent(f"Read {n}.") for name in ("a", "b", "c")]
    )
    flow.phase("sum up")
    return str(await flow.agent(f"Sum up: {found}"))


def show(progress: Progress) -> None:
    """Print what is going on."""
    print(f"  {progress.phase}: {progress.kind} {progress.position}")


async def main() -> None:
    """Run it twice over one record."""
    broken = ak.ModelError("the line is down")
    model = ScriptedModel(["fine"], ["fine"], ["fine"], [broken], ["All is fine."])
    options = WorkflowOptions(model="m", on_progress=show)
    async with ak.open_kernel(store=ak.MemoryStore()) as kernel:
        kernel.models.register("m", model)
        print("first run")
        try:
            await run_workflow(kernel, study, session_id="study", options=options)
        except WorkflowAgentError as error:
            print(error)
        print("second run")
        done = await run_workflow(kernel, study, session_id="study", options=options)
        print(done.value, f"({done.started} agent was run)")


if __name__ == "__main__":
    trio.run(main)
