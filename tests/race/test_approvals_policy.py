"""How a policy's word becomes a decision: only a clear yes lets a call run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, cast

import pytest
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.testing import ScriptedModel, call
from agentkernel.tools.approval import Decision, Policy
from tests.race.rig import BodyTool, codes, returns_done


class Saying(Policy, frozen=True):
    """A policy of somebody's own, that says one word about every call."""

    word: str = ""

    def decide(
        self, name: str, arguments: ak.JsonObject, *, granted: Collection[str] = ()
    ) -> Decision:
        return Decision(cast("Literal['deny']", self.word), "by the house")


@pytest.mark.parametrize("word", ["Allow", "block", "", "deny"])
async def test_a_word_that_is_no_yes_runs_nothing(
    agent: ak.Agent, model: ScriptedModel, autojump_clock: MockClock, word: str
) -> None:
    """Whatever a policy says that is neither allow nor ask is a denial."""
    agent.tools.add(BodyTool("a", returns_done))
    approvals = Approvals(agent, Saying(word=word))
    model.add([call("a")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["DENIED"]
    assert approvals.open() == ()
    approvals.policy = Saying(word="allow")
    model.add([call("a")], ["done"])
    agent.followup("go")
    await agent.when_idle()
    assert codes(agent) == ["DENIED", None]
