"""Arbitrary interleavings of all verbs with everything that a turn can wait on."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from agentkernel.testing.machine import AgentMachine
from tests.property.machines import (
    WithApprovals,
    WithChildren,
    WithHooks,
    WithJobs,
    WithWorkflow,
)

pytestmark = pytest.mark.clause("I6", "L3", "S3b", "S4", "T3c", "T7b")

# It says what it has found at once: the search for a smaller example takes minutes,
# and is the long run's.
DAILY = settings(
    max_examples=30,
    phases=[Phase.reuse, Phase.generate],
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
LONG = settings(DAILY, max_examples=600, phases=[*DAILY.phases, Phase.shrink])


class Parents(WithApprovals, WithChildren):
    """Children with children; all of them ask."""


class Owners(WithJobs, WithChildren):
    """Jobs, some of them children, beside children that are waited for."""


class Studies(WithApprovals, WithWorkflow):
    """Workflows of six agents in two phases, which ask."""


class Everything(WithApprovals, WithHooks, WithJobs, WithWorkflow):
    """All of it at once."""


MACHINES = (WithApprovals, WithHooks, Parents, Owners, Studies, Everything)


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_turn_waits_on_comes_to_one_end_in_any_order(
    machine: type[AgentMachine],
) -> None:
    """Nothing stays open, nothing happens twice, nothing outlives its turn.

    Whatever is answered, stopped, finished, ended or cut off by a crash in between:
    questions, hooks, children of children, jobs, agents of a workflow.
    """
    run_state_machine_as_test(machine, settings=DAILY)


@pytest.mark.long
@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_turn_waits_on_comes_to_one_end_in_very_many_orders(
    machine: type[AgentMachine],
) -> None:
    """The same, for minutes."""
    run_state_machine_as_test(machine, settings=LONG)
