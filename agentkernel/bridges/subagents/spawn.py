"""Children of agents, bounded: how deep, how many at once, who they may be.

`Subagents` is the policy, shared by any number of agents; `agent_tool` shows it to a
model. A child may have children itself as long as the depth allows it: the limit of
live children counts for each agent, so that a child never waits for a place that its
own parent holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypedDict, Unpack, final
from weakref import WeakKeyDictionary

import msgspec
import trio

import agentkernel as ak

from .child import Task, run_child
from .schema import AnswerSchema, SchemaLike
from .values import ChildRefusedError, Persona, Report, as_output

__all__ = ["MAX_DEPTH", "AgentTool", "ChildOptions", "Subagents", "agent_tool"]

# How deep a tree may get at most: a stop goes down the whole of it in one call.
MAX_DEPTH: Final = 50

_DESCRIPTION: Final = (
    "Have another agent do a task and wait for its report. It starts with no knowledge "
    "of this conversation unless it is said to share it: put everything it needs into "
    "the prompt. Several calls in one step run side by side."
)


class ChildOptions(TypedDict, total=False):
    """What else can be said when a child is asked for.

    Attributes:
      persona: who it is; the first persona by default.
      schema: what its answer has to fit, as a type, as a JSON schema, or read already;
        text by default.
      signal: of the turn that waits for it, so that a stop of that turn reaches it.
      call_id: the call that asked for it.
      description: a few words for people.
      detached: whether it goes on without the turn that started it.
      tools: tools of its own, beside those of its parent.
      on_open: called with the child before it is told anything.

    """

    persona: Persona | str
    schema: SchemaLike | AnswerSchema | None
    signal: ak.TurnSignal | None
    call_id: str | None
    description: str | None
    detached: bool
    tools: tuple[ak.Tool, ...]
    on_open: Callable[[ak.Agent], object] | None


@final
class Subagents:
    """Who may have which children. Belongs to one Trio run.

    Attributes:
      personas: who a child may be, by name; the first one is the default.
      max_depth: how deep the tree may get, at most `MAX_DEPTH`; an agent that nobody
        started has depth 0.
      max_children: how many children an agent may wait for at once; more wait for a
        place. Detached ones are bounded by whoever starts them.
      tool_name: what the tool is called that a model is given. A child is shown no
        tool of this kind that would refuse every call of it, for its depth.

    """

    def __init__(
        self,
        personas: Iterable[Persona] = (),
        *,
        max_depth: int = 3,
        max_children: int = 10,
        tool_name: str = "agent",
    ) -> None:
        """Set the limits.

        Raises:
          ValueError: if a limit is less than 1, the depth is more than `MAX_DEPTH`, or
            two personas have one name.

        """
        listed = tuple(personas) or (Persona(),)
        self.personas: dict[str, Persona] = {
            persona.name: persona for persona in listed
        }
        if len(self.personas) < len(listed):
            raise ValueError("two personas have the same name")
        if max_depth < 1 or max_children < 1:
            raise ValueError("max_depth and max_children must be at least 1")
        if max_depth > MAX_DEPTH:
            raise ValueError(f"max_depth must be at most {MAX_DEPTH}")
        self.max_depth = max_depth
        self.max_children = max_children
        self.tool_name = tool_name
        self._slots: WeakKeyDictionary[ak.Agent, trio.Semaphore] = WeakKeyDictionary()

    async def run(
        self, parent: ak.Agent, prompt: str, **options: Unpack[ChildOptions]
    ) -> Report:
        """Have a child of an agent do a task, and wait for its report.

        Waits for a place if the parent waits for as many children as it may. The child
        is gone when this returns; its session stays in the store.

        Always a checkpoint.

        Cancellation:
          A child that waits for its place never starts. One that runs is cancelled as
          `PARENT`, and waited for; then the cancellation passes through.

        Raises:
          ChildRefusedError: if the child would be too deep, nobody knows its persona,
            or that is to have tools that the parent has not.
          ValueError, TypeError, ImportError: if the schema cannot be used, as
            `AnswerSchema`.
          AgentDisposedError, KernelClosedError, StorageError: if the child cannot be
            opened.
          TurnCancelled: if the signal had fired before the child began.

        """
        persona = self._persona(options.get("persona"))
        depth = parent.session.header.lineage.depth + 1
        if depth > self.max_depth:
            raise ChildRefusedError(
                f"an agent of depth {depth} is too deep: the limit is {self.max_depth}"
            )
        like = options.get("schema")
        task = Task(
            prompt,
            persona,
            _read(like),
            signal=options.get("signal"),
            call_id=options.get("call_id"),
            description=options.get("description"),
            detached=options.get("detached", False),
            hidden=self._hidden(parent, depth),
            tools=options.get("tools", ()),
            on_open=options.get("on_open"),
        )
        if task.detached:
            return await run_child(parent, task)
        async with self._slots_of(parent):
            return await run_child(parent, task)

    def _persona(self, wanted: Persona | str | None) -> Persona:
        if isinstance(wanted, Persona):
            return wanted
        if wanted is None:
            return next(iter(self.personas.values()))
        if wanted not in self.personas:
            known = ", ".join(self.personas)
            raise ChildRefusedError(f"there is no agent {wanted!r}; known: {known}")
        return self.personas[wanted]

    def _hidden(self, parent: ak.Agent, depth: int) -> frozenset[str]:
        """Name the tools for having children that are of no use at a depth."""
        useless = {
            name
            for name, tool in parent.tools.effective().items()
            if isinstance(tool, AgentTool) and tool.subagents.max_depth <= depth
        }
        if depth == self.max_depth:
            useless.add(self.tool_name)
        return frozenset(useless)

    def _slots_of(self, parent: ak.Agent) -> trio.Semaphore:
        slots = self._slots.get(parent)
        if slots is None:
            slots = self._slots[parent] = trio.Semaphore(self.max_children)
        return slots


def _read(like: SchemaLike | AnswerSchema | None) -> AnswerSchema | None:
    if like is None or isinstance(like, AnswerSchema):
        return like
    return AnswerSchema(like)


class _Arguments(msgspec.Struct, forbid_unknown_fields=True):
    prompt: Annotated[str, msgspec.Meta(min_length=1)]
    agent: str | None = None
    description: str | None = None


@final
class AgentTool:
    """The tool by which a model has children; an `agentkernel.Tool`.

    Its calls may overlap, each gets its own child. Made by `agent_tool`.
    """

    parallel_safe = True

    def __init__(
        self,
        subagents: Subagents,
        *,
        schema: SchemaLike | None = None,
        max_seconds: float | None = None,
    ) -> None:
        """Make the tool; see `agent_tool`.

        Raises:
          ValueError, TypeError, ImportError: as `AnswerSchema`.

        """
        self.subagents = subagents
        self.max_seconds = max_seconds
        self._schema = _read(schema)
        personas = subagents.personas
        lines = [f"- {p.name}: {p.description}" for p in personas.values()]
        about = f"{_DESCRIPTION}\n\nAgents:\n" + "\n".join(lines)
        if self._schema is not None:
            encoded = msgspec.json.encode(msgspec.to_builtins(self._schema.schema))
            about += f"\n\nA report is JSON of this schema:\n{encoded.decode()}"
        self.spec: ak.ToolSpec = ak.ToolSpec(
            subagents.tool_name,
            about,
            {
                "type": "object",
                "properties": {
                    "prompt": {"type": "string", "description": "The whole task."},
                    "agent": {"type": "string", "enum": list(personas)},
                    "description": {
                        "type": "string",
                        "description": "The task in a few words.",
                    },
                },
                "required": ["prompt"],
                "additionalProperties": False,
            },
        )

    def check(self, arguments: ak.JsonObject, /) -> ak.JsonObject:
        """Validate the arguments of a call. Not a checkpoint.

        Raises:
          ToolArgumentsError: if they do not fit.

        """
        try:
            given = msgspec.convert(dict(arguments), _Arguments)
        except msgspec.ValidationError as error:
            raise ak.ToolArgumentsError(str(error)) from None
        known = self.subagents.personas
        if given.agent is not None and given.agent not in known:
            raise ak.ToolArgumentsError(
                f"there is no agent {given.agent!r}; known: {', '.join(known)}"
            )
        return arguments

    async def run(self, call: ak.ToolInvocation, /) -> ak.ToolOutput:
        """Have a child do the task, and return what it says.

        Always a checkpoint.

        Cancellation:
          Passes through when the child and everything below it has ended.

        Raises:
          ChildRefusedError: if the child would be too deep, or is to have tools that
            its parent has not.
          StorageError: if its session cannot be opened or written.

        """
        given = msgspec.convert(dict(call.arguments), _Arguments)
        options: ChildOptions = {
            "signal": call.signal,
            "call_id": call.call_id,
            "description": given.description,
            "schema": self._schema,
        }
        if given.agent is not None:
            options["persona"] = given.agent
        report = await self.subagents.run(call.agent, given.prompt, **options)
        if self._schema is None or not report.ok:
            return as_output(report, report.text)
        answer = msgspec.json.encode(msgspec.to_builtins(report.answer))
        return as_output(report, answer.decode())


def agent_tool(
    *personas: Persona,
    max_depth: int = 3,
    max_children: int = 10,
    max_seconds: float | None = None,
    name: str = "agent",
    schema: SchemaLike | None = None,
) -> AgentTool:
    """Make the tool by which a model has children.

    Not a checkpoint.

    Args:
      personas: who a child may be; one that is like its parent by default.
      max_depth: how deep the tree may get below an agent that nobody started.
      max_children: how many children an agent may have at once; more wait.
      max_seconds: how long one child may take.
      name: what the model calls the tool.
      schema: what the answer of each child has to fit, a type or a JSON schema; the
        model gets it as JSON. Text by default.

    Raises:
      ValueError: as `Subagents`.
      ValueError, TypeError, ImportError: as `AnswerSchema`.

    """
    subagents = Subagents(
        personas, max_depth=max_depth, max_children=max_children, tool_name=name
    )
    return AgentTool(subagents, schema=schema, max_seconds=max_seconds)
