"""A real HTTP server on a loopback socket that says exactly the bytes of a script.

No framework: what is tested is how bytes are read, so nothing may tidy them up. A
script is an async function that gets an `Exchange` and writes what it likes; the
server counts open connections and keeps every request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias, final

import msgspec
import trio


class Received(msgspec.Struct, frozen=True):
    """One request, as it arrived. Header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def parsed(self) -> dict[str, object]:
        return msgspec.json.decode(self.body, type=dict[str, object])


@final
class Exchange:
    """One request and the connection on which it is answered."""

    def __init__(self, stream: trio.SocketStream, request: Received) -> None:
        self._stream = stream
        self.request = request
        self.keep = False

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def head(
        self,
        status: str = "200 OK",
        kind: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Begin a chunked answer."""
        lines = [
            f"HTTP/1.1 {status}",
            f"content-type: {kind}",
            "transfer-encoding: chunked",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        """End a chunked answer; the connection serves the next request."""
        await self.send(b"0\r\n\r\n")
        self.keep = True

    async def whole(
        self,
        body: bytes,
        status: str = "200 OK",
        kind: str = "text/event-stream",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        await self.head(status, kind, headers)
        if body:
            await self.chunk(body)
        await self.end()

    async def wait_gone(self) -> None:
        """Wait until the client has closed the connection."""
        try:
            while await self._stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


Script: TypeAlias = Callable[[Exchange], Awaitable[None]]


@final
class Server:
    """What the tests see of the server."""

    def __init__(self, url: str, script: Script) -> None:
        self.url = url
        self.script = script
        self.requests: list[Received] = []
        self.open = 0
        self.accepted = 0
        self._changed = trio.Event()

    async def wait_open(self, count: int = 0) -> None:
        """Wait until so many connections are open."""
        while self.open != count:
            await self._changed.wait()

    def change(self, by: int) -> None:
        self.open += by
        self.accepted += max(by, 0)
        self._changed.set()
        self._changed = trio.Event()


@asynccontextmanager
async def open_server(script: Script) -> AsyncGenerator[Server, None]:
    """Serve on a free loopback port until the block is left."""
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        server = Server(f"http://127.0.0.1:{port}", script)

        async def handle(stream: trio.SocketStream) -> None:
            server.change(1)
            try:
                await _serve(server, stream)
            finally:
                server.change(-1)

        await nursery.start(trio.serve_listeners, handle, listeners)
        yield server
        nursery.cancel_scope.cancel()


async def _serve(server: Server, stream: trio.SocketStream) -> None:
    keep = True
    while keep:
        try:
            request = await _receive(stream)
            if request is None:
                return
            server.requests.append(request)
            exchange = Exchange(stream, request)
            await server.script(exchange)
            keep = exchange.keep
        except trio.BrokenResourceError:
            return


async def _receive(stream: trio.SocketStream) -> Received | None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        more = await stream.receive_some()
        if not more:
            return None
        raw += more
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    while len(body) < int(headers.get("content-length", "0")):
        more = await stream.receive_some()
        if not more:
            return None
        body += more
    method, target, _ = first.split(" ")
    return Received(method, target, headers, body)


def says(*parts: bytes, end: bool = True) -> Script:
    """Answer with a stream of these parts, each a chunk of its own.

    Without an end the connection is closed behind the last part.
    """

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for part in parts:
            await exchange.chunk(part)
        if end:
            await exchange.end()

    return script


def falls_silent(*parts: bytes) -> Script:
    """Answer with these parts and then wait until the client has gone."""

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for part in parts:
            await exchange.chunk(part)
        await exchange.wait_gone()

    return script


def refuses(
    status: str, body: bytes = b"{}", headers: Mapping[str, str] | None = None
) -> Script:
    """Answer with a status other than 200."""

    async def script(exchange: Exchange) -> None:
        await exchange.whole(body, status, "application/json", headers)

    return script
