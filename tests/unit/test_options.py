"""What an agent is opened with: frozen JSON, whoever made it."""

from __future__ import annotations

import pytest

import agentkernel as ak


@pytest.mark.clause("D1a")
def test_options_are_detached_from_the_dictionary_they_were_made_of() -> None:
    """A caller that goes on using it changes neither requests nor the header."""
    given: dict[str, ak.JsonValue] = {"stop": ["a"]}
    options = ak.AgentOptions(model_options=given)
    given["later"] = 1
    assert options.model_options == {"stop": ("a",)}
    with pytest.raises(TypeError):
        options.model_options["x"] = 1  # type: ignore[index]  # pyright: ignore[reportIndexIssue]  # what the types forbid is tried


@pytest.mark.clause("D1a", "D1d")
def test_options_hold_only_what_a_log_can_hold() -> None:
    """Half a surrogate pair is replaced at the door, and what is no JSON refused."""
    assert (
        ak.AgentOptions(system="half \ud83d", model="m\udc00").system == "half \ufffd"
    )
    assert ak.AgentOptions(model="m\udc00").model == "m\ufffd"
    with pytest.raises(TypeError):
        ak.AgentOptions(model_options={"temperature": float("nan")})


@pytest.mark.clause("T1d", "T2b")
@pytest.mark.parametrize("name", ["max_steps", "max_parallel_tool_calls"])
def test_limits_below_one_are_refused(name: str) -> None:
    """An agent that may do nothing would wait for ever."""
    for value in (0, -1):
        with pytest.raises(ValueError, match=name):
            ak.AgentOptions(**{name: value})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what the types forbid is tried


def test_options_of_a_header_come_back_and_unknown_ones_are_left_out() -> None:
    """A later version may have more of them."""
    options = ak.AgentOptions(model="m", max_steps=3, model_options={"a": 1})
    stored = options.as_json()
    assert ak.AgentOptions.from_json(stored) == options
    assert ak.AgentOptions.from_json({**stored, "of_a_later_version": 1}) == options


@pytest.mark.parametrize("wrong", [{"max_steps": "3"}, {"max_steps": 0}, {"model": 1}])
def test_options_of_a_wrong_type_name_the_header(
    wrong: dict[str, ak.JsonValue],
) -> None:
    """A log that somebody edited is refused where it is wrong."""
    with pytest.raises(ak.SessionFormatError) as caught:
        ak.AgentOptions.from_json(wrong)
    assert caught.value.seq == 1
