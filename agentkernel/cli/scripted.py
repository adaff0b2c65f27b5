"""`scripted:FILE`: a model that says what a file says, to test and to show the rest.

No network, no weights. The n-th request of the process gets the n-th answer. An item
of an answer is a text, or an object: `{"call": NAME, "arguments": {...}}`,
`{"sleep": SECONDS}`, `{"error": TEXT, "retryable": bool}`, `{"finish": REASON}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentkernel import FinishChunk, FinishReason, Model, ModelError, ToolCallChunk
from agentkernel.testing import ScriptedModel
from agentkernel.testing.models import ScriptItem

from .exits import Complaint

__all__ = ["load_script"]


class _Item(msgspec.Struct, forbid_unknown_fields=True):
    call: str = ""
    arguments: msgspec.Raw = msgspec.Raw(b"{}")
    sleep: float = 0.0
    error: str = ""
    retryable: bool = False
    finish: FinishReason | None = None


class _Script(msgspec.Struct, forbid_unknown_fields=True):
    """A file.

    Attributes:
      answers: one for each request.
      default: for the requests behind those; an error if there is none.
      delay: seconds before each word of a text.

    """

    answers: list[list[str | _Item]] = []
    default: list[str | _Item] | None = None
    delay: float = 0.0


def load_script(path: Path) -> Model:
    """Read a file and make its model. Not a checkpoint.

    Raises:
      Complaint: if the file cannot be read or is no script.

    """
    try:
        script = msgspec.json.decode(path.read_bytes(), type=_Script)
    except (OSError, msgspec.DecodeError) as error:
        raise Complaint(f"scripted:{path}: {error}") from None
    answers = [[*_play(answer, script.delay)] for answer in script.answers]
    if script.default is None:
        return ScriptedModel(*answers)
    return ScriptedModel(*answers, default=[*_play(script.default, script.delay)])


def _play(answer: list[str | _Item], delay: float) -> Iterator[ScriptItem]:
    for item in answer:
        if isinstance(item, str):
            for word in (
                re.findall(r"\s*\S+\s*\Z|\s*\S+|\s+", item) if delay else [item]
            ):
                if delay:
                    yield delay
                yield word
        elif item.call:
            yield ToolCallChunk(item.call, bytes(item.arguments).decode())
        elif item.error:
            yield ModelError(item.error, retryable=item.retryable)
        elif item.finish is not None:
            yield FinishChunk(item.finish)
        else:
            yield item.sleep
