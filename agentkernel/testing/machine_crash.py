"""What becomes of a session whose process has died: resumed whole, and only once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio.testing

import agentkernel as ak

__all__ = ["check_crash", "read_all"]

_PAGE = 1000


async def check_crash(
    session_id: str,
    events: Sequence[ak.SessionEvent],
    revive: Callable[[ak.Kernel], object],
    check_ended: Callable[[ak.Agent, Sequence[ak.SessionEvent]], object],
) -> None:
    """Resume a copy of a session that ends anywhere, twice.

    Always a checkpoint.

    Cancellation:
      Passes through.

    Args:
      session_id: its name, which facts of bridges may hold.
      events: what of the session had reached its store.
      revive: puts into a kernel what the session needs.
      check_ended: checks a log in which nothing is open.

    Raises:
      AssertionError: if an event is lost or changed, something stays open, or the
        second resume adds anything to the first.

    """
    store = ak.MemoryStore()
    async with store:
        claim = await store.claim(session_id, token="dead", create=True)  # noqa: S106  # the name of a claim is no secret
        await store.write([ak.Append(claim, events)])
    opened, ended = await _resumed(session_id, store, revive, check_ended)
    assert opened[: len(events)] == [*events], "what is durable stays as it is"
    again, _ = await _resumed(session_id, store, revive, check_ended)
    added = again[len(ended) :]
    assert again == ended, f"a second resume has nothing to add: {added}"


async def _resumed(
    session_id: str,
    store: ak.MemoryStore,
    revive: Callable[[ak.Kernel], object],
    check_ended: Callable[[ak.Agent, Sequence[ak.SessionEvent]], object],
) -> tuple[list[ak.SessionEvent], list[ak.SessionEvent]]:
    """Resume the session, let everything settle, and end it.

    Always a checkpoint.

    Cancellation:
      Passes through.

    Returns:
      Its whole log, before and after its end.

    """
    async with ak.open_kernel(store, clock=lambda: 0.0, strict=True) as kernel:
        revive(kernel)
        handle = await kernel.resume(session_id)
        agent = handle.agent
        await trio.testing.wait_all_tasks_blocked()
        assert agent.status == "idle", "a resume starts nothing"
        await agent.session.flush()
        opened = await read_all(agent.session)
        check_ended(agent, opened)
        await handle.dispose()
        ended = await read_all(agent.session)
        check_ended(agent, ended)
    return opened, ended


async def read_all(session: ak.Session) -> list[ak.SessionEvent]:
    """Read what a store has of a session.

    Always a checkpoint.

    Cancellation:
      Passes through.

    """
    found: list[ak.SessionEvent] = []
    while page := await session.read(after=len(found), limit=_PAGE):
        found += page
    return found
