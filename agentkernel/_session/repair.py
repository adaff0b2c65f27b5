"""The facts that close what a turn left open, as a pure function of the fold.

Two moments need them: a live turn that is stopped or fails, and a session found
with an open turn after a crash. Both keep the text that was streamed, answer every
call, close the step and put claimed input back; they differ in what they say of
calls, since the live side knows what a crash hides. `turn/end` itself is not made
here for a live turn: the loop appends it in one act with its last check.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._messages import (
    AssistantMessage,
    ReasoningBlock,
    ReasoningChunk,
    ReasoningEndChunk,
    TextBlock,
    TextChunk,
    ToolCall,
    ToolFailure,
    ToolResult,
    Usage,
)
from .events import (
    ApprovalDecided,
    AssistantReplied,
    Ending,
    Fact,
    HookReturned,
    InboxSpliced,
    Queue,
    SessionEvent,
    SessionHeader,
    StepEnded,
    StreamedChunk,
    SubagentDescribed,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from .fold import Fold, add_usage

__all__ = [
    "ABORTED",
    "ABORTED_BEFORE_DISPATCH",
    "MAX_STEPS",
    "TOOL_NOT_STARTED",
    "TOOL_OUTCOME_UNKNOWN",
    "closing_facts",
    "discard_facts",
    "failed_result",
    "last_ending",
    "lost_children",
    "merge_blocks",
    "merge_chunks",
    "repair_facts",
    "return_claimed",
    "visible",
]

ABORTED = ToolFailure(
    "ABORTED", "The call was stopped while it ran; part of its work may be done."
)
ABORTED_BEFORE_DISPATCH = ToolFailure(
    "ABORTED_BEFORE_DISPATCH", "The turn was stopped before this call was started."
)
MAX_STEPS = ToolFailure(
    "MAX_STEPS", "Not executed: the turn reached its limit of steps."
)
TOOL_NOT_STARTED = ToolFailure(
    "TOOL_NOT_STARTED", "The program ended before this call was started."
)
TOOL_OUTCOME_UNKNOWN = ToolFailure(
    "TOOL_OUTCOME_UNKNOWN",
    "The program ended while this call ran; whether it took effect is unknown.",
)


def repair_facts(fold: Fold) -> list[Fact]:
    """Close what a crash left open; nothing if the log is whole.

    Appending the facts makes the fold whole, so that a second call returns nothing.
    """
    facts = closing_facts(
        fold, started=TOOL_OUTCOME_UNKNOWN, unstarted=TOOL_NOT_STARTED
    )
    facts[:0] = [
        *(ApprovalDecided(key, "interrupted") for key in fold.open_approvals),
        *(
            HookReturned(key, "failed", detail="the program ended while it ran")
            for key in fold.open_hooks
        ),
    ]
    facts += return_claimed(fold)
    if fold.open_turn is not None:
        facts.append(TurnEnded(fold.open_turn, Ending("interrupted")))
    return facts


def lost_children(events: Iterable[SessionEvent]) -> list[SubagentDescribed]:
    """List the children that a log names as started and does not name as ended.

    Where a log is resumed nothing runs any more that ran before. What a fork has
    copied concerns children of its original, and is left alone.

    Args:
      events: the header and the `subagent/descriptor`s of a log, or all of it.

    """
    begun: dict[str, SubagentDescribed] = {}
    for fact in _own(events):
        if isinstance(fact, SubagentDescribed):
            if fact.ending is None:
                begun[fact.child] = fact
            else:
                begun.pop(fact.child, None)
    return list(begun.values())


def last_ending(events: Iterable[SessionEvent]) -> Ending:
    """Say how an agent's own last turn ended; cut off, if it did not."""
    ending: Ending | None = None
    for fact in _own(events):
        if isinstance(fact, TurnStarted | TurnEnded):
            ending = fact.reason if isinstance(fact, TurnEnded) else None
    return ending or Ending("interrupted")


def _own(events: Iterable[SessionEvent]) -> Iterator[Fact]:
    """Yield what is not copied from the original of a fork."""
    copied = 0
    for event in events:
        if isinstance(event.data, SessionHeader):
            copied = event.data.lineage.forked_at or 0
        elif event.seq > copied:
            yield event.data


def closing_facts(
    fold: Fold,
    *,
    started: ToolFailure,
    unstarted: ToolFailure,
    usage: Usage | None = None,
) -> list[Fact]:
    """Close the open step: keep partial text, answer open calls, end the step.

    Args:
      fold: the session as it is; it is not changed.
      started: what to say of a call whose body may have run.
      unstarted: what to say of a call whose body has not.
      usage: what is known of the open attempt's tokens.

    """
    facts: list[Fact] = []
    turn, step = fold.open_turn, fold.open_step
    if turn is not None and step is not None and fold.chunks:
        message = merge_chunks(fold.chunks)
        if visible(message):
            facts.append(
                AssistantReplied(turn, step, message, usage=usage, interrupted=True)
            )
    for open_call in fold.open_calls.values():
        failure = started if open_call.started else unstarted
        facts.append(
            failed_result(open_call.turn, open_call.step, open_call.call, failure)
        )
    if turn is not None and step is not None:
        total = add_usage(fold.step_usage, usage)
        facts.append(StepEnded(turn, step, usage=total))
    return facts


def return_claimed(fold: Fold) -> list[Fact]:
    """Put claimed input that entered no step back to the front of its queue."""
    facts: list[Fact] = []
    if not fold.inbox.claimed:
        return facts
    queues: tuple[Queue, ...] = ("next_step", "next_turn")
    for queue in queues:
        back = tuple(m for q, m in fold.inbox.claimed.values() if q == queue)
        if back:
            facts.append(InboxSpliced(queue, inserted=back, outcome="returned"))
    return facts


def discard_facts(fold: Fold) -> list[Fact]:
    """Discard all pending and claimed input, as a fork does with its source's."""
    queues: tuple[Queue, ...] = ("next_step", "next_turn")
    facts: list[Fact] = []
    for queue in queues:
        ids = [m.id for q, m in fold.inbox.claimed.values() if q == queue]
        ids += [m.id for m in fold.inbox.queue(queue)]
        if ids:
            facts.append(InboxSpliced(queue, removed=tuple(ids), outcome="discarded"))
    return facts


def failed_result(
    turn: int, step: int, call: ToolCall, failure: ToolFailure
) -> ToolReturned:
    """Make the result of a call that did not give one itself."""
    message = ToolResult(
        call.call_id, call.name, (TextBlock(failure.message),), error=failure
    )
    return ToolReturned(turn, step, call.call_id, message, error=failure)


def merge_chunks(chunks: Iterable[StreamedChunk]) -> AssistantMessage:
    """Make a cut-off message of streamed chunks: all that was shown, and no calls."""
    return AssistantMessage(merge_blocks(chunks), interrupted=True)


def merge_blocks(
    chunks: Iterable[StreamedChunk],
) -> tuple[TextBlock | ReasoningBlock, ...]:
    """Make one block of each run of adjacent chunks of one kind.

    A reasoning block is sealed only by its own end chunk; one that was cut stays
    without a signature.
    """
    blocks: list[TextBlock | ReasoningBlock] = []
    run: list[str] = []
    kind: type[TextChunk | ReasoningChunk] | None = None
    for chunk in chunks:
        if not isinstance(chunk, ReasoningEndChunk):
            if kind is not type(chunk):
                _close(blocks, kind, run)
                kind, run = type(chunk), []
            run.append(chunk.text)
            continue
        seal = {"signature": chunk.signature, "data": chunk.data}
        if kind is ReasoningChunk:
            blocks.append(ReasoningBlock("".join(run), **seal))
        else:
            _close(blocks, kind, run)
            if chunk != ReasoningEndChunk():
                blocks.append(ReasoningBlock("", **seal))
        kind, run = None, []
    _close(blocks, kind, run)
    return tuple(blocks)


def _close(
    blocks: list[TextBlock | ReasoningBlock],
    kind: type[TextChunk | ReasoningChunk] | None,
    run: list[str],
) -> None:
    """Append the block of a run that no end chunk has sealed, if it says anything."""
    if kind is ReasoningChunk:
        blocks.append(ReasoningBlock("".join(run)))
    elif text := "".join(run):
        blocks.append(TextBlock(text))


def visible(message: AssistantMessage) -> bool:
    """Whether a reader saw anything of it: blank text alone does not count."""
    return any(
        isinstance(block, ToolCall) or (block.text and not block.text.isspace())
        for block in message.content
    )
