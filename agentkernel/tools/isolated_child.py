"""The child's side of `isolated`: calls one function and answers.

Run as a program only. The answer goes to what was standard output at the start; file
descriptor 1 is turned over to standard error, so that nothing the function prints, or
a library of C code does, gets in between. The process then leaves at once: threads
that the function left behind do not hold it.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys

import msgspec
import trio

from agentkernel import clean_text

from .isolated import Job, Reply
from .outputs import to_output
from .schema import AsyncFunction, Function, Parameters, is_async

__all__ = ["main"]


def main() -> None:
    """Read one job from standard input, do it, answer, and end the process."""
    answer = os.dup(1)
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        reply = _work(job)
    except (Exception, SystemExit) as exc:  # noqa: BLE001  # it goes to the parent
        text = clean_text(str(exc))
        name = type(exc).__name__
        reply = Reply(problem=f"{name}: {text}" if text else name)
    with os.fdopen(answer, "wb") as stream:
        stream.write(msgspec.json.encode(reply))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _work(job: Job) -> Reply:
    fn = _find(job.function)
    parameters = Parameters.of(fn)
    arguments = msgspec.json.decode(job.arguments, type=dict[str, object])
    values = parameters.values(arguments)
    value = _call_async(fn, values) if is_async(fn) else fn(**values)
    return Reply.of(to_output(value, job.function))


def _find(name: str) -> Function:
    """Import the function; a decorator may have put a tool in its place."""
    module, _, qualname = name.partition(":")
    found: object = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    fn: object = getattr(found, "fn", found)
    if not callable(fn):
        raise TypeError(f"{name} is not a function")
    return fn


def _call_async(fn: AsyncFunction, values: dict[str, object]) -> object:
    return trio.run(functools.partial(fn, **values))
