"""The provider for servers that speak chat completions.

OpenAI, DeepSeek, vLLM, Ollama, llama.cpp's server and many gateways. This module
puts the parts together: `openai_render` makes the body, `transport` sends it and
waits, `openai_stream` reads the answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import final
from urllib.parse import urlsplit

import httpx2

from agentkernel import ModelRequest

from .answer import Answer
from .openai_render import OpenAIDialect, render_openai
from .openai_stream import OpenAIDecoder
from .transport import ApiKey, Endpoint, EndpointModel
from .wire import tool_names

__all__ = ["OpenAIModel"]

_OPENAI = "https://api.openai.com/v1"


@final
class OpenAIModel(EndpointModel):
    """A model behind a chat-completions endpoint.

    One object serves any number of requests at once. By itself it opens a connection
    for each answer and closes it with the answer; inside `async with model:` the
    answers of that block share connections.

    Args:
      model: the name that the server knows.
      base_url: what comes before `/chat/completions`.
      api_key: the key, or a function (async or not) that gives it for each request;
        None sends none. No environment variable is read.
      headers: sent with each request. What they hold is kept out of all messages.
      client: a client of yours, with its proxies, pool and certificates; it is used
        and never closed. Waiting for one of its connections counts as silence.
      idle_seconds: how long the server may be silent, before the answer begins and
        between two events of it. Keep-alive lines do not count.
      dialect: what this server wants otherwise; None chooses by the URL.

    """

    def __init__(  # noqa: PLR0913  # settings, each by name and with a default
        self,
        model: str,
        *,
        base_url: str = _OPENAI,
        api_key: ApiKey = None,
        headers: Mapping[str, str] | None = None,
        client: httpx2.AsyncClient | None = None,
        idle_seconds: float = 300.0,
        dialect: OpenAIDialect | None = None,
    ) -> None:
        self.dialect: OpenAIDialect = dialect or _dialect_of(base_url)
        endpoint = Endpoint(
            f"{base_url.rstrip('/')}/chat/completions",
            headers=headers or {},
            api_key=api_key,
            key_header=lambda key: ("authorization", f"Bearer {key}"),
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
        body = render_openai(request, self.model, self.dialect)
        names = tool_names(request.tools)
        async with self._endpoint.answer(
            body, lambda secrets: OpenAIDecoder(names, secrets)
        ) as answer:
            yield answer


def _dialect_of(base_url: str) -> OpenAIDialect:
    if urlsplit(base_url).hostname == urlsplit(_OPENAI).hostname:
        return OpenAIDialect(max_tokens_field="max_completion_tokens")
    return OpenAIDialect()
