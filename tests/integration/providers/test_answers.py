"""Both providers against a real server that says exactly these bytes."""

from __future__ import annotations

import contextlib
import gc
import json
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest
import trio

from agentkernel import (
    Chunk,
    FinishChunk,
    Model,
    ModelError,
    ModelRequest,
    TextBlock,
    TextChunk,
    UsageChunk,
    UserMessage,
)
from agentkernel.bridges.providers import AnthropicModel, OpenAIModel
from tests.integration.providers.server import (
    Exchange,
    Script,
    falls_silent,
    open_server,
    refuses,
    says,
)
from tests.integration.providers.transcripts import (
    DONE,
    HELLO,
    Maker,
    chat,
    delta,
    event,
    message_delta,
    message_start,
    messages,
    named,
    read,
    text_block,
    text_of,
    usage,
)

BOTH: dict[str, tuple[Maker, bytes, bytes]] = {
    # how it is made, one whole answer, the beginning of one
    "openai": (OpenAIModel, chat("one ", "two"), delta(content="one ")),
    "anthropic": (
        AnthropicModel,
        messages("one ", "two"),
        message_start() + text_block(0, "one ", stop=False),
    ),
}
both = pytest.mark.parametrize("provider", sorted(BOTH))


async def gather(model: Model, seen: list[Chunk]) -> None:
    """Read an answer into a list that keeps what came before an error."""
    async with model.stream(HELLO) as answer:
        async for chunk in answer:
            seen.append(chunk)  # noqa: PERF401  # each one before the next is awaited


async def fails(model: Model, request: ModelRequest = HELLO) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await read(model, request)
    return caught.value


@both
@pytest.mark.case("SSE-01")
async def test_an_answer_cut_at_every_byte_of_the_wire_is_the_same(
    provider: str,
) -> None:
    """SSE-01: one byte for each chunk, over a real socket."""
    make, answer, _ = BOTH[provider]
    parts = [answer[at : at + 1] for at in range(len(answer))]
    async with open_server(says(*parts)) as server:
        chunks = await read(make("m", base_url=server.url))
        assert text_of(chunks) == "one two"
        assert isinstance(chunks[-1], FinishChunk)
        assert sum(isinstance(chunk, FinishChunk) for chunk in chunks) == 1
        await server.wait_open(0)


@both
async def test_a_request_carries_what_the_endpoint_wants(provider: str) -> None:
    """Path, key, version and body: the rest of the wire format."""
    make, answer, _ = BOTH[provider]
    async with open_server(says(answer)) as server:
        model = make(
            "m", base_url=f"{server.url}/base/", api_key="sk-1", headers={"X-Team": "a"}
        )
        await read(model)
    sent = server.requests[0]
    assert sent.method == "POST"
    assert sent.headers["content-type"] == "application/json"
    assert sent.headers["x-team"] == "a"
    assert sent.parsed["stream"] is True
    assert sent.parsed["model"] == "m"
    if provider == "openai":
        assert sent.target == "/base/chat/completions"
        assert sent.headers["authorization"] == "Bearer sk-1"
        assert sent.parsed["stream_options"] == {"include_usage": True}
    else:
        assert sent.target == "/base/v1/messages"
        assert sent.headers["x-api-key"] == "sk-1"
        assert sent.headers["anthropic-version"] == "2023-06-01"
        assert sent.parsed["max_tokens"] == 8192


@both
async def test_a_key_may_come_from_a_function_for_each_request(provider: str) -> None:
    """Keys are rotated while an application runs."""
    make, answer, _ = BOTH[provider]
    keys = iter(["first", "second"])

    async def fetch() -> str:
        await trio.lowlevel.checkpoint()
        return "third"

    async with open_server(says(answer)) as server:
        model = make("m", base_url=server.url, api_key=lambda: next(keys))
        await read(model)
        await read(model)
        await read(make("m", base_url=server.url, api_key=fetch))
        await read(make("m", base_url=server.url))
    header = "authorization" if provider == "openai" else "x-api-key"
    sent = [r.headers.get(header, "").removeprefix("Bearer ") for r in server.requests]
    assert sent == ["first", "second", "third", ""]


@both
@pytest.mark.clause("D6c")
async def test_no_message_and_no_repr_shows_a_secret(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: what reaches a log or an event must not hold a key, an echoed one too."""
    make, *_ = BOTH[provider]
    monkeypatch.setenv("NO_PROXY", "*")
    key, header = "sk-very-secret", "header-secret"

    async def echo(exchange: Exchange) -> None:
        body = json.dumps({"error": {"message": f"bad {key} and {header}"}}).encode()
        status = {"/status": "401 No", "/stream": "200 OK"}[exchange.request.target[:7]]
        kind = "application/json" if status[0] == "4" else "text/event-stream"
        await exchange.whole(b"data: " + body + b"\n\n", status, kind)

    async with open_server(echo) as server:
        for place in ("/status", "/stream"):
            model = make(
                "m",
                base_url=server.url + place,
                api_key=key,
                headers={"x-extra": header},
            )
            error = await fails(model)
            assert "[hidden]" in str(error)
            shown = f"{error!s} {error!r} {model!r} {vars(error)}"
            assert key not in shown
            assert header not in shown
    for bad in (f"{key}\n", f"{key}é"):
        error = await fails(make("m", base_url=server.url, api_key=bad))
        assert error.code == "auth"
        assert key not in f"{error!r}{error.__cause__!r}{error.__context__!r}"
    with pytest.raises(ValueError, match="x-extra"):
        make("m", headers={"x-extra": "a\nb"})


@both
@pytest.mark.case("PROV-05")
@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("application/json", b'{"error": {"type": "overloaded_error"}}', "overloaded"),
        ("application/json; charset=utf-8", b'{"error": "no"}', "server"),
        ("application/json", b'{"choices": []}', "server"),
        ("text/html", b"<html>please log in</html>", "server"),
    ],
)
async def test_a_200_that_is_no_stream_is_an_error(
    provider: str, kind: str, body: bytes, code: str
) -> None:
    """PROV-05: a body of another kind holds no events and would look empty."""

    async def script(exchange: Exchange) -> None:
        await exchange.whole(body, kind=kind)

    async with open_server(script) as server:
        assert (await fails(BOTH[provider][0]("m", base_url=server.url))).code == code
        await server.wait_open(0)


@both
async def test_a_stream_under_another_content_type_is_read(provider: str) -> None:
    """Not every server names it as it should."""
    make, answer, _ = BOTH[provider]
    for kind in ("text/plain", "text/event-stream; charset=iso-8859-1", "x"):

        async def script(exchange: Exchange, kind: str = kind) -> None:
            await exchange.whole(answer.replace(b"two", "zwö".encode()), kind=kind)

        async with open_server(script) as server:
            assert text_of(await read(make("m", base_url=server.url))) == "one zwö"


@both
@pytest.mark.case("PROV-08")
@pytest.mark.parametrize(
    ("status", "headers", "code", "wait"),
    [
        ("429 Slow", {"retry-after": "7"}, "rate-limit", 7.0),
        ("429 Slow", {"retry-after-ms": "250"}, "rate-limit", 0.25),
        ("429 Slow", {"retry-after": "-1"}, "rate-limit", None),
        (
            "429 Slow",
            {
                "retry-after": "Mon, 30 Nov 2026 12:00:30 GMT",
                "date": "Mon, 30 Nov 2026 12:00:00 GMT",
            },
            "rate-limit",
            30.0,
        ),
        ("529 Busy", {}, "overloaded", None),
        ("401 No", {}, "auth", None),
    ],
)
async def test_a_refusal_says_what_it_is_and_how_long_to_wait(
    provider: str, status: str, headers: Mapping[str, str], code: str, wait: float
) -> None:
    """PROV-08: and it is one attempt: retrying is somebody else's business."""
    body = b'{"error": {"message": "Because."}}'
    async with open_server(refuses(status, body, headers)) as server:
        error = await fails(BOTH[provider][0]("m", base_url=server.url))
        assert (error.code, error.retry_after) == (code, wait)
        assert error.status == int(status[:3])
        assert str(error).endswith("Because.")
        assert len(server.requests) == 1
        await server.wait_open(0)


@both
async def test_a_redirect_is_refused(provider: str) -> None:
    """The key must not follow wherever an answer points."""
    async with (
        open_server(says(BOTH[provider][1])) as other,
        open_server(refuses("307 There", headers={"location": other.url})) as server,
    ):
        error = await fails(BOTH[provider][0]("m", base_url=server.url, api_key="k"))
    assert error.status == 307
    assert not error.retryable
    assert "base_url" in str(error)
    assert not other.requests


@both
async def test_no_server_is_a_failed_connection(provider: str) -> None:
    """It may come back."""
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = await fails(BOTH[provider][0]("m", base_url=f"http://127.0.0.1:{port}"))
    assert (error.code, error.retryable) == ("connection", True)
    for bad in ("ftp://127.0.0.1", "http://", "nonsense"):
        error = await fails(BOTH[provider][0]("m", base_url=bad))
        assert (error.code, error.retryable) == ("invalid-request", False)


@both
@pytest.mark.case("PROV-07", "SSE-03")
@pytest.mark.parametrize("end", [True, False])
async def test_a_cut_answer_gives_its_text_and_then_an_error(
    provider: str, *, end: bool
) -> None:
    """PROV-07: what was said stays said; that it was all, nobody may believe."""
    make, _, beginning = BOTH[provider]
    async with open_server(says(beginning, end=end)) as server:
        seen: list[Chunk] = []
        with pytest.raises(ModelError) as caught:
            await gather(make("m", base_url=server.url), seen)
        await server.wait_open(0)
    assert text_of(seen) == "one "
    assert (caught.value.code, caught.value.retryable) == ("truncated", True)


@both
@pytest.mark.case("PROV-07")
async def test_a_connection_that_breaks_behind_the_reason_is_no_cut(
    provider: str,
) -> None:
    """PROV-07: the answer is whole; how the connection ends does not matter."""
    whole = {
        "openai": delta(content="a") + delta("stop"),
        "anthropic": message_start() + text_block(0, "a") + message_delta(),
    }[provider]
    async with open_server(says(whole, end=False)) as server:
        chunks = await read(BOTH[provider][0]("m", base_url=server.url))
    assert chunks[-1] == FinishChunk("stop")


@pytest.mark.case("PROV-04")
async def test_usage_behind_the_reason_is_kept() -> None:
    """PROV-04: it comes in a chunk of its own, without choices."""
    parts = [delta(content="a"), delta("stop"), usage(5, 2), DONE]
    async with open_server(says(*parts)) as server:
        chunks = await read(OpenAIModel("m", base_url=server.url))
    assert [type(chunk) for chunk in chunks] == [TextChunk, UsageChunk, FinishChunk]


@both
async def test_endless_lines_end_with_an_error_in_bounded_memory(provider: str) -> None:
    """A server that never ends its line must not fill the memory."""

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(1000):
                await exchange.chunk(b"x" * 65536)

    async with open_server(script) as server:
        error = await fails(BOTH[provider][0]("m", base_url=server.url))
        await server.wait_open(0)
    assert error.code == "server"
    assert "bytes" in str(error)


@both
async def test_an_endless_error_body_is_not_read_to_its_end(provider: str) -> None:
    """Its beginning says enough."""
    sent = 0

    async def script(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.head("500 Oh", "application/json")
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await exchange.chunk(b"x" * 65536)
                sent += 65536

    async with open_server(script) as server:
        error = await fails(BOTH[provider][0]("m", base_url=server.url))
        await server.wait_open(0)
    assert error.status == 500
    assert len(str(error)) < 600
    # What lies in the buffers of two sockets, and no more.
    assert sent < 12_000_000


@both
@pytest.mark.case("CONC-02")
async def test_an_answer_left_by_break_is_closed_at_once_and_collects_nothing(
    provider: str,
) -> None:
    """CONC-02: warnings are errors here, those of the collector too."""
    make, _, beginning = BOTH[provider]
    async with open_server(falls_silent(beginning)) as server:
        async with make("m", base_url=server.url).stream(HELLO) as answer:
            async for chunk in answer:
                if isinstance(chunk, TextChunk):
                    break
        gc.collect()
        await server.wait_open(0)
        with pytest.raises(StopAsyncIteration):
            await anext(aiter(answer))


@both
async def test_an_error_of_the_body_comes_out_as_itself_during_a_cancellation(
    provider: str,
) -> None:
    """CONC-03: cleaning up must not replace the error that caused it."""
    make, _, beginning = BOTH[provider]

    async def fail(model: Model, scope: trio.CancelScope) -> None:
        async with model.stream(HELLO) as answer:
            async for _ in answer:
                scope.cancel()
                raise RuntimeError("boom")

    async with open_server(falls_silent(beginning)) as server:
        model = make("m", base_url=server.url)
        with trio.CancelScope() as scope, pytest.raises(RuntimeError, match="boom"):
            await fail(model, scope)
        await server.wait_open(0)


@both
@pytest.mark.case("CAN-14")
@pytest.mark.parametrize("chatty", [False, True])
async def test_a_cancelled_answer_ends_at_once_and_so_does_its_connection(
    provider: str, *, chatty: bool
) -> None:
    """CAN-14: whether the server is silent or goes on for ever."""
    make, _, beginning = BOTH[provider]
    more = {
        "openai": delta(content="."),
        "anthropic": named(
            "content_block_delta", index=0, delta={"type": "text_delta", "text": "."}
        ),
    }[provider]

    async def goes_on(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.chunk(beginning)
        while True:
            await exchange.chunk(more)

    script: Script = goes_on if chatty else falls_silent(beginning)
    async with open_server(script) as server:
        with trio.CancelScope() as scope:
            async with make("m", base_url=server.url).stream(HELLO) as answer:
                async for chunk in answer:
                    if isinstance(chunk, TextChunk):
                        scope.cancel()
        assert scope.cancelled_caught
        await server.wait_open(0)


@both
async def test_inside_its_block_a_model_shares_connections(provider: str) -> None:
    """A handshake for each answer is a price that a loop need not pay."""
    make, answer, _ = BOTH[provider]
    async with open_server(says(answer)) as server:
        model = make("m", base_url=server.url)
        async with model:
            for _ in range(3):
                await read(model)
            assert server.accepted == 1
        await server.wait_open(0)
        await read(model)
        assert server.accepted == 2
        await server.wait_open(0)


@both
async def test_a_client_of_the_user_is_used_and_not_closed(provider: str) -> None:
    """It has their proxies and certificates, and they close it."""
    make, answer, _ = BOTH[provider]
    async with open_server(says(answer)) as server, httpx2.AsyncClient() as client:
        model = make("m", base_url=server.url, client=client)
        await read(model)
        await read(model)
        assert server.accepted == 1
        assert not client.is_closed


@both
async def test_a_proxy_of_the_environment_is_used(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for every other program on the machine."""
    make, answer, _ = BOTH[provider]
    async with open_server(says(answer)) as proxy:
        for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        assert text_of(await read(make("m", base_url="http://model.test"))) == "one two"
    assert proxy.requests[0].target.startswith("http://model.test/")


@both
async def test_a_certificate_that_nobody_vouches_for_is_refused(
    provider: str, tmp_path: Path
) -> None:
    """TLS is checked by default, and a bad certificate is not tried again."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    await trio.run_process(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names, *files],
        capture_stderr=True,
    )
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(cert, key)

    async def handle(stream: trio.SSLStream[trio.SocketStream]) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.receive_some()
            body = BOTH[provider][1]
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body
            )

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, served, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, handle, listeners)
        tcp = listeners[0].transport_listener
        assert isinstance(tcp, trio.SocketListener)
        port = tcp.socket.getsockname()[1]
        url = f"https://127.0.0.1:{port}"
        error = await fails(BOTH[provider][0]("m", base_url=url))
        assert (error.code, error.retryable) == ("connection", False)
        assert "certificate" in str(error).lower()
        trusting = ssl.create_default_context(cafile=str(cert))
        async with httpx2.AsyncClient(verify=trusting) as client:
            model = BOTH[provider][0]("m", base_url=url, client=client)
            assert text_of(await read(model)) == "one two"
        nursery.cancel_scope.cancel()


@both
async def test_requests_with_much_text_arrive_whole(provider: str) -> None:
    """Bodies are larger than a socket's buffer."""
    make, answer, _ = BOTH[provider]
    said = "é\u2028😀" * 200_000
    request = ModelRequest("", (UserMessage("m1", (TextBlock(said),)),))
    async with open_server(says(answer)) as server:
        await read(make("m", base_url=server.url), request)
    assert said in json.dumps(server.requests[0].parsed, ensure_ascii=False)


def test_importing_the_kernel_imports_no_http_client() -> None:
    """Only who talks HTTP pays for it."""
    program = "import sys, agentkernel; print('httpx2' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


async def test_an_error_in_the_stream_comes_behind_the_text_before_it() -> None:
    """PROV-05: partial text is seen, and the answer still fails."""
    parts = delta(content="half") + event({"error": {"message": "no", "code": 429}})
    async with open_server(says(parts)) as server:
        seen: list[Chunk] = []
        with pytest.raises(ModelError) as caught:
            await gather(OpenAIModel("m", base_url=server.url), seen)
    assert text_of(seen) == "half"
    assert caught.value.code == "rate-limit"
