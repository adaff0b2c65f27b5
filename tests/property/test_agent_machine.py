"""Arbitrary interleavings of all verbs, against the reference model."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from agentkernel.testing.machine import AgentMachine

pytestmark = pytest.mark.clause(
    "C5a", "C6b", "C6d", "C7a", "C7b", "C7c", "C8a", "C8c", "C12a", "C12b", "C13c",
    "I2a", "I2b", "I3a", "I3b", "I3c", "I4a", "I4b", "I4c", "T9",
)  # fmt: skip


class Machine(AgentMachine):
    """One agent, without anything of an application's."""


Machine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAgent = Machine.TestCase


class LongMachine(AgentMachine):
    """The same, for minutes."""


LongMachine.TestCase.settings = settings(Machine.TestCase.settings, max_examples=1500)
TestAgentAtLength = pytest.mark.long(LongMachine.TestCase)
