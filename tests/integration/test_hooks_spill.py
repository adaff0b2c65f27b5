"""Long texts of hooks: a preview and a file, or a cut that says so."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import trio
import trio.testing

from agentkernel.bridges.hooks import Verdict
from agentkernel.bridges.hooks.spill import MAX_CHARS, PREVIEW_CHARS, Spill


def wordy(text: str) -> Verdict:
    """A verdict that says one thing everywhere."""
    return Verdict(
        "blocked",
        "deny",
        text,
        stop=text,
        updated_output=text,
        texts=("short", text),
        messages=(text,),
    )


def said(verdict: Verdict) -> set[str | None]:
    return {
        verdict.reason,
        verdict.stop,
        verdict.updated_output,
        *verdict.texts[1:],
        *verdict.messages,
    }


def files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_a_long_text_goes_to_a_file_and_a_preview_names_it(
    tmp_path: Path,
) -> None:
    """Every text of a verdict is bounded; what is said twice is kept once."""
    text = "é" * MAX_CHARS + "\U0001f600\r\n\ud83d"
    verdict = await Spill(tmp_path / "a" / "b").fitted(wordy(text))
    (path,) = files(tmp_path / "a" / "b")
    assert path.read_bytes().decode() == text.replace("\ud83d", "?")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (short,) = said(verdict)
    assert short is not None
    assert short.startswith("é" * PREVIEW_CHARS + "\n[")
    assert f"{len(text)} characters in all" in short
    assert str(path) in short
    assert len(short) < MAX_CHARS
    assert verdict.texts[0] == "short"
    assert (verdict.outcome, verdict.choice) == ("blocked", "deny")


async def test_without_a_folder_a_long_text_is_cut_and_says_how_much() -> None:
    (short,) = said(await Spill(None).fitted(wordy("x" * 12_000)))
    assert short == f"{'x' * MAX_CHARS}\n[... 2000 characters left out ...]"


@pytest.mark.parametrize("length", [0, MAX_CHARS])
async def test_what_is_no_longer_than_the_limit_is_passed_on(
    tmp_path: Path, length: int
) -> None:
    verdict = wordy("x" * length)
    with trio.testing.assert_no_checkpoints():
        assert await Spill(tmp_path).fitted(verdict) is verdict
    assert not files(tmp_path)


async def test_a_folder_that_cannot_be_written_leaves_a_cut(tmp_path: Path) -> None:
    """The bound holds whatever the disk does, and the text says why it is short."""
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    (short,) = said(await Spill(in_the_way).fitted(wordy("x" * 12_000)))
    assert short is not None
    assert len(short) < MAX_CHARS + 200
    assert "2000 characters left out" in short
    assert "could not be kept: File exists" in short


async def test_a_stop_begins_no_file(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await Spill(tmp_path).fitted(wordy("x" * 12_000))
    assert scope.cancelled_caught
    assert not files(tmp_path)
