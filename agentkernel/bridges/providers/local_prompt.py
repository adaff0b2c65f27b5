"""What an embedded model is asked, and what it may answer: pure functions.

`agentkernel.bridges.providers.local` runs the engine; here a `ModelRequest` becomes
the engine's request. Two things are particular to small models.

An answer is either plain text or one call, written as a JSON object of the form
`{"tool": name, "args": {...}}`. The engine samples under a grammar, so a call is
always whole, names a tool that exists and has arguments of the right types; text
never begins with a brace. The first character tells which of the two has come.

With *guidance* the words of the user's message decide when a tool is called, since a
model of a hundred million parameters does not: a tool whose name is mentioned is
called, once, before the model may answer in text, and arguments that name a path, a
pattern or a quoted phrase are copied from the message rather than made up. Without
guidance the model is told of every tool and chooses freely.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from agentkernel import (
    AssistantMessage,
    BinaryBlock,
    JsonObject,
    JsonValue,
    Message,
    Note,
    TextBlock,
    ToolCall,
    ToolResults,
    ToolSpec,
    UserMessage,
)
from agentkernel.abc import ModelRequest

__all__ = ["Asked", "ask"]

_SYSTEM = "You are a helpful assistant. Answer in plain English."

_HOW_TO_CALL = (
    'To use a tool, answer with nothing but {"tool": name, "args": {...}}. '
    "Otherwise answer in text. The tools, with the schema of their arguments:"
)

# Text that cannot be taken for a call, in the engine's own language of grammars. It
# does not begin with a fence or a heading either: a small model says nothing else then.
_TEXT = r"[^{`# \t\n] [^\x00]*"

# Options of a request that the engine knows by the same name.
_OPTIONS = (
    "frequency_penalty",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "repeat_penalty",
    "seed",
    "stop",
    "temperature",
    "top_k",
    "top_p",
)

_PATH_NAMES = frozenset({"dir", "directory", "file", "filename", "folder", "path"})
_WORD_NAMES = frozenset({"needle", "pattern", "query", "regex", "text"})
_QUOTED = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”")
_WORD = re.compile(r"[\w./~*+-]*\w/?")
_FOLDERS = (
    re.compile(r"\b(?:folder|directory|file) ([\w./-]*\w)", re.IGNORECASE),
    re.compile(r"([\w./-]*\w) (?:folder|directory)\b", re.IGNORECASE),
)
_PATH = re.compile(r".*\w[./]\w.*|.+/|\w+_\w+|[A-Z][A-Z0-9]{2,}")
_STOPWORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a all an and are at by code file files find folder for from here i in is it me
        my occurrences of on or please show tell that the then there these this through
        to tool use what where which with word you your
        """,
    )
)


class Asked(msgspec.Struct, frozen=True):
    """One request, as the engine is given it.

    Attributes:
      messages: role and content of each message, in order.
      sampling: the engine's options.
      schema: what a call looks like, None if none is allowed.
      text: whether the model may answer in text.
      plain: whether text is sampled without a grammar.

    """

    messages: tuple[dict[str, str], ...]
    sampling: JsonObject
    schema: JsonObject | None = None
    text: bool = True
    plain: bool = True

    def compose(self, translate: Callable[[JsonObject], str]) -> JsonObject:
        """Write the engine's request; `translate` makes a grammar of a schema."""
        request: dict[str, JsonValue] = {
            **self.sampling,
            "messages": self.messages,
            "return_progress": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if not self.plain:
            request["grammar"] = self._grammar(translate)
        return request

    def _grammar(self, translate: Callable[[JsonObject], str]) -> str:
        """Allow a call, text that is not one, or either.

        The engine's grammars are in one of two languages, depending on its build.
        """
        if self.schema is None:
            return f"root ::= {_TEXT}"
        hints = {"lenient": True, "whitespace_flexible": False}
        grammar = translate({**self.schema, "x-guidance": hints})
        if not self.text:
            return grammar
        if grammar.startswith("%llguidance"):
            either = grammar.replace("start:", "start: call | text\ncall:", 1)
            return f"{either}\ntext: /[^{{`# \\t\\n](.|\\n)*/\n"
        either = re.sub(r"^root ::=", "call ::=", grammar, flags=re.MULTILINE)
        return f"{either}\nroot ::= call | {_TEXT}\n"


def ask(
    request: ModelRequest, *, guided: bool, max_tokens: int, max_result_chars: int
) -> Asked:
    """Turn a request into what the engine is asked. Not a checkpoint."""
    tools = request.tools
    schema: JsonObject | None = None
    if guided:
        calls = _called_for(request)
        schema = _either(calls) if calls else None
    elif tools:
        schema = _either((t.name, t.parameters) for t in tools)
    # The same first message in every request, so that the engine's cache holds it.
    system = request.system or _SYSTEM
    if tools and not guided:
        system = f"{system}\n\n{_describe(tools)}"
    sampling: dict[str, JsonValue] = {
        "max_tokens": max_tokens,
        "seed": 1,
        "temperature": 0,
    }
    if schema is None:
        # A toy repeats itself; within a call the penalty would spoil the copying.
        sampling["repeat_penalty"] = 1.1
    sampling |= {k: request.options[k] for k in _OPTIONS if k in request.options}
    return Asked(
        messages=(
            {"role": "system", "content": system},
            *(_render_merged if guided else _render)(
                request.messages, max_result_chars
            ),
        ),
        sampling=sampling,
        schema=schema,
        text=schema is None or not guided,
        plain=not tools,
    )


def _describe(tools: Sequence[ToolSpec]) -> str:
    """Tell a model that chooses for itself what there is, one tool a line."""
    lines = [_HOW_TO_CALL]
    for tool in tools:
        schema = msgspec.json.encode(tool.parameters).decode()
        lines.append(f"- {tool.name}: {tool.description} {schema}")
    return "\n".join(lines)


def _render(messages: Iterable[Message], max_chars: int) -> Iterable[dict[str, str]]:
    """Give each message a role and a text; a message without text is left out."""
    for message in messages:
        if isinstance(message, ToolResults):
            role, parts = "tool", _render_results(message, max_chars)
        elif isinstance(message, AssistantMessage):
            role, parts = "assistant", list(_render_answer(message))
        else:
            role, parts = "user", [_said(message)]
        if content := "\n".join(p for p in parts if p):
            yield {"role": role, "content": content}


def _render_merged(
    messages: Iterable[Message], max_chars: int
) -> Iterable[dict[str, str]]:
    """Put the results of tools before the question that they are to answer.

    A small model answers from the text above a question far better than from a
    transcript of calls. The calls are not shown to it: it cannot plan.
    """
    results: list[str] = []
    said: list[str] = []
    for message in messages:
        if isinstance(message, ToolResults):
            results += _render_results(message, max_chars)
        elif not isinstance(message, AssistantMessage):
            said.append(_said(message))
        elif message.text:
            yield from _user(results, said)
            yield {"role": "assistant", "content": message.text}
            results, said = [], []
    yield from _user(results, said)


def _user(results: list[str], said: list[str]) -> Iterable[dict[str, str]]:
    if content := "\n\n".join(part for part in [*results, *said] if part):
        yield {"role": "user", "content": content}


def _said(message: UserMessage | Note) -> str:
    return message.text if isinstance(message, Note) else _text_of(message.content)


def _render_results(message: ToolResults, max_chars: int) -> list[str]:
    return [
        _cut(
            (f"error: {result.error.message}\n" if result.error else "")
            + _text_of(result.content),
            max_chars,
        )
        for result in message.results
    ]


def _render_answer(message: AssistantMessage) -> Iterable[str]:
    for block in message.content:
        if isinstance(block, TextBlock):
            yield block.text
        elif isinstance(block, ToolCall):
            call = {"tool": block.name, "args": block.arguments}
            yield msgspec.json.encode(call).decode()


def _text_of(content: Iterable[TextBlock | BinaryBlock]) -> str:
    return "\n".join(
        block.text
        if isinstance(block, TextBlock)
        else f"[{block.media_type}, {len(block.data.data)} bytes, not shown]"
        for block in content
    )


def _cut(text: str, max_chars: int) -> str:
    """Keep the beginning of a tool's output: the window is small."""
    if len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}\n[cut: {max_chars} of {len(text)} characters]"


def _either(calls: Iterable[tuple[str, JsonObject]]) -> JsonObject:
    """Describe a call of any one of some tools as a JSON schema."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {"tool": {"const": name}, "args": parameters},
                "required": ["tool", "args"],
                "additionalProperties": False,
            }
            for name, parameters in calls
        ]
    }


def _called_for(request: ModelRequest) -> list[tuple[str, JsonObject]]:
    """Find the tools that the last user message asks for and that are still to run."""
    text, done = _last_said(request.messages)
    places = sorted(
        (found.start(), tool.name, tool)
        for tool in request.tools
        if (found := _mention(tool.name).search(text)) is not None
    )
    calls: list[tuple[str, JsonObject]] = []
    for i, (start, name, tool) in enumerate(places):
        end = places[i + 1][0] if i + 1 < len(places) else len(text)
        if name in done:
            continue
        # What stands behind a tool's name belongs to it: "list lib, then read x.py".
        hear = _mention(name)
        arguments = _fill(tool.parameters, hear.sub(" ", text[start:end]))
        if arguments is None and len(places) == 1:
            arguments = _fill(tool.parameters, hear.sub(" ", text))
        if arguments is not None:
            calls.append((name, arguments))
    return calls


def _mention(name: str) -> re.Pattern[str]:
    """Match the name of a tool, or its first word: `read_file` hears to "read"."""
    verb = re.split(r"[_\W]", name, maxsplit=1)[0] or name
    return re.compile(
        rf"\b(?:{re.escape(name)}|{re.escape(verb)})(?:e?s)?\b", re.IGNORECASE
    )


def _last_said(messages: Sequence[Message]) -> tuple[str, frozenset[str]]:
    """The user's last words, and the tools that were called since."""
    called: set[str] = set()
    said: list[str] = []
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            said.append(message.text)
        elif said and not isinstance(message, Note):
            break
        elif isinstance(message, AssistantMessage):
            called.update(call.name for call in message.calls)
    return "\n".join(reversed(said)), frozenset(called)


def _fill(parameters: JsonObject, text: str) -> JsonObject | None:
    """Narrow a tool's schema to what the text offers; None if it lacks something."""
    properties, required = parameters.get("properties"), parameters.get("required")
    names = tuple(required) if isinstance(required, Sequence) else ()
    if not isinstance(properties, Mapping):
        return parameters
    narrowed: dict[str, JsonValue] = {}
    for name, schema in properties.items():
        if not isinstance(schema, Mapping):
            continue
        values = _values(name, schema, text)
        if values:
            narrowed[name] = {"enum": values}
        elif name in names:
            if values is not None:
                return None
            narrowed[name] = schema
    return {
        **{k: v for k, v in parameters.items() if k.startswith("$")},
        "type": "object",
        "properties": narrowed,
        "required": list(narrowed),
        "additionalProperties": False,
    }


def _values(name: str, schema: JsonObject, text: str) -> list[str] | None:
    """What a string argument may be copied from; None if the model makes it up."""
    if schema.get("type") != "string" or "enum" in schema or "const" in schema:
        return None
    words = [w for w in _WORD.findall(text) if w.lower() not in _STOPWORDS]
    quoted = _first_groups(_QUOTED, text)
    if name in _PATH_NAMES:
        named = [w for pattern in _FOLDERS for w in _first_groups(pattern, text)]
        paths = [w for w in words if _PATH.fullmatch(w)]
        paths += [w for w in named if w.lower() not in _STOPWORDS]
        if not paths and re.search(r"\bhere\b", text, re.IGNORECASE):
            paths = ["."]
        return list(dict.fromkeys(paths))
    if quoted:
        return list(dict.fromkeys(quoted))
    if name in _WORD_NAMES:
        return list(dict.fromkeys(words))
    return None


def _first_groups(pattern: re.Pattern[str], text: str) -> list[str]:
    """For each match, the group that took part in it."""
    return [str(match[match.lastindex or 0]) for match in pattern.finditer(text)]
