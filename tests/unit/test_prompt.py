"""The system prompt: sections, variables, and who replaces what."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest
import trio
from trio.testing import MockClock

import agentkernel as ak
from agentkernel.testing import ScriptedModel
from tests.race.parts import opened


@pytest.mark.clause("L1c")
def test_an_agents_section_replaces_the_kernels_of_that_name() -> None:
    """In its place; the order is by number, then by when it was first named."""
    kernel = ak.Prompt()
    agent = ak.Prompt(kernel)
    kernel.section("role", "kernel role", order=1)
    kernel.section("rules", "rules", order=2)
    remove = agent.section("role", lambda: "own role", order=3)
    agent.section("first", "first")
    assert [s.text for s in agent.sections()] == ["first", "rules", "own role"]
    remove()
    remove()
    assert [s.text for s in agent.sections()] == ["first", "kernel role", "rules"]


async def test_variables_are_filled_in_and_unknown_ones_left_as_they_stand(
    autojump_clock: MockClock,
) -> None:
    """A value is text: what looks like a variable in it is not filled in again."""
    model = ScriptedModel(["ok"])
    async with opened(model, options=ak.AgentOptions(system="base")) as agent:
        agent.kernel.prompt.variable("who", "kernel")
        agent.prompt.variable("who", "{{ what }}")
        agent.prompt.variable("what", "never")
        agent.prompt.section("a", "I am {{ who }} {{who}} {{ nobody }} {{ 1x }}")
        agent.prompt.section("empty", "")
        agent.prompt.section("b", lambda: "tail \ud83d")
        agent.followup("go")
        await agent.when_idle()
    assert model.requests[0].system == (
        "base\n\nI am {{ what }} {{ what }} {{ nobody }} {{ 1x }}\n\ntail \ufffd"
    )


@pytest.mark.clause("T1a", "L1a")
async def test_a_listener_of_the_assembly_sees_sections_and_may_change_them(
    autojump_clock: MockClock,
) -> None:
    """What it hands on is what the default assembly joins."""
    model = ScriptedModel(["ok"])
    async with opened(model) as agent:
        agent.prompt.section("a", "{{ v }}")
        agent.prompt.variable("v", "old")

        async def listen(
            payload: ak.Assemble, next_: Callable[[ak.Assemble], Awaitable[str]]
        ) -> str:
            await trio.lowlevel.checkpoint()
            assert payload.signal is not None
            assert [s.name for s in payload.sections] == ["a"]
            changed = msgspec.structs.replace(
                payload,
                sections=(*payload.sections, ak.Section("b", "more")),
                variables={"v": "new"},
            )
            text = await next_(changed)
            return f"<{text}>"

        agent.on(ak.Assemble, listen)
        agent.followup("go")
        await agent.when_idle()
    assert model.requests[0].system == "<new\n\nmore>"


@pytest.mark.clause("L1c")
def test_a_child_copies_its_parents_prompt() -> None:
    """Later changes of the parent do not reach it."""
    kernel = ak.Prompt()
    parent, child = ak.Prompt(kernel), ak.Prompt(kernel)
    parent.section("a", "parent {{ v }}")
    parent.variable("v", "1")
    child.section("b", "own")
    child.adopt(parent)
    parent.section("a", "changed")
    parent.variable("v", "2")
    assert {s.name: s.text for s in child.sections()} == {
        "a": "parent {{ v }}",
        "b": "own",
    }
    assert child.variables() == {"v": "1"}
