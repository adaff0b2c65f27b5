"""For stores: a checker of what the port promises; our own are tested with it."""

from __future__ import annotations

import trio

from .store_rules import RULES, MakeStore

__all__ = ["MakeStore", "check_store"]


async def check_store(make_store: MakeStore) -> None:
    """Check that a store keeps what `SessionStore` promises, power loss apart.

    Each rule leaves sessions behind, so give it a place that you throw away.

    Always a checkpoint.

    Cancellation:
      Passes through; the stores are left, their sessions stay.

    Args:
      make_store: gives a fresh handle on the same storage each time.

    Raises:
      AssertionError: if a rule is broken; it names the rule.

    """
    for rule in RULES:
        try:
            await rule(make_store)
        except Exception as exc:
            what = str(exc) or type(exc).__name__
            raise AssertionError(f"{rule.__doc__} {what}") from exc
    await trio.lowlevel.checkpoint()
