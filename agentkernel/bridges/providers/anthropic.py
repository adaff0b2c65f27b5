"""The provider for Anthropic's messages endpoint, and servers that speak it.

This module puts the parts together: `anthropic_render` makes the body, `transport`
sends it and waits, `anthropic_stream` reads the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import final

import httpx2

from agentkernel import ModelRequest

from .answer import Answer
from .anthropic_render import render_anthropic
from .anthropic_stream import AnthropicDecoder
from .transport import ApiKey, Endpoint, EndpointModel
from .wire import tool_names

__all__ = ["AnthropicModel"]


@final
class AnthropicModel(EndpointModel):
    """A model behind a messages endpoint.

    One object serves any number of requests at once. By itself it opens a connection
    for each answer and closes it with the answer; inside `async with model:` the
    answers of that block share connections.

    Args:
      model: the name that the server knows.
      base_url: what comes before `/v1/messages`.
      api_key: the key, or a function (async or not) that gives it for each request;
        None sends none. No environment variable is read.
      max_tokens: the limit of an answer whose request options name none.
      version: the version of the protocol, as the `anthropic-version` header.
      headers: sent with each request. What they hold is kept out of all messages.
      client: a client of yours, with its proxies, pool and certificates; it is used
        and never closed. Waiting for one of its connections counts as silence.
      idle_seconds: how long the server may be silent, before the answer begins and
        between two events of it. Pings do not count.

    """

    def __init__(  # noqa: PLR0913  # settings, each by name and with a default
        self,
        model: str,
        *,
        base_url: str = "https://api.anthropic.com",
        api_key: ApiKey = None,
        max_tokens: int = 8192,
        version: str = "2023-06-01",
        headers: Mapping[str, str] | None = None,
        client: httpx2.AsyncClient | None = None,
        idle_seconds: float = 300.0,
    ) -> None:
        self.max_tokens = max_tokens
        endpoint = Endpoint(
            f"{base_url.rstrip('/')}/v1/messages",
            headers={"anthropic-version": version, **(headers or {})},
            api_key=api_key,
            key_header=lambda key: ("x-api-key", key),
            client=client,
            idle_seconds=idle_seconds,
        )
        super().__init__(model, endpoint)

    @asynccontextmanager
    async def stream(self, request: ModelRequest, /) -> AsyncGenerator[Answer, None]:
        """Open one answer; see `Model.stream`.

        Always a checkpoint.

        Cancellation:
          Passes through; the answer's connection is closed, or given back if the
          answer was over.

        Raises:
          ModelError: if the request cannot be rendered or sent, or is refused.

        """
        body = render_anthropic(request, self.model, max_tokens=self.max_tokens)
        names = tool_names(request.tools)
        async with self._endpoint.answer(
            body, lambda secrets: AnthropicDecoder(names, secrets)
        ) as answer:
            yield answer
