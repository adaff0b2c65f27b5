"""When a failed request is tried again, and after how long: a pure decision.

The policy knows nothing of turns and never waits itself: `on_request_error` is the
listener to register, and the kernel does the waiting. It is the only layer that
retries: the providers themselves try once.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import msgspec

from agentkernel import Fail, ModelError, RequestError, Retry

__all__ = ["RetryPolicy"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how patiently a request is tried again.

    Attributes:
      attempts: how many attempts there are in all, the first one included.
      first_delay: seconds before the second attempt; each wait after it is doubled.
      max_delay: the longest wait of our own, in seconds.
      max_retry_after: the longest wait that a provider may ask for, in seconds; if
        it asks for more, the request fails now, visibly.
      retry_after_output: whether an attempt that showed output is tried again. Its
        text is then seen twice, so it is off.
      random: gives a number from 0 up to 1; for the jitter.

    """

    attempts: int = 4
    first_delay: float = 1.0
    max_delay: float = 30.0
    max_retry_after: float = 120.0
    retry_after_output: bool = False
    random: Callable[[], float] = random.random  # noqa: S311  # jitter is no secret

    def delay(
        self, error: ModelError, attempt: int, *, delivered: bool = False
    ) -> float | None:
        """Decide about one failed attempt. Not a checkpoint.

        Args:
          error: how it failed.
          attempt: its number, counting from 1.
          delivered: whether it had shown text, reasoning or a call.

        Returns:
          Seconds to wait before the next attempt, None for no next attempt. A wait
          that the provider asked for is never cut short, only lengthened by jitter.

        """
        if not error.retryable or attempt >= self.attempts:
            return None
        if delivered and not self.retry_after_output:
            return None
        jitter = self.random()
        if error.retry_after is not None:
            if error.retry_after > self.max_retry_after:
                return None
            return error.retry_after + jitter * min(self.first_delay, self.max_delay)
        doubled: float = self.first_delay * 2.0 ** min(attempt - 1, 64)
        return min(self.max_delay, doubled) * (0.5 + jitter / 2)

    async def on_request_error(
        self,
        payload: RequestError,
        proceed: Callable[[RequestError], Awaitable[Retry | Fail]],
    ) -> Retry | Fail:
        """Answer `agent/request-error`: `agent.on(RequestError, policy.on_request_error)`.

        What another listener, further in, wants to retry is left to it. A checkpoint
        only if one of those is.

        Cancellation:
          Passes through.

        """
        decision = await proceed(payload)
        if isinstance(decision, Retry):
            return decision
        delay = self.delay(payload.error, payload.attempt, delivered=payload.delivered)
        return Fail() if delay is None else Retry(delay)
