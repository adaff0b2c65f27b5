"""Both HTTP providers keep the `Model` port, over a real socket."""

from __future__ import annotations

import httpx2
import pytest

from agentkernel import TextChunk
from agentkernel.testing.model_check import check_model
from tests.integration.providers.server import Exchange, open_server
from tests.integration.providers.transcripts import (
    MAKERS,
    chat,
    messages,
    read,
    text_of,
)

ANSWERS = {"openai": chat("Hel", "lo", "!"), "anthropic": messages("Hel", "lo", "!")}


@pytest.mark.case("CONC-02", "CAN-14")
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize("pooled", [False, True])
async def test_the_provider_keeps_the_port(provider: str, *, pooled: bool) -> None:
    """CONC-02: left in any way at any step, an answer leaves no connection.

    The events arrive in many small pieces, so that the steps lie between them.
    """
    answer = ANSWERS[provider]

    async def script(exchange: Exchange) -> None:
        await exchange.head()
        for at in range(0, len(answer), 200):
            await exchange.chunk(answer[at : at + 200])
        await exchange.end()

    limits = httpx2.Limits(max_connections=2, max_keepalive_connections=0)
    async with open_server(script) as server, httpx2.AsyncClient(limits=limits) as pool:
        client = pool if pooled else None
        model = MAKERS[provider]("m", base_url=server.url, client=client)
        await check_model(lambda: model, wait_released=server.wait_open)
        chunks = await read(model)
        assert text_of(chunks) == "Hello!"
        assert sum(isinstance(chunk, TextChunk) for chunk in chunks) == 3
