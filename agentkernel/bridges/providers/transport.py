"""Sends the requests of one model: where to, with which key, over which connection.

`Endpoint.answer` sends one request and yields its `Answer`. What it opened for that
is closed in the same task when the block is left, however that happens, and without
waiting for the other side. One attempt: nothing is retried here, and no redirect is
followed.
"""

from __future__ import annotations

import inspect
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeAlias, final
from urllib.parse import urlsplit

import httpx2
import trio

from agentkernel import JsonObject, ModelError

from .answer import Answer, Decoder, idle_failure
from .failures import Secrets, client_failure
from .wire import encode

__all__ = ["ApiKey", "Endpoint", "EndpointModel"]

ApiKey: TypeAlias = str | Callable[[], "str | Awaitable[str]"] | None

# How long closing may take; it waits for nobody, but a transport might.
_CLOSE_SECONDS = 2.0
_CONNECT_SECONDS = 15.0


@final
class Endpoint:
    """Where the requests of one model go. Made by the model, used by its tasks.

    Without a client of the user, each answer opens a connection of its own and
    closes it; between `open` and `close`, answers share a pool.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        api_key: ApiKey,
        key_header: Callable[[str], tuple[str, str]],
        client: httpx2.AsyncClient | None,
        idle_seconds: float,
    ) -> None:
        for name, value in headers.items():
            if not (_is_header(name) and _is_header(value)):
                raise ValueError(f"the header {name!r} cannot be sent")
        self.url = url
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._api_key = api_key
        self._key_header = key_header
        self._client = client
        self._idle_seconds = idle_seconds
        # The client between open() and close(), None outside of that.
        self._pool: httpx2.AsyncClient | None = None
        # Costs more than a request; made when it is first needed.
        self._ssl: ssl.SSLContext | None = None

    @property
    def host(self) -> str:
        """Where requests go: the part of the URL that holds no secret."""
        return urlsplit(self.url).hostname or ""

    async def _new_headers(self) -> tuple[dict[str, str], Secrets]:
        """Give the headers of one request, and what of them must stay hidden."""
        await trio.lowlevel.checkpoint()
        key = self._api_key() if callable(self._api_key) else self._api_key
        if inspect.isawaitable(key):
            key = await key
        headers = {
            "accept": "text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
            **self._headers,
        }
        hidden = [value for value in self._headers.values() if len(value) >= 8]
        if key:
            if not _is_header(key):
                raise ModelError(
                    "the API key holds characters that no header can carry",
                    code="auth",
                )
            name, value = self._key_header(key)
            headers[name] = value
            hidden.append(key)
        return headers, Secrets(tuple(hidden))

    async def open(self) -> None:
        """Open a pool, unless the user gave a client. Always a checkpoint.

        Cancellation:
          Nothing happened.

        """
        await trio.lowlevel.checkpoint()
        if self._pool is not None:
            raise RuntimeError("this model has been entered already")
        if self._client is None:
            self._pool = self._new_client()

    async def close(self) -> None:
        """Close the pool and its connections.

        Always a checkpoint.

        Cancellation:
          Called shielded, with a deadline.

        """
        await trio.lowlevel.checkpoint()
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.aclose()

    @asynccontextmanager
    async def answer(
        self, body: JsonObject, new_decoder: Callable[[Secrets], Decoder]
    ) -> AsyncGenerator[Answer, None]:
        """Send one request and open its answer.

        Always a checkpoint.

        Cancellation:
          Passes through; the connection is closed.

        Raises:
          ModelError: if no answer begins.

        """
        headers, secrets = await self._new_headers()
        content = encode(body)
        decoder = new_decoder(secrets)
        async with self._lend_client() as client:
            response = await self._send(client, headers, content, secrets)
            answer = Answer(
                response,
                decoder,
                secrets,
                self._idle_seconds,
                is_shared=client in {self._client, self._pool},
            )
            try:
                if not answer.is_stream:
                    raise await answer.refusal()
                yield answer
            finally:
                with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                    await answer.aclose()

    @asynccontextmanager
    async def _lend_client(self) -> AsyncGenerator[httpx2.AsyncClient, None]:
        client = self._client or self._pool
        if client is not None:
            yield client
            return
        client = self._new_client()
        try:
            yield client
        finally:
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                await client.aclose()

    def _new_client(self) -> httpx2.AsyncClient:
        if self._ssl is None:
            self._ssl = httpx2.create_ssl_context()
        return httpx2.AsyncClient(
            verify=self._ssl, limits=httpx2.Limits(max_connections=None)
        )

    async def _send(
        self,
        client: httpx2.AsyncClient,
        headers: dict[str, str],
        content: bytes,
        secrets: Secrets,
    ) -> httpx2.Response:
        with trio.move_on_after(self._idle_seconds):
            try:
                request = client.build_request(
                    "POST",
                    self.url,
                    headers=headers,
                    content=content,
                    timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
                )
                return await client.send(request, stream=True, follow_redirects=False)
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                raise client_failure(error, secrets, streaming=False) from error
        raise idle_failure("did not begin an answer", self._idle_seconds)


class EndpointModel:
    """What the models of all providers share: a name, an endpoint, its connections."""

    def __init__(self, model: str, endpoint: Endpoint) -> None:
        self.model = model
        self._endpoint = endpoint

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, host={self._endpoint.host!r})"

    async def __aenter__(self) -> Self:
        """Open connections that answers share. Always a checkpoint."""
        await self._endpoint.open()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None:
        """Close the shared connections.

        Always a checkpoint.

        Cancellation:
          They are closed all the same.

        """
        with trio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._endpoint.close()


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable()
