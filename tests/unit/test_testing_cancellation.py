"""The sweep itself: what it catches, and that it cannot pass without having acted."""

from __future__ import annotations

import pytest
import trio

import agentkernel as ak
from agentkernel.testing import (
    Point,
    ScriptedModel,
    Stage,
    cancel_broadly,
    cancel_everywhere,
    check_messages,
    play,
)
from agentkernel.testing.hang import hang_guard


async def story(stage: Stage) -> None:
    await stage.start(ScriptedModel(["one ", "two"], default=["more"]))
    stage.send("hello")
    await stage.settle()


def test_a_sweep_acts_at_every_point_of_every_kind() -> None:
    """As many runs as points; a stop late in the story finds a completed turn."""
    sweep = cancel_everywhere(story)
    assert set(sweep.points) == {"task-step", "append", "notification"}
    assert sweep.runs == sweep.points.total()
    assert {"aborted", "completed"} <= set(sweep.endings)
    assert len(sweep.orders) > 10


def test_a_point_that_is_never_reached_fails() -> None:
    """Trio drops an instrument that fails and goes on: a run must show that it acted."""
    with pytest.raises(AssertionError, match="there was no task-step 10000") as caught:
        cancel_everywhere(story, at=Point("task-step", 10_000))
    assert any("scenario story, seed 0" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("kind", ["task-step", "append", "notification"])
def test_an_act_that_raises_fails_the_sweep(kind: str) -> None:
    """Neither Trio nor the kernel may swallow a fault of the test itself."""

    def act(_stage: Stage) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cancel_everywhere(story, act, at=Point(kind, 3))  # type: ignore[arg-type]  # one of the kinds  # pyright: ignore[reportArgumentType]


def test_a_hang_is_an_error_with_everything_opened() -> None:
    """The alarm is virtual: what waits for ever is found at once."""

    async def hangs(stage: Stage) -> None:
        await stage.start(ScriptedModel([stage.gate()]))
        stage.send("hello")
        await trio.sleep_forever()

    with pytest.raises(AssertionError, match="hung for"):
        play(hangs)


def test_a_run_that_spins_is_interrupted() -> None:
    """Virtual time never moves in it, so the alarm there would never ring."""

    async def spin() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(AssertionError, match="real seconds"), hang_guard(0.05):
        trio.run(spin)


def test_a_stream_that_stays_open_is_found() -> None:
    """Quiescence is checked, not assumed."""

    async def leaks(stage: Stage) -> None:
        model = ScriptedModel(["one"], default=["more"])
        await stage.start(model)
        model.open_streams += 1
        stage.send("hello")
        await stage.settle()

    with pytest.raises(AssertionError, match="open on an idle"):
        play(leaks)


def test_a_task_that_is_left_over_is_found() -> None:
    """Nothing may outlive the kernel's block."""

    async def leaves(stage: Stage) -> None:
        await story(stage)
        trio.lowlevel.spawn_system_task(trio.sleep_forever)

    with pytest.raises(AssertionError, match="1 tasks are left"):
        play(leaves)


def test_an_error_that_the_story_does_not_expect_is_found() -> None:
    """An observer that raises, or a tool that fails while it is stopped, is news."""

    async def reports(stage: Stage) -> None:
        agent = await stage.start(ScriptedModel(["one"], default=["more"]))

        def observer(_payload: ak.StatusChanged) -> None:
            raise ZeroDivisionError

        agent.on(ak.StatusChanged, observer)
        stage.send("hello")
        await stage.settle()

    with pytest.raises(ExceptionGroup, match="observers raised"):
        play(reports)


def test_a_scenario_may_fail_like_any_test() -> None:
    """An assertion of the scenario comes out, with the run that it failed in."""

    async def fails(stage: Stage) -> None:
        await story(stage)
        assert not stage.receipts, "it was stopped"

    play(fails)
    with pytest.raises(AssertionError, match="it was stopped"):
        cancel_everywhere(fails, cancel_broadly)


CALL = ak.ToolCall("c1", "look", {})
ASKS = ak.AssistantMessage((CALL,))
RESULTS = ak.ToolResults((ak.ToolResult("c1", "look", ()),))
HELLO = ak.UserMessage("m", (ak.TextBlock("hello"),))


def test_messages_that_providers_accept_pass() -> None:
    """The shape that every request must have."""
    check_messages([HELLO, ASKS, RESULTS, ak.Note("stopped")])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([ASKS], "calls without results"),
        ([ASKS, HELLO, RESULTS], "behind calls"),
        ([RESULTS], "results"),
        ([ASKS, RESULTS, RESULTS], "results"),
        ([ak.AssistantMessage(())], "is empty"),
        ([HELLO, HELLO], "there twice"),
    ],
)
def test_messages_that_providers_refuse_are_refused(
    messages: list[ak.Message], complaint: str
) -> None:
    """An unanswered call or an empty answer breaks a session for good."""
    with pytest.raises(AssertionError, match=complaint):
        check_messages(messages)
