"""What went wrong with a request, as a `ModelError`: pure classification.

A failure has a code, says whether the same request may succeed later, and how long
the provider asked to wait. Three sources, one vocabulary: an HTTP status with its
body, an error object inside a stream that began with 200, and an exception of the
HTTP client. The texts are the provider's own, cut to a length, and never hold a
secret of the request (`Secrets`).
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx2
import msgspec

from agentkernel import ModelError, clean_text

from .wire import decode

__all__ = [
    "Secrets",
    "client_failure",
    "retry_after",
    "status_failure",
    "stream_failure",
]

_MAX_TEXT = 500

# What providers write in an error's `type` or `code`, by the first part that fits.
_WORDS: tuple[tuple[str, str, bool], ...] = (
    ("insufficient_quota", "rate-limit", False),
    ("billing", "auth", False),
    ("rate_limit", "rate-limit", True),
    ("too_many_requests", "rate-limit", True),
    ("overloaded", "overloaded", True),
    ("unavailable", "overloaded", True),
    ("insufficient_system_resource", "overloaded", True),
    ("authentication", "auth", False),
    ("invalid_api_key", "auth", False),
    ("permission", "auth", False),
    ("invalid", "invalid-request", False),
    ("not_found", "invalid-request", False),
    ("context_length", "invalid-request", False),
    ("exceed_context", "invalid-request", False),
    ("too_large", "invalid-request", False),
    ("badrequest", "invalid-request", False),
    ("content_filter", "invalid-request", False),
)


class Secrets:
    """Text that must not appear in any message; its `repr` does not show it."""

    def __init__(self, values: tuple[str, ...] = ()) -> None:
        self._values = tuple(sorted((v for v in values if v), key=len, reverse=True))

    def hide(self, text: str) -> str:
        """Give the text with each secret in it replaced."""
        for value in self._values:
            text = text.replace(value, "[hidden]")
        return text

    def excerpt(self, text: str) -> str:
        """Give the beginning of a foreign text, on one line, without secrets."""
        line = " ".join(self.hide(clean_text(text)).split())
        return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


class ErrorBody(msgspec.Struct, frozen=True):
    """The names under which servers put what went wrong."""

    error: object = None
    message: object = None
    detail: object = None
    type: object = None
    code: object = None
    status: object = None


def status_failure(
    status: int, headers: Mapping[str, str], body: str, secrets: Secrets
) -> ModelError:
    """Describe an answer whose status is not 200."""
    words, message, _ = _read(body)
    code, retryable = _by_status(status)
    if _classify(words) == ("rate-limit", False):
        retryable = False
    should = headers.get("x-should-retry", "").lower()
    if should in {"true", "false"}:
        retryable = should == "true"
    if 300 <= status < 400:
        message = message or "a redirect, which is not followed; correct base_url"
    text = secrets.excerpt(message or body) or "no further word"
    return ModelError(
        f"the provider answered {status}: {text}",
        code=code,
        retryable=retryable,
        retry_after=retry_after(headers),
        status=status,
    )


def stream_failure(
    payload: str, secrets: Secrets, *, status: int | None = 200
) -> ModelError:
    """Describe an error that came inside a stream, as the text of its JSON."""
    words, message, number = _read(payload)
    code, retryable = _classify(words) or ("server", True)
    if number is not None and _classify(words) is None:
        code, retryable = _by_status(number)
        status = number
    text = secrets.excerpt(message or payload) or "no further word"
    if words and words not in text:
        text = f"{secrets.excerpt(words)}: {text}"
    return ModelError(
        f"the provider reported an error: {text}",
        code=code,
        retryable=retryable,
        status=status,
    )


def client_failure(
    error: httpx2.HTTPError | httpx2.InvalidURL, secrets: Secrets, *, streaming: bool
) -> ModelError:
    """Describe what the HTTP client raised, before or while the answer came."""
    chain = _chain(error)
    words = next((str(link) for link in chain if str(link)), type(error).__name__)
    text = secrets.excerpt(words)
    if isinstance(
        error,
        httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError,
    ):
        return ModelError(f"the request cannot be sent: {text}", code="invalid-request")
    if isinstance(error, httpx2.DecodingError):
        return ModelError(
            f"the answer cannot be decoded: {text}", code="server", retryable=True
        )
    if streaming and isinstance(error, httpx2.RemoteProtocolError | httpx2.ReadError):
        return ModelError(
            f"the connection ended in the middle of the answer: {text}",
            code="truncated",
            retryable=True,
        )
    return ModelError(
        f"no connection to the provider: {text}",
        code="connection",
        # A certificate that was refused does not get better by trying again.
        retryable=not any(isinstance(e, ssl.SSLCertVerificationError) for e in chain),
    )


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how many seconds the provider asks to wait, None if it does not say.

    A date counts from the answer's own `Date` if it has one, so that a wrong clock
    on either side does not matter. What is negative or garbage says nothing; a date
    that has passed is no wait.
    """
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if math.isfinite(seconds) and seconds >= 0:
            return seconds
    until = _date(headers.get("retry-after"))
    if until is None:
        return None
    now = _date(headers.get("date"))
    return max(0.0, until - (time.time() if now is None else now))


def _date(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError, TypeError):
        return None


def _read(text: str) -> tuple[str, str, int | None]:
    """Find the type words, the message and the number in an error's JSON."""
    try:
        body = decode(text, ErrorBody)
    except ValueError:
        return "", "", None
    if isinstance(body.error, str):
        return _words(body), body.error, _number(body)
    try:
        inner = msgspec.convert(body.error, ErrorBody)
    except msgspec.ValidationError:
        inner = body
    message = next(
        (m for m in (inner.message, inner.detail) if isinstance(m, str) and m), ""
    )
    return _words(inner), message, _number(inner)


def _words(body: ErrorBody) -> str:
    return " ".join(w for w in (body.type, body.code) if isinstance(w, str))


def _number(body: ErrorBody) -> int | None:
    for value in (body.status, body.code):
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            return int(value)
    return None


def _classify(words: str) -> tuple[str, bool] | None:
    words = words.lower()
    for part, code, retryable in _WORDS:
        if part in words:
            return code, retryable
    return None


def _by_status(status: int) -> tuple[str, bool]:
    if status in {401, 402, 403}:
        return "auth", False
    if status == 429:
        return "rate-limit", True
    if status in {503, 529}:
        return "overloaded", True
    if status >= 500 or status in {408, 409, 425}:
        return "server", True
    return "invalid-request", False


def _chain(error: BaseException | None) -> list[BaseException]:
    """Give an exception and those behind it, the outermost first."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain
