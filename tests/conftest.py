"""Fixtures for the whole suite: an agent in memory, with a model that follows a script."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import HealthCheck, settings

import agentkernel as ak
from agentkernel.testing import ScriptedModel

# No example fails for being slow: the machine may be busy. The same examples for
# everybody; others are tried with `--hypothesis-profile=explore`.
settings.register_profile(
    "explore", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("steady", settings.get_profile("explore"), derandomize=True)
settings.load_profile("steady")


@pytest.fixture
def model() -> ScriptedModel:
    """A model that answers `ok` once its scripts are used up."""
    return ScriptedModel(default=["ok"])


@pytest.fixture
async def kernel(model: ScriptedModel) -> AsyncIterator[ak.Kernel]:
    """A kernel over a store in memory, strict about its observers."""
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("scripted", model)
        yield kernel


@pytest.fixture
async def agent(kernel: ak.Kernel) -> ak.Agent:
    """An idle agent of that kernel, with the scripted model."""
    handle = await kernel.create("s", model="scripted")
    return handle.agent
