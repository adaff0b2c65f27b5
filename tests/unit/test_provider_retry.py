"""What a failed request says about the next attempt: plain values."""

from __future__ import annotations

import math

import httpx2
import hypothesis
import hypothesis.strategies as st
import pytest

from agentkernel import ModelError
from agentkernel.bridges.providers import RetryPolicy
from agentkernel.bridges.providers.failures import (
    Secrets,
    retry_after,
    status_failure,
)

NOW = "Mon, 30 Nov 2026 12:00:00 GMT"
HIDDEN = Secrets(("sk-secret",))


@pytest.mark.case("PROV-08")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "garbage", "retry-after": "7"}, 7.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:09 GMT", "date": NOW}, 9.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": NOW}, 0.0),
        ({"retry-after": "Mon, 99 Foo 2026 12:00:00 GMT", "date": NOW}, None),
    ],
)
def test_a_wait_that_the_provider_asks_for_is_read(
    headers: dict[str, str], seconds: float | None
) -> None:
    """PROV-08: seconds, milliseconds and dates count; garbage says nothing."""
    assert retry_after(httpx2.Headers(headers)) == seconds


@pytest.mark.case("PROV-08")
def test_a_date_without_the_servers_own_clock_counts_from_ours() -> None:
    """PROV-08: a date far ahead is a long wait, one long past is none."""
    ahead = retry_after({"retry-after": "Mon, 30 Nov 2099 12:00:00 GMT"})
    assert ahead is not None
    assert ahead > 1e6
    assert retry_after({"retry-after": "Mon, 30 Nov 1999 12:00:00 GMT"}) == 0.0


@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "invalid-request", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "invalid-request", False),
        (408, "server", True),
        (413, "invalid-request", False),
        (429, "rate-limit", True),
        (500, "server", True),
        (502, "server", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
        (307, "invalid-request", False),
        (204, "invalid-request", False),
    ],
)
def test_a_status_says_what_it_is_and_whether_it_may_pass(
    status: int, code: str, *, retryable: bool
) -> None:
    """The code is what an application decides by."""
    error = status_failure(status, {}, '{"error": {"message": "Because."}}', HIDDEN)
    assert (error.code, error.retryable, error.status) == (code, retryable, status)
    assert str(error) == f"the provider answered {status}: Because."


def test_the_provider_has_the_last_word_on_whether_to_retry() -> None:
    """A quota that is used up does not come back; some servers say so themselves."""
    quota = '{"error": {"message": "Pay.", "code": "insufficient_quota"}}'
    assert not status_failure(429, {}, quota, HIDDEN).retryable
    no = {"x-should-retry": "false", "retry-after": "3"}
    error = status_failure(500, no, "", HIDDEN)
    assert not error.retryable
    assert error.retry_after == 3.0
    assert status_failure(400, {"x-should-retry": "true"}, "", HIDDEN).retryable


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "no further word"),
        ("<html>\n  down </html>", "<html> down </html>"),
        ('{"detail": "Not that."}', "Not that."),
        ('{"error": "Not that."}', "Not that."),
        ('{"message": "Not that."}', "Not that."),
        ('{"object": "error", "message": "Not that.", "code": 400}', "Not that."),
        ('{"error": {"message": "bad key sk-secret"}}', "bad key [hidden]"),
        ("sk-secret", "[hidden]"),
    ],
)
def test_the_text_is_the_providers_own_without_secrets(
    body: str, expected: str
) -> None:
    """Each server puts its words elsewhere; none of them may show the key."""
    assert str(status_failure(400, {}, body, HIDDEN)).endswith(f": {expected}")
    assert len(str(status_failure(400, {}, body * 9000, HIDDEN))) < 600


def policy(jitter: float = 0.0, **fields: float) -> RetryPolicy:
    return RetryPolicy(random=lambda: jitter, **fields)  # type: ignore[arg-type]  # numbers by name  # pyright: ignore[reportArgumentType]


def error(wait: float | None = None, *, retryable: bool = True) -> ModelError:
    return ModelError("no", retryable=retryable, retry_after=wait)


def test_waits_double_up_to_a_limit_and_end_with_the_attempts() -> None:
    """Patience grows, but a person is waiting."""
    waits = [
        policy(0.0, attempts=6, first_delay=1.0, max_delay=5.0).delay(error(), n)
        for n in range(1, 8)
    ]
    assert waits == [0.5, 1.0, 2.0, 2.5, 2.5, None, None]


def test_what_cannot_pass_is_not_tried_again() -> None:
    """A wrong key stays wrong."""
    assert policy().delay(error(retryable=False), 1) is None


@pytest.mark.case("PROV-06")
def test_an_attempt_that_showed_output_is_tried_again_only_if_asked() -> None:
    """PROV-06: its text would be seen twice."""
    assert policy().delay(error(), 1, delivered=True) is None
    again = RetryPolicy(retry_after_output=True)
    assert again.delay(error(), 1, delivered=True) is not None


@pytest.mark.case("PROV-08")
@pytest.mark.clause("T5c")
def test_the_providers_wait_is_kept_up_to_a_cap_and_beyond_it_fails() -> None:
    """PROV-08: too early is refused again; an hour of silence helps nobody."""
    assert policy(0.5).delay(error(60.0), 1) == 60.5
    assert policy().delay(error(0.0), 1) == 0.0
    assert policy().delay(error(121.0), 1) is None


@pytest.mark.case("PROV-08")
@hypothesis.given(
    attempt=st.integers(1, 2000),
    jitter=st.floats(0, 1, exclude_max=True),
    wait=st.none() | st.floats(0, 120),
)
def test_a_wait_is_finite_and_never_shorter_than_asked(
    attempt: int, jitter: float, wait: float | None
) -> None:
    """PROV-08: at any attempt, with any jitter."""
    delay = policy(jitter, attempts=5000).delay(error(wait), attempt)
    assert delay is not None
    assert math.isfinite(delay)
    assert (wait or 0.0) <= delay <= (wait or 0.0) + 30.0
