"""What `agentkernel.testing.machine` finds, and what it is made of."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import pytest
import trio
from hypothesis import Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

import agentkernel as ak
from agentkernel.testing import Host, call, check_model
from agentkernel.testing.machine import AgentMachine, World

# What a fault needs to be found; the example need not be the smallest.
QUICK = settings(
    max_examples=200,
    stateful_step_count=20,
    deadline=None,
    database=None,
    phases=[Phase.generate],
)


class Nagging(AgentMachine):
    """Somebody sends a message that nobody knows of."""

    @rule()
    def nag(self) -> None:
        self.agent.inject("are you done?")


class Meddling(AgentMachine):
    """Somebody stops the agent behind the machine's back."""

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        kernel.on(ak.TurnStopping, self.meddle)

    async def meddle(self, payload: ak.TurnStopping) -> None:
        await trio.lowlevel.checkpoint()
        payload.agent.cancel()


class Holding(AgentMachine):
    """A tool leaves something behind when it is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.rooms = 0

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        kernel.on(ak.Appended, self.appended)

    def appended(self, payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.ToolCalled):
            self.rooms += 1
        elif isinstance(fact, ak.ToolReturned) and fact.error is None:
            self.rooms -= 1

    @rule()
    def look(self) -> None:
        self.lead((call("look"),))

    def check_settled(self) -> None:
        super().check_settled()
        assert self.agent.status == "running" or not self.rooms, "rooms are held"


class Forgetful(AgentMachine):
    """Every resume adds a fact, as if the one before had not."""

    def revive(self, kernel: ak.Kernel) -> None:
        super().revive(kernel)
        kernel.on(
            ak.SessionStarted,
            lambda payload: payload.agent.session.append(ak.Extension("again", {})),
        )


@pytest.mark.parametrize(
    ("machine", "complaint"),
    [
        (Nagging, "nobody was to send"),
        (Meddling, "nobody was to stop it"),
        (Holding, "rooms are held"),
        (Forgetful, "a second resume has nothing to add"),
    ],
)
def test_a_machine_finds_what_must_not_happen(
    machine: type[AgentMachine], complaint: str
) -> None:
    """Each of these keeps every rule of the kernel but one of its application's."""
    with pytest.raises(AssertionError, match=complaint):
        run_state_machine_as_test(machine, settings=QUICK)


def test_a_host_lets_one_pass_go_by_and_the_clock_jump() -> None:
    """A task is exactly as far as the passes carried it."""
    host = Host()
    seen: list[int] = []

    async def count() -> None:
        for number in range(5):
            seen.append(number)
            await trio.lowlevel.checkpoint()
        await trio.sleep(3600)
        seen.append(99)

    host.start(count)
    host.tick()
    host.tick()
    assert 0 < len(seen) < 5
    host.settle()
    assert seen == [0, 1, 2, 3, 4]
    host.run(partial(trio.sleep, 3601))
    assert seen[-1] == 99
    host.close()


def test_a_host_shows_what_its_tasks_raise() -> None:
    """What is run raises in the host; what was started ends the run."""
    host = Host()

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        host.run(fail)
    host.start(fail)
    with pytest.RaisesGroup(ValueError):
        host.run(trio.sleep_forever)
    with pytest.raises(RuntimeError, match="has ended"):
        host.settle()
    host.close()


async def test_a_world_is_a_model_like_any_other() -> None:
    """It keeps the port's promises once nobody waits any more."""
    world = World()
    world.close()
    await check_model(lambda: world)


def test_without_hypothesis_only_the_machine_is_missing() -> None:
    """It says what to install; the rest needs nothing more than the kernel does."""
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import agentkernel.testing\n"
        "try:\n"
        "    import agentkernel.testing.machine\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'hypothesis'\n"
        "    assert 'trio-agentkernel[testing]' in str(error)\n"
        "else:\n"
        "    raise SystemExit('it was imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
