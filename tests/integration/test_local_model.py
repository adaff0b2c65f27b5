"""The embedded model, with its real engine and real weights.

One model is shared by all tests of this module, since loading it takes half a second;
the answers are a few tokens long. What a small model says is of no interest here: the
tests look at what streams, what stops, what is called, and what is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

import agentkernel as ak
from agentkernel._signal import SignalSource
from agentkernel.abc import ModelRequest
from agentkernel.bridges.providers.local import LocalModel, find_weights
from agentkernel.bridges.providers.local_engine import Engine
from agentkernel.bridges.providers.local_prompt import ask
from agentkernel.bridges.providers.local_reader import Reader
from agentkernel.testing import check_model

STORY = "Tell me a long story about a whale."
WINDOW = 1024


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    local = LocalModel(context=WINDOW, max_tokens=200)
    yield local
    trio.run(local.aclose)


def user(text: str) -> ak.UserMessage:
    return ak.UserMessage("m", (ak.TextBlock(text),))


def tool(name: str, *required: str, **optional: str) -> ak.ToolSpec:
    properties = {
        **{key: {"type": "string"} for key in required},
        **{key: {"type": "string", "default": v} for key, v in optional.items()},
    }
    return ak.ToolSpec(
        name,
        f"The tool {name}.",
        {
            "type": "object",
            "properties": properties,
            "required": list(required),
            "additionalProperties": False,
        },
    )


TOOLS = (
    tool("list", path="."),
    tool("read", "path"),
    tool("write", "path", "content"),
    tool("search", "pattern", path="."),
)


def request(
    *messages: ak.Message | str,
    tools: Sequence[ak.ToolSpec] = (),
    signal: ak.TurnSignal | None = None,
    max_tokens: int = 200,
) -> ModelRequest:
    return ModelRequest(
        "",
        tuple(user(m) if isinstance(m, str) else m for m in messages),
        tuple(tools),
        options={"max_tokens": max_tokens},
        signal=signal,
    )


async def collect(model: LocalModel, asked: ModelRequest) -> list[ak.Chunk]:
    async with model.stream(asked) as stream:
        return [chunk async for chunk in stream]


def text_of(chunks: Sequence[ak.Chunk]) -> str:
    return "".join(c.text for c in chunks if isinstance(c, ak.TextChunk))


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def is_computing() -> bool:
    return any(t.name == "local-model" for t in threading.enumerate())


async def assert_answers(model: LocalModel) -> None:
    """The model takes a request at once, and nothing of another is in the answer."""
    with trio.fail_after(30):
        chunks = await collect(model, request("Say hello.", max_tokens=4))
    assert chunks[-2:-1] == [ak.FinishChunk("max-tokens")]
    assert text_of(chunks)


async def test_text_streams_while_the_engine_still_computes(model: LocalModel) -> None:
    """A reader sees the first words long before the last are made.

    It stops reading at the third piece of text; the engine is at work then, and is not
    any more once the stream has been left.
    """
    pieces: list[str] = []
    async with model.stream(request(STORY)) as stream:
        async for chunk in stream:
            if isinstance(chunk, ak.TextChunk):
                pieces.append(chunk.text)
            if len(pieces) == 3:
                break
        assert is_computing()
    assert all(pieces)
    assert not is_computing()


async def test_an_answer_ends_with_why_it_ended_and_what_it_cost(
    model: LocalModel,
) -> None:
    """Usage is the engine's own count; the input is known before the text begins."""
    chunks = await collect(model, request("Say hello.", max_tokens=5))
    first, finish, last = chunks[0], chunks[-2], chunks[-1]
    assert finish == ak.FinishChunk("max-tokens")
    assert isinstance(first, ak.UsageChunk)
    assert isinstance(last, ak.UsageChunk)
    assert last.usage.output_tokens == 5
    assert first.usage.input_tokens == last.usage.input_tokens
    assert first.usage.output_tokens is None


@pytest.mark.clause("C11b")
async def test_a_cancel_in_mid_sentence_joins_the_thread_and_frees_the_model(
    model: LocalModel,
) -> None:
    """The stop of a turn cancels the scope around the stream: nothing may go on."""
    heard = ""
    with trio.CancelScope() as scope:
        async with model.stream(request(STORY)) as stream:
            async for chunk in stream:
                heard += chunk.text if isinstance(chunk, ak.TextChunk) else ""
                if len(heard) > 10:
                    scope.cancel()
    assert scope.cancelled_caught
    assert len(heard) > 10
    assert not is_computing()
    await assert_answers(model)


async def test_what_comes_after_a_stop_is_never_computed(model: LocalModel) -> None:
    """Joining a thread that finishes its answer would look the same, only late.

    The engine's cache tells what it computed. The same answer is given three times:
    whole, so that its words are known; stopped after a few words; and as history of a
    further request, which finds only those few words in the cache.
    """
    whole = await collect(model, request(STORY, max_tokens=80))
    said = ak.AssistantMessage((ak.TextBlock(text_of(whole)),))
    seen = 0
    async with model.stream(request(STORY, max_tokens=80)) as stream:
        async for chunk in stream:
            seen += isinstance(chunk, ak.TextChunk)
            if seen == 3:
                break
    after = await collect(model, request(STORY, said, "Go on.", max_tokens=1))
    first, last = whole[-1], after[-1]
    assert isinstance(first, ak.UsageChunk)
    assert isinstance(last, ak.UsageChunk)
    assert first.usage.input_tokens is not None
    assert last.usage.cache_read_tokens is not None
    assert last.usage.cache_read_tokens < first.usage.input_tokens + 30


async def test_what_the_readers_block_raises_comes_out_as_it_is(
    model: LocalModel,
) -> None:
    """No nursery is around the block, so no exception group is either."""

    async def fail_while_reading() -> None:
        async with model.stream(request(STORY)) as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail_while_reading()
    assert not is_computing()
    await assert_answers(model)


@pytest.mark.clause("C11b")
async def test_a_fired_signal_stops_the_engine_before_the_stream_is_left(
    model: LocalModel,
) -> None:
    """A reader that is busy elsewhere does not keep the engine computing."""
    source = SignalSource()
    signal = ak.TurnSignal(source)
    async with model.stream(request(STORY, signal=signal)) as stream:
        async for chunk in stream:
            if isinstance(chunk, ak.TextChunk):
                break
        assert is_computing()
        source.fire(ak.StopReason("user"))
        for observer in source.take_observers():
            observer(ak.StopReason("user"))
        rest = [chunk async for chunk in stream]
        assert not is_computing()
    assert not [c for c in rest if isinstance(c, ak.FinishChunk)]
    await assert_answers(model)


async def test_a_stop_while_the_prompt_is_read_does_not_wait_for_all_of_it(
    model: LocalModel,
) -> None:
    """A long prompt takes seconds before the first token; a stop must not.

    The engine's cache tells how far it had come: asked the same again, it knows only
    a part of the prompt.
    """
    asked = request("one two three four five six seven " * 80, max_tokens=1)
    with trio.CancelScope() as scope:
        async with model.stream(asked) as stream:
            scope.cancel()
            async for _ in stream:
                pass
    assert not is_computing()
    chunks = await collect(model, asked)
    assert isinstance(chunks[-1], ak.UsageChunk)
    usage = chunks[-1].usage
    assert usage.input_tokens is not None
    assert usage.cache_read_tokens is not None
    assert usage.input_tokens > 500
    assert usage.cache_read_tokens < usage.input_tokens / 2


async def test_requests_are_answered_one_at_a_time_in_the_order_they_came(
    model: LocalModel,
) -> None:
    """The engine has one slot; a second thread would starve the first and the loop."""
    order: list[int] = []
    open_now = 0

    async def ask_as(number: int) -> None:
        nonlocal open_now
        async with model.stream(request("Say hello.", max_tokens=3)) as stream:
            open_now += 1
            assert open_now == 1
            order.append(number)
            async for _ in stream:
                pass
            open_now -= 1

    async with trio.open_nursery() as nursery:
        async with model.stream(request("Say hello.", max_tokens=3)):
            for number in range(3):
                nursery.start_soon(ask_as, number)
                await trio.testing.wait_all_tasks_blocked()
            assert order == []
    assert order == [0, 1, 2]


async def test_who_waits_in_line_can_leave_it(model: LocalModel) -> None:
    """Stopping a turn whose request has not begun disturbs nobody else's."""
    chunks: list[ak.Chunk] = []
    async with trio.open_nursery() as nursery:
        async with model.stream(request("Say hello.", max_tokens=3)) as stream:
            nursery.start_soon(collect, model, request("Say hello.", max_tokens=3))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                chunks = [chunk async for chunk in stream]
    assert text_of(chunks)
    await assert_answers(model)


async def test_a_tool_is_called_and_its_bytes_are_in_the_next_request(
    model: LocalModel, tmp_path: Path
) -> None:
    """The loop of an agent, by hand, on real files: list, then read, then text."""
    (tmp_path / "README.md").write_text(
        "# Zanzibar\n\nA library that counts turtles.\n"
    )
    (tmp_path / "setup.cfg").write_text("")
    history: list[ak.Message] = [user("List the files here and then read README.md")]
    called: list[str] = []
    answer: list[ak.Chunk] = []
    for step in range(4):
        answer = await collect(model, request(*history, tools=TOOLS, max_tokens=40))
        calls = [c for c in answer if isinstance(c, ak.ToolCallChunk)]
        if not calls:
            break
        assert ak.FinishChunk("tool-calls") in answer
        (call,) = calls
        arguments = msgspec.json.decode(call.arguments, type=dict[str, str])
        place = tmp_path / arguments.get("path", ".")
        if call.name == "list":
            output = "\n".join(sorted(p.name for p in place.iterdir()))
        else:
            output = place.read_text()
        called.append(call.name)
        call_id = f"c{step}"
        history += [
            ak.AssistantMessage((ak.ToolCall(call_id, call.name, arguments),)),
            ak.ToolResults(
                (ak.ToolResult(call_id, call.name, (ak.TextBlock(output),)),)
            ),
        ]
    assert called == ["list", "read"]
    assert text_of(answer)
    sent = ask(
        request(*history), guided=True, max_tokens=40, max_result_chars=1000
    ).messages
    (shown,) = [m["content"] for m in sent if m["role"] == "user"]
    assert "README.md\nsetup.cfg" in shown
    assert "counts turtles" in shown


@pytest.mark.parametrize(
    ("said", "name", "arguments"),
    [
        ("Read README.md and tell me what this is.", "read", {"path": "README.md"}),
        ("List the files in the folder docs.", "list", {"path": "docs"}),
        ("Search the files for the word nursery.", "search", {"pattern": "nursery"}),
        (
            "Write hello.txt with the content `good morning`",
            "write",
            {"path": "hello.txt", "content": "good morning"},
        ),
    ],
)
async def test_a_tool_that_the_user_names_is_called_with_the_users_words(
    model: LocalModel, said: str, name: str, arguments: dict[str, str]
) -> None:
    """What a toy cannot decide, the words do; it never invents a path."""
    chunks = await collect(model, request(said, tools=TOOLS))
    (call,) = [c for c in chunks if isinstance(c, ak.ToolCallChunk)]
    assert call.name == name
    assert msgspec.json.decode(call.arguments) == arguments
    assert not text_of(chunks)


@pytest.mark.parametrize("said", [STORY, "Write a poem about the sea.", "Read it."])
async def test_without_a_tool_and_its_arguments_in_the_message_there_is_text(
    model: LocalModel, said: str
) -> None:
    """A verb alone calls nothing: the arguments would have to be made up."""
    chunks = await collect(model, request(said, tools=TOOLS, max_tokens=4))
    assert not [c for c in chunks if isinstance(c, ak.ToolCallChunk)]
    assert text_of(chunks)


async def test_an_unguided_model_may_call_or_answer() -> None:
    """Its grammar holds both: here the history is enough to make it call."""
    asked = request(
        "Read a.txt",
        ak.AssistantMessage((ak.ToolCall("c0", "read", {"path": "a.txt"}),)),
        ak.ToolResults((ak.ToolResult("c0", "read", (ak.TextBlock("apples"),)),)),
        "Read b.txt",
        tools=TOOLS[1:2],
        max_tokens=30,
    )
    async with LocalModel(context=WINDOW, guided=False) as free:
        chunks = await collect(free, asked)
        text = await collect(free, request("What is 2+2?", tools=TOOLS, max_tokens=4))
    (call,) = [c for c in chunks if isinstance(c, ak.ToolCallChunk)]
    assert call.name == "read"
    assert text_of(text)


async def test_a_call_that_max_tokens_cut_is_marked_so(model: LocalModel) -> None:
    """Half of a call must not look like one that can be run."""
    chunks = await collect(model, request("Read README.md", tools=TOOLS, max_tokens=8))
    (call,) = [c for c in chunks if isinstance(c, ak.ToolCallChunk)]
    assert call.truncated
    assert ak.FinishChunk("max-tokens") in chunks


async def test_a_conversation_that_does_not_fit_is_refused_with_both_numbers(
    model: LocalModel,
) -> None:
    """The limit is named instead of cutting the history in silence, or crashing."""
    with pytest.raises(ak.ModelError, match=rf"\d+ tokens .* holds {WINDOW}") as caught:
        await collect(model, request("word " * 2 * WINDOW))
    assert caught.value.code == "invalid-request"
    assert not caught.value.retryable
    await assert_answers(model)


async def test_an_answer_that_reaches_the_end_of_the_window_is_cut_there() -> None:
    """The window holds prompt and answer together; nothing is shifted out of it."""
    async with LocalModel(context=256, max_tokens=5000) as small:
        async with small.stream(ModelRequest("", (user(STORY),))) as stream:
            chunks = [chunk async for chunk in stream]
    assert chunks[-2] == ak.FinishChunk("max-tokens")
    assert isinstance(chunks[-1], ak.UsageChunk)
    usage = chunks[-1].usage
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    assert usage.input_tokens + usage.output_tokens <= 256


async def test_missing_and_broken_weights_are_a_model_error(tmp_path: Path) -> None:
    """The turn ends with a sentence, and the next attempt is not blocked."""
    missing = LocalModel(tmp_path / "none.gguf")
    for _ in range(2):
        with pytest.raises(ak.ModelError, match=r"no weights at .*none\.gguf"):
            await collect(missing, request("Hi"))
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model")
    with pytest.raises(ak.ModelError, match=r"junk\.gguf cannot be loaded"):
        await LocalModel(junk).load()


async def test_a_closed_model_gives_its_threads_back_and_can_be_used_again() -> None:
    """Whoever embeds this can leave nothing behind."""
    async with LocalModel(find_weights(), context=256) as local:
        await local.load()
        loaded = count_threads()
        await local.aclose()
        assert count_threads() < loaded
        await assert_answers(local)


async def test_nobody_can_reach_the_engine_from_outside() -> None:
    """The engine insists on a server; its only door is gone once it is loaded."""
    engine = Engine(None, threads=None, context=256)
    server = await engine.load()
    assert server.listening_address.startswith("unix://")
    door = trio.Path(server.listening_address.removeprefix("unix://"))
    assert not await door.parent.exists()
    del server
    await engine.aclose()


async def test_the_embedded_model_keeps_what_the_port_promises(
    model: LocalModel,
) -> None:
    """The same checker as for every model, with answers of three tokens."""
    asked = request("Say hello.", max_tokens=3)
    await check_model(lambda: model, request=asked, hang_after=60)


async def test_a_model_can_be_closed_as_soon_as_it_is_loaded() -> None:
    """The engine waits for ever if its loop is told to end before it has begun.

    Whether it has begun is a matter of how busy the machine is: several rounds.
    """
    local = LocalModel(context=256)
    for _ in range(5):
        await local.load()
        await local.aclose()


def event(text: str | None, finish: str | None = None) -> dict[str, object]:
    return {"choices": [{"delta": {"content": text}, "finish_reason": finish}]}


def test_a_brace_that_opens_no_call_is_text() -> None:
    """An engine built without grammars may write anything: it is not lost."""
    reader = Reader()
    assert reader.feed(event("{")) == []
    assert reader.feed(event("braces}")) == []
    assert reader.feed(event(None, "stop")) == [
        ak.TextChunk("{braces}"),
        ak.FinishChunk("stop"),
    ]


def test_arguments_are_passed_on_as_the_model_wrote_them() -> None:
    """Checking them is the kernel's business, and it needs the original."""
    reader = Reader()
    reader.feed(event('{"tool":"read","args":'))
    reader.feed(event('{"path": "a\\u00e9\\ud83d\\udc0b", "n": 1e400}}'))
    assert reader.feed(event(None, "stop")) == [
        ak.ToolCallChunk("read", '{"path": "a\\u00e9\\ud83d\\udc0b", "n": 1e400}'),
        ak.FinishChunk("tool-calls"),
    ]


def test_what_the_engine_is_shown_is_short_and_never_empty() -> None:
    """Messages without text would be refused or confuse; long results are cut."""
    history = (
        user("Read a.txt"),
        ak.AssistantMessage((ak.ReasoningBlock("hm"),)),
        ak.AssistantMessage((ak.ToolCall("c", "read", {"path": "a.txt"}),)),
        ak.ToolResults(
            (
                ak.ToolResult("c", "read", (ak.TextBlock("x" * 5000),)),
                ak.ToolResult(
                    "d",
                    "read",
                    (ak.BinaryBlock("image/png", ak.Blob(b"123")),),
                    ak.ToolFailure("E", "no such file"),
                ),
            )
        ),
        ak.Note("The turn was stopped."),
    )
    sent = ask(
        request(*history, tools=TOOLS), guided=False, max_tokens=5, max_result_chars=100
    ).messages
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "tool", "user"]
    assert all(m["content"] for m in sent)
    assert sent[2]["content"] == '{"tool":"read","args":{"path":"a.txt"}}'
    results = (
        "x" * 100
        + "\n[cut: 100 of 5000 characters]\n"
        + "error: no such file\n[image/png, 3 bytes, not shown]"
    )
    assert sent[3]["content"] == results
    merged = ask(
        request(*history, tools=TOOLS), guided=True, max_tokens=5, max_result_chars=100
    ).messages
    assert [m["role"] for m in merged] == ["system", "user"]
    assert merged[1]["content"].endswith("Read a.txt\n\nThe turn was stopped.")
    assert merged[1]["content"].startswith("x" * 100)
