"""Stories with children, jobs and workflows, stopped at every point of their way."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import product

import pytest
import trio

import agentkernel as ak
from agentkernel.testing import (
    Act,
    Scenario,
    ScriptedModel,
    Stage,
    cancel_and_keep,
    cancel_broadly,
    cancel_everywhere,
    cancel_scope,
    cancel_then_send,
    check_log,
    dispose,
)
from tests.race.scenarios_children import CHILDREN


def name_of(fn: object) -> str:
    return str(getattr(fn, "__name__", fn))


ACTS: tuple[Act, ...] = (
    cancel_broadly,
    cancel_and_keep,
    cancel_then_send,
    dispose,
    cancel_scope,
)
CASES = [*product(CHILDREN, ACTS)]
IDS = [f"{name_of(story)}-{name_of(act)}" for story, act in CASES]
# The daily run tries two acts, the long one all of them.
SHORT = [case for case in CASES if case[1] in {cancel_broadly, cancel_scope}]


async def watched(stage: Stage, story: Scenario) -> None:
    """Play a story, and check every other agent that lived during it when it goes."""

    def gone(payload: ak.AgentDisposed) -> None:
        events = payload.agent.session.events
        check_log(events)
        for one in stage.kernel.agents:
            assert one.parent is not payload.agent, "a parent went before its child"

    def opened(payload: ak.AgentCreated) -> None:
        assert payload.agent.kernel is stage.kernel

    start = stage.start

    async def start_watched(
        model: ScriptedModel,
        *,
        store: ak.SessionStore | None = None,
        tools: Iterable[ak.Tool] = (),
        options: ak.AgentOptions | None = None,
        yielding: bool = True,
    ) -> ak.Agent:
        agent = await start(
            model, store=store, tools=tools, options=options, yielding=yielding
        )
        stage.kernel.on(ak.AgentDisposed, gone)
        stage.kernel.on(ak.AgentCreated, opened)
        return agent

    stage.start = start_watched  # type: ignore[method-assign]  # for one run
    await story(stage)
    if not stage.ended:
        await stage.agent.when_idle()
        await trio.lowlevel.checkpoint()
        living = [a for a in stage.kernel.agents if a is not stage.agent]
        assert not living, f"below an idle agent there lives {living}"


def sweep(story: Scenario, act: Act, seed: int) -> None:
    seen = cancel_everywhere(partial(watched, story=story), act, seeds=[seed])
    assert seen.endings["completed"]
    assert seen.endings["disposed" if act in {dispose, cancel_scope} else "aborted"]


@pytest.mark.clause("S3b", "C10b", "I6")
@pytest.mark.case("SUB-01", "SUB-03", "SUB-04", "LIFE-03")
@pytest.mark.parametrize(
    ("story", "act"), SHORT, ids=[f"{name_of(s)}-{name_of(a)}" for s, a in SHORT]
)
def test_nothing_breaks_below_wherever_it_is_stopped(story: Scenario, act: Act) -> None:
    """Logs of children are whole, children go first, and none outlives the turn."""
    sweep(story, act, ACTS.index(act))


@pytest.mark.long
@pytest.mark.parametrize(("story", "act"), CASES, ids=IDS)
def test_nothing_breaks_below_under_every_act(story: Scenario, act: Act) -> None:
    """The same with every act."""
    sweep(story, act, 40 + ACTS.index(act))
