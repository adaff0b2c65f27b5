"""The pure parts of the command line: cleaned text, keys, lines, and its manual."""

from __future__ import annotations

import argparse
import json
import re
from typing import cast

import pytest
from hypothesis import given, strategies as st

from agentkernel.cli.editor import Key, KeyDecoder, Line
from agentkernel.cli.exits import Exit
from agentkernel.cli.plain import Plain, escape_json, fit, one_line, plain, width
from agentkernel.cli.settings import build_parser
from agentkernel.cli.transcript import describe_call
from tests.integration.cli_terminal import ROOT

HOSTILE = st.text(
    st.one_of(st.sampled_from("\x1b[]?;0m\x07\x9b\u202e\n\t \r\x7f"), st.characters())
)


@given(st.lists(HOSTILE))
def test_cleaned_text_holds_no_control(pieces: list[str]) -> None:
    """However it is cut: a sequence may begin in one piece and end in the next."""
    cleaner = Plain()
    shown = "".join(cleaner.feed(piece) for piece in pieces) + cleaner.end()
    assert not [
        c for c in shown if c not in "\n\t" and (c < " " or "\x7f" <= c < "\xa0")
    ]
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )


@given(st.text(st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
def test_harmless_text_is_left_as_it_is(text: str) -> None:
    assert plain(text) == text


@pytest.mark.parametrize("cut", range(1, 9))
def test_sequence_in_two_pieces_is_removed_whole(cut: int) -> None:
    """Colour codes of a tool disappear wherever the stream was cut."""
    text, cleaner = "a\x1b[1;31mb", Plain()
    assert cleaner.feed(text[:cut]) + cleaner.feed(text[cut:]) == "ab"


def test_payload_of_a_hostile_sequence_is_shown_and_not_swallowed() -> None:
    """An endless sequence must not hide what follows, such as a shell command."""
    assert plain("\x1b]0;x; rm -rf /") == "]0;x; rm -rf /"


@given(HOSTILE)
def test_escaped_json_means_the_same(text: str) -> None:
    line = json.dumps(text, ensure_ascii=False)
    assert json.loads(escape_json(line)) == text


def test_line_fits_by_its_end() -> None:
    """Wide characters take two columns; what was typed last stays in view."""
    assert fit("abcdef", 3) == "def"
    assert fit("ab漢字", 3) == "字"
    assert width("漢e\u0301") == 3
    assert one_line("a\n\n b\x1b[0m", 10) == "a b"
    assert one_line("abcdef", 3) == "abc…"


def test_long_argument_does_not_hide_the_next() -> None:
    """A person approves what they see: what is left out is counted."""
    shown = describe_call("t", {"a": "x" * 500, "b": "rm -rf /"})
    assert '"rm -rf /"' in shown
    assert "more characters)" in shown


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"ab\r", [Key("text", "ab"), Key("enter")]),
        ("é✓".encode(), [Key("text", "é✓")]),
        (b"\x1b[A\x1bOB\x1b[1;5Cx", [Key("text", "x")]),
        (b"\x1bx", [Key("escape"), Key("text", "x")]),
        (b"\x1b\x1b", [Key("escape")]),
        (b"\x1b[200~a\rb\x1b[31m\x1b[201~\r", [Key("text", "a\nb"), Key("enter")]),
        (
            b"\x7f\x15\x17\x04\x03",
            [Key("backspace"), Key("kill"), Key("word"), Key("end"), Key("stop")],
        ),
        (b"a\x01b", [Key("text", "a"), Key("text", "b")]),
    ],
)
def test_bytes_are_read_as_keys(data: bytes, keys: list[Key]) -> None:
    """The same, however the terminal's bytes are cut into reads."""
    whole = KeyDecoder()
    assert whole.feed(data) == keys
    split = KeyDecoder()
    found = [key for byte in data for key in split.feed(bytes([byte]))]
    assert "".join(k.text for k in found) == "".join(k.text for k in keys)
    assert [k.kind for k in found if k.kind != "text"] == [
        k.kind for k in keys if k.kind != "text"
    ]


def test_lone_escape_is_one_only_after_a_moment() -> None:
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b") == []
    assert decoder.waits
    assert decoder.expire() == [Key("escape")]
    assert not decoder.waits


def test_paste_without_its_end_is_no_escape() -> None:
    """A long paste comes in several reads: its beginning must not stop a turn."""
    decoder = KeyDecoder()
    assert decoder.feed(b"\x1b[200~half") == []
    assert not decoder.waits
    assert decoder.feed(b" a line\x1b[201~") == [Key("text", "half a line")]


def test_line_is_edited_at_its_end() -> None:
    line = Line()
    for key in (Key("text", "one two "), Key("word"), Key("text", "2x")):
        line.press(key)
    line.press(Key("backspace"))
    assert line.take() == "one 2"
    line.press(Key("text", "gone"))
    line.press(Key("kill"))
    assert line.take() == ""


def helps() -> dict[str, str]:
    """Each command with the help that it prints."""
    found: dict[str, str] = {}

    def visit(name: str, parser: argparse.ArgumentParser) -> None:
        found[name] = parser.format_help()
        for action in parser._actions:
            choices = cast("object", action.choices)
            if isinstance(choices, dict):
                children = cast("dict[str, argparse.ArgumentParser]", choices)
                for word, child in children.items():
                    visit(f"{name} {word}", child)

    visit("agentkernel", build_parser())
    return found


def test_manual_holds_the_help_of_every_command() -> None:
    """docs/cli.md is what the program says, so it cannot go out of date."""
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    documented = {
        match[1]: match[2]
        for match in re.finditer(
            r"```console\n\$ (agentkernel[\w ]*) --help\n(.*?)```", text, re.DOTALL
        )
    }
    wanted = helps()
    for name in ("list", "show", "export"):  # nothing but --store and a session
        del wanted[f"agentkernel sessions {name}"]
    assert documented == wanted


def test_manual_names_every_exit_code() -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert listed == {*map(int, Exit)}
