"""Jobs that a crash cut off, as the next life of their session finds them."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

import agentkernel as ak
from agentkernel.testing import Gate, ScriptedModel, check_log
from tests.race.office import notices, office, pending, start
from tests.race.parts import facts, plant, stored, texts


async def crashed(titles: tuple[str, ...] = ("build",)) -> list[ak.SessionEvent]:
    """What is left of a session whose agent had jobs of these titles running."""
    async with office(ScriptedModel()) as (agent, jobs):
        for title in titles:
            start(jobs, agent, Gate(), title)
        await wait_all_tasks_blocked()
        return list(agent.session.events)


@pytest.mark.clause("I6", "I3a", "I1a")
@pytest.mark.case("SUB-04")
async def test_a_wake_is_enough_for_the_news_of_what_a_crash_cut_off() -> None:
    """The news is parked and starts nothing; nobody has to say anything to hear it."""
    store = await plant(await crashed(("build", "serve")))
    model = ScriptedModel(["noted"])
    async with office(model, store=store) as (agent, _):
        await wait_all_tasks_blocked()
        news = pending(agent)
        assert len(news) == 2
        assert agent.status == "idle"
        assert not [f for f in facts(agent) if isinstance(f, ak.TurnStarted)]
        assert agent.wake()
        await agent.when_idle()
        assert notices(agent) == news
        check_log(await stored(store))
    said = "\n".join(texts(model.requests[0].messages))
    assert "(build) was interrupted by a restart" in said
    assert "(serve) was interrupted by a restart" in said
