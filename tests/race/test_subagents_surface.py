"""What bridges need of the kernel: lookups that hide names, questions from a body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

import agentkernel as ak
from agentkernel.testing import ScriptedModel, call
from tests.race.parts import Probe, opened, texts


def test_a_registry_that_keeps_names_hides_the_others_at_every_level() -> None:
    """A child must not reach, by way of the kernel, a tool that it was denied."""
    kernel, parent = ak.ToolRegistry(), ak.ToolRegistry()
    child, grandchild = ak.ToolRegistry(kernel), ak.ToolRegistry(kernel)
    kernel.add(Probe("shell"))
    parent.add(Probe("read"))
    child.adopt(parent)
    child.keep(["read"])
    grandchild.adopt(child)
    assert set(child.effective()) == set(grandchild.effective()) == {"read"}
    assert "shell" not in child
    assert "shell" not in grandchild
    with pytest.raises(ak.UnknownNameError):
        grandchild.get("shell")
    child.keep(["shell", "write"])
    assert not child.effective()


def test_what_is_registered_after_keep_is_found() -> None:
    """A child's own tool is given to it by who restricts it."""
    registry = ak.ToolRegistry()
    registry.keep([])
    registry.add(Probe("answer"))
    assert set(registry.effective()) == {"answer"}
    adopting = ak.ToolRegistry()
    adopting.add(Probe("own"))
    adopting.adopt(registry)
    assert set(adopting.effective()) == {"answer", "own"}


@pytest.mark.parametrize("answered", [True, False])
async def test_a_body_asks_through_the_approval_point(*, answered: bool) -> None:
    """Without anybody to ask the answer is a denial, never a yes."""

    async def body(invocation: ak.ToolInvocation) -> ak.ToolOutput:
        decision = await invocation.agent.approve(invocation, "to do more")
        return ak.ToolOutput.of(type(decision).__name__)

    reasons: list[str] = []

    async def allow(
        payload: ak.Approve,
        following: Callable[[ak.Approve], Awaitable[ak.Allow | ak.Deny]],
    ) -> ak.Allow | ak.Deny:
        await following(payload)
        reasons.append(payload.reason)
        return ak.Allow()

    model = ScriptedModel([call("work")], ["done"])
    async with opened(model, [Probe("work", body)]) as agent:
        if answered:
            agent.on(ak.Approve, allow)
        agent.followup("go")
        await agent.when_idle()
    assert texts(model.requests[1].messages)[-1] == ("Allow" if answered else "Deny")
    assert reasons == (["to do more"] if answered else [])
