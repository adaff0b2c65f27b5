"""An event as one line of JSON, and back.

Sits beside the folds: stores call it in their own threads, so nothing here keeps
state between calls. A line is `{"seq", "time", "type", "data", "ignorable"?,
"format"?}`; `format` is left out at 1. What holds for every line:

- Nothing is lost. A fact comes back equal to what went in, and fields that this
  version does not know ride along in `SessionEvent.raw` and are written again.
- Binary content, and every string of more than 64 kB, leaves the line. It becomes
  `{"$blob": sha256, "size": n}`, with `"text": true` if it was a string; a genuine
  name `$blob` in somebody's JSON gets one more `$` in front, and so does a name
  that already has several.
- A line never fails to encode for its text: half of a surrogate pair becomes U+FFFD,
  here as in `clean_text`.
- A line of a newer format, or of a type that this version does not know, refuses the
  session unless it says `ignorable`. One of an older format is brought up to date
  by `UPCASTS`, in memory only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from .._errors import SessionFormatError
from .._json import EMPTY, clean_text, freeze
from .._messages import Blob
from .events import (
    FACTS,
    FORMAT,
    Ending,
    Fact,
    HookReturned,
    RetryScheduled,
    SessionEvent,
    SessionHeader,
    SubagentDescribed,
    TurnEnded,
)

__all__ = ["MAX_INLINE_BYTES", "UPCASTS", "Upcast", "decode_event", "encode_event"]

# A tree of JSON whose names are as their owner wrote them and whose binary content
# is in place, as `bytes`.
Plain: TypeAlias = (
    "bool | int | float | str | bytes | Sequence[Plain] | dict[str, Plain] | None"
)
LoadBlob: TypeAlias = Callable[[str], bytes]
# Takes an event type and its data one format further.
Upcast: TypeAlias = Callable[[str, dict[str, Plain]], tuple[str, dict[str, Plain]]]
Upcasts: TypeAlias = Mapping[int, Upcast]

MAX_INLINE_BYTES = 65_536

# By the format that each entry reads; `UPCASTS[1]` would make format 2 of format 1.
UPCASTS: dict[int, Upcast] = {}

# A string on the line that ends like this is the only trace of a blob or of a name
# that had to be escaped. Lines are searched with `find`: `_MARK in line` first takes
# the mark for a number, and the error that it drops costs more than the search.
_MARK = b'$blob"'
_ESCAPED = re.compile(r"\$+blob", re.ASCII)
_NOTHING: dict[str, bytes] = {}
_ABORTED = Ending("aborted")
# They hold floats from outside the log, which need not be finite.
_MEASURED = frozenset({RetryScheduled, HookReturned})


class _Line(msgspec.Struct, omit_defaults=True):
    seq: int
    time: float
    type: str
    data: object
    ignorable: bool = False
    format: int = 1


class _Envelope(msgspec.Struct):
    seq: int
    time: float
    type: str
    data: msgspec.Raw
    ignorable: bool = False
    format: int = 1


class _NeedsCare(Exception):
    """If something on the line has no JSON form of its own."""


def encode_event(
    event: SessionEvent, *, inline: bool = False
) -> tuple[bytes, dict[str, bytes]]:
    """Write an event as one line, without the newline.

    Not a checkpoint; safe in any thread.

    Args:
      event: what to write.
      inline: keep all content on the line, however long, bytes as base64: for a
        line that goes to another program.

    Returns:
      The line, and the content that left it, by SHA-256. The content must be
      durable no later than the line.

    """
    data = event.data
    if inline or type(data) in _MEASURED:
        return _encode_with_care(event, inline=inline)
    raw = data if event.raw is None else msgspec.Raw(event.raw)
    try:
        line = _encode(
            _Line(event.seq, event.time, data.TYPE, raw, event.ignorable, FORMAT)
        )
    except (_NeedsCare, UnicodeEncodeError):
        return _encode_with_care(event)
    if len(line) <= MAX_INLINE_BYTES and line.find(_MARK) < 0:
        return line, {}
    return _encode_with_care(event)


def _encode_with_care(
    event: SessionEvent, *, inline: bool = False
) -> tuple[bytes, dict[str, bytes]]:
    plain = (
        _plain(event.data)
        if event.raw is None
        else _unpack(event.raw, _NOTHING.__getitem__)
    )
    blobs: dict[str, bytes] = {}
    data = _to_wire(plain, None if inline else blobs)
    line = _Line(event.seq, event.time, event.type, data, event.ignorable, FORMAT)
    return _encode(line), blobs


def decode_event(line: bytes, load_blob: LoadBlob) -> SessionEvent | None:
    """Read an event from its line.

    Not a checkpoint; safe in any thread.

    Args:
      line: without its newline.
      load_blob: gives the content of a SHA-256; raises KeyError if it is not there.

    Returns:
      The event, or None if this version does not know it and may skip it.

    Raises:
      SessionFormatError: if the line is damaged, is of a newer format or an unknown
        required type, or breaks a rule of its type.

    """
    return decode_as(line, load_blob, FORMAT, UPCASTS)


def decode_as(
    line: bytes, load_blob: LoadBlob, current: int, upcasts: Upcasts
) -> SessionEvent | None:
    """Read an event as the version does whose format is `current`."""
    try:
        envelope = _open(line)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as exc:
        raise SessionFormatError(f"not an event: {exc}") from exc
    decoder = _DECODERS.get(envelope.type)
    if envelope.format == current and decoder is not None and line.find(_MARK) < 0:
        try:
            fact = decoder.decode(envelope.data)
            ours = fact if _encode(fact) == bytes(envelope.data) else None
        except (msgspec.MsgspecError, _NeedsCare, UnicodeDecodeError, RecursionError):
            ours = None  # the long way says what is wrong
        if ours is not None:
            if type(ours) in _CHECKED:
                _check(ours, None, envelope.seq, current)
            seq, time = envelope.seq, envelope.time
            return SessionEvent(seq, time, ours, envelope.ignorable)
    return _decode_with_care(envelope, load_blob, current, upcasts)


def _open(line: bytes) -> _Envelope:
    try:
        return _decode_envelope(line)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Another program may have written half of a surrogate pair, which only the
        # standard library reads; freezing applies the rule for text.
        return _decode_envelope(_encode(freeze(json.loads(line))))


def _decode_with_care(
    envelope: _Envelope, load_blob: LoadBlob, current: int, upcasts: Upcasts
) -> SessionEvent | None:
    """Read what is not exactly as this version would have written it."""
    seq, kind, version = envelope.seq, envelope.type, envelope.format
    # What may be skipped is skipped unread: its content may mean anything.
    if envelope.ignorable and (
        version > current or (version == current and kind not in FACTS)
    ):
        return None
    if not 1 <= version <= current:
        raise SessionFormatError(_formats(version, current), seq=seq)
    raw = bytes(envelope.data)
    try:
        plain = _unpack(raw, load_blob)
        changed = version < current or _MARK in raw
        for number in range(version, current):
            assert isinstance(plain, dict)
            kind, plain = upcasts[number](kind, plain)
        cls = FACTS.get(kind)
        if cls is None and envelope.ignorable:
            return None
        if cls is None:
            raise SessionFormatError(
                f"its type is {kind!r}; {_formats(version, current)}", seq=seq
            )
        fact = msgspec.convert(plain, cls, dec_hook=_dec_hook)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError) as exc:
        raise SessionFormatError(
            f"its content is not {kind!r}: {exc}", seq=seq
        ) from exc
    except KeyError as exc:
        raise SessionFormatError(f"its blob {exc} is missing", seq=seq) from exc
    _check(fact, plain, seq, current)
    kept = None
    if _has_unknown(plain, fact):
        kept = _encode(_to_wire(plain, None)) if changed else raw
    return SessionEvent(seq, envelope.time, fact, envelope.ignorable, kept)


def _check(fact: Fact, plain: Plain, seq: int, current: int) -> None:
    """Apply the rules that a type alone does not express."""
    told = False
    if isinstance(fact, SessionHeader):
        if not 1 <= fact.format <= current:
            raise SessionFormatError(_formats(fact.format, current), seq=seq)
    elif isinstance(fact, TurnEnded) and fact.reason.kind == "aborted":
        told = fact.reason != _ABORTED or _more_than(plain, "turn", "reason")
        told = told or _more_than(plain, "kind", inside="reason")
    elif isinstance(fact, SubagentDescribed) and fact.ending is not None:
        told = fact.ending.kind == "aborted" and (
            fact.ending != _ABORTED or _more_than(plain, "kind", inside="ending")
        )
    if told:
        raise SessionFormatError(
            "an aborted ending holds its kind and nothing else", seq=seq
        )


def _formats(version: int, current: int) -> str:
    return f"it is of format {version}; this version reads formats 1 to {current}"


def _more_than(plain: Plain, *names: str, inside: str | None = None) -> bool:
    if isinstance(plain, dict) and inside is not None:
        plain = plain.get(inside)
    return isinstance(plain, dict) and not plain.keys() <= set(names)


def _has_unknown(plain: Plain, value: object) -> bool:
    """Tell whether a tree has fields that the value decoded from it lacks."""
    if isinstance(value, msgspec.Struct) and isinstance(plain, dict):
        config = value.__struct_config__
        fields = value.__struct_fields__
        if not plain.keys() <= {*fields, config.tag_field}:
            return True
        return any(
            _has_unknown(plain[name], getattr(value, name))
            for name in fields
            if name in plain
        )
    if isinstance(value, tuple) and isinstance(plain, list):
        items = cast("tuple[object, ...]", value)
        return any(_has_unknown(p, v) for p, v in zip(plain, items, strict=True))
    return False


def _plain(fact: Fact) -> Plain:
    """Take a fact apart into a tree."""
    return cast(
        "Plain",
        msgspec.to_builtins(fact, builtin_types=(bytes,), enc_hook=_to_bytes),
    )


def _to_bytes(value: object) -> bytes:
    if isinstance(value, Blob):
        return value.data
    raise TypeError(f"{type(value).__name__} has no place in an event")


def _to_wire(plain: Plain, blobs: dict[str, bytes] | None) -> Plain:
    """Make a tree fit for a line; what leaves it is put into `blobs`.

    Without `blobs` all content stays, binary content as base64 beside its hash.
    """
    if isinstance(plain, str):
        return _text(clean_text(plain), blobs)
    if isinstance(plain, bytes):
        if blobs is not None:
            return _put(plain, blobs)
        return {**_put(plain, {}), "base64": base64.b64encode(plain).decode()}
    if isinstance(plain, dict):
        return {_escape(name): _to_wire(item, blobs) for name, item in plain.items()}
    if isinstance(plain, list | tuple):
        return [_to_wire(item, blobs) for item in plain]
    return _finite(plain) if isinstance(plain, float) else plain


def _finite(number: float) -> float:
    """Replace what JSON has no number for: a log that cannot be written is worse."""
    if math.isfinite(number):
        return number
    return 0.0 if math.isnan(number) else math.copysign(sys.float_info.max, number)


def _text(text: str, blobs: dict[str, bytes] | None) -> Plain:
    if blobs is None or len(text) * 4 <= MAX_INLINE_BYTES:
        return text
    content = text.encode()
    if len(content) <= MAX_INLINE_BYTES:
        return text
    return {**_put(content, blobs), "text": True}


def _put(content: bytes, blobs: dict[str, bytes]) -> dict[str, Plain]:
    digest = hashlib.sha256(content).hexdigest()
    blobs[digest] = content
    return {"$blob": digest, "size": len(content)}


def _escape(name: str) -> str:
    name = clean_text(name)
    return f"${name}" if _ESCAPED.fullmatch(name) else name


def _from_wire(wire: Plain, load_blob: LoadBlob) -> Plain:
    """Undo `_to_wire`."""
    if isinstance(wire, list):
        return [_from_wire(item, load_blob) for item in wire]
    if not isinstance(wire, dict):
        return wire
    if "$blob" in wire:
        return _fetch(wire, load_blob)
    return {
        name[1:] if _ESCAPED.fullmatch(name) else name: _from_wire(item, load_blob)
        for name, item in wire.items()
    }


def _fetch(reference: dict[str, Plain], load_blob: LoadBlob) -> Plain:
    """Get the content that left the line, and check that it is that content."""
    digest, inline = reference["$blob"], reference.get("base64")
    if not isinstance(digest, str):
        raise TypeError("a blob is named by something that is not a hash")
    content = load_blob(digest) if inline is None else base64.b64decode(str(inline))
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"the content of blob {digest} is damaged")
    return content.decode() if reference.get("text") is True else content


def _unpack(raw: bytes, load_blob: LoadBlob) -> Plain:
    return _from_wire(cast("Plain", msgspec.json.decode(raw)), load_blob)


def _enc_hook(value: object) -> object:
    raise _NeedsCare


def _dec_hook(kind: type, value: object) -> object:
    if kind is Blob:
        if isinstance(value, bytes):
            return Blob(value)
        raise TypeError("expected a blob")
    return freeze(value) if value != {} else EMPTY


_encode = msgspec.json.Encoder(enc_hook=_enc_hook).encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_DECODERS: dict[str, msgspec.json.Decoder[Fact]] = {
    name: msgspec.json.Decoder(cls, dec_hook=_dec_hook) for name, cls in FACTS.items()
}
_CHECKED = frozenset({SessionHeader, TurnEnded, SubagentDescribed})
