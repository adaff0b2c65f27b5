"""What the type checkers know of a listener, from the event that it is given to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import assert_type

import agentkernel as ak


async def pre_step(
    payload: ak.PreStep,
    following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
) -> ak.Enter | ak.Reject:
    assert_type(payload.signal, ak.TurnSignal)
    assert_type(payload.messages, tuple[ak.UserMessage, ...])
    assert_type(payload.agent, ak.Agent)
    decision = await following(payload)
    assert_type(decision, ak.Enter | ak.Reject)
    return decision


async def rejects(payload: ak.PreStep, following: object) -> ak.Reject:
    return ak.Reject("no")


async def request(
    payload: ak.Request,
    following: Callable[[ak.Request], Awaitable[ak.ModelRequest]],
) -> ak.ModelRequest:
    assert_type(payload.request, ak.ModelRequest)
    return await following(payload)


async def recovers(
    payload: ak.RequestError,
    following: Callable[[ak.RequestError], Awaitable[ak.Retry | ak.Fail]],
) -> ak.Retry | ak.Fail:
    assert_type(payload.error, ak.ModelError)
    return ak.Retry(1.0)


async def executes(
    payload: ak.Execute,
    following: Callable[[ak.Execute], Awaitable[ak.ToolOutput]],
) -> ak.ToolOutput:
    assert_type(payload.call, ak.ToolInvocation)
    return await following(payload)


async def stopping(payload: ak.TurnStopping) -> None:
    assert_type(payload.signal, ak.TurnSignal)


def told(payload: ak.CancelRequested) -> None:
    assert_type(payload.cause, ak.CancelCause)
    assert_type(payload.turn, int | None)


async def told_late(payload: ak.CancelRequested) -> None:
    """An observer must not wait."""


def decides_at_once(
    payload: ak.PreStep,
    following: Callable[[ak.PreStep], Awaitable[ak.Enter | ak.Reject]],
) -> ak.Enter | ak.Reject:
    return ak.Enter(payload.messages)


def registers(agent: ak.Agent, kernel: ak.Kernel) -> None:
    for owner in (agent, kernel):
        assert_type(owner.on(ak.PreStep, pre_step), Callable[[], None])
        owner.on(ak.PreStep, rejects)
        owner.on(ak.Request, request)
        owner.on(ak.RequestError, recovers)
        owner.on(ak.Execute, executes)
        owner.on(ak.TurnStopping, stopping)
        owner.on(ak.CancelRequested, told)
        owner.on(ak.StatusChanged, lambda payload: print(payload.status))  # noqa: T201  # never run
    # A sync function where it must be async, and a payload of another event.
    agent.on(ak.PreStep, decides_at_once)  # type: ignore[arg-type]  # it must be async  # pyright: ignore[reportCallIssue, reportArgumentType]
    agent.on(ak.Request, pre_step)  # type: ignore[arg-type]  # of another event  # pyright: ignore[reportCallIssue, reportArgumentType]
    agent.on(ak.CancelRequested, pre_step)  # type: ignore[arg-type]  # it decides  # pyright: ignore[reportCallIssue, reportArgumentType]
    agent.on(ak.TurnStopping, told)  # type: ignore[arg-type]  # it must be async  # pyright: ignore[reportCallIssue, reportArgumentType]


def stops(agent: ak.Agent) -> None:
    assert_type(agent.cancel(), ak.CancelReceipt)
    assert_type(agent.cancel(ak.PARENT, keep_inbox=True, turn=3), ak.CancelReceipt)
    agent.cancel("user")  # type: ignore[arg-type]  # a typed cause  # pyright: ignore[reportArgumentType]
    agent.cancel(ak.USER, True)  # type: ignore[call-arg]  # keyword only  # noqa: FBT003  # pyright: ignore[reportCallIssue]
    ak.CancelCause("timeout")  # type: ignore[arg-type]  # a closed vocabulary  # pyright: ignore[reportArgumentType]
    ak.StopReason("timeout")  # type: ignore[arg-type]  # likewise  # pyright: ignore[reportArgumentType]
