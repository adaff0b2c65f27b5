"""Every error that agentkernel raises on purpose, drawn once.

AgentKernelError
├── AgentBusyError           maintenance was asked of an agent that is not idle
├── AgentDisposedError       a verb was used on an agent whose session has closed
├── KernelClosedError        an agent was asked of a kernel whose block is ending
├── MaintenanceCancelled     a cancel reached `run_maintenance` before it was done
├── MessageConflictError     an id that the session knows came with another body
├── MessageNotPendingError   an inbox operation named a message that is not pending
├── ModelError               a model request failed
├── OwnTurnError             an agent's own turn was asked to wait for its own end
├── ToolArgumentsError       a tool was given arguments that it does not accept
├── TurnCancelled            code of a turn asked, and the turn has been stopped
├── UnknownNameError         no model, tool or agent of that name is registered
├── WrongThreadError         a verb was called outside the kernel's Trio thread
└── StorageError             the store could not do what was asked
    ├── SessionBusyError     another kernel holds the session's claim
    ├── SessionDisplacedError  this kernel's claim was taken over by another
    ├── SessionExistsError   a session of that id exists already
    ├── SessionFormatError   a stored session cannot be read
    └── SessionNotFoundError no session of that id exists

An outcome (a turn that was stopped, a tool call that was denied) is a value and
never an exception. Each class keeps its arguments as attributes and builds its
own message from them.
"""

__all__ = [
    "AgentBusyError",
    "AgentDisposedError",
    "AgentKernelError",
    "KernelClosedError",
    "MaintenanceCancelled",
    "MessageConflictError",
    "MessageNotPendingError",
    "ModelError",
    "OwnTurnError",
    "SessionBusyError",
    "SessionDisplacedError",
    "SessionExistsError",
    "SessionFormatError",
    "SessionNotFoundError",
    "StorageError",
    "ToolArgumentsError",
    "TurnCancelled",
    "UnknownNameError",
    "WrongThreadError",
]


class AgentKernelError(Exception):
    """The base of every error in this tree."""


class AgentBusyError(AgentKernelError):
    """If maintenance is asked of an agent that is running."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        super().__init__(
            f"agent {agent_id!r} is running; await when_idle() before maintenance"
        )


class AgentDisposedError(AgentKernelError):
    """If a verb is used after the agent's session has closed."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        super().__init__(f"agent {agent_id!r} is disposed; resume its session to go on")


class KernelClosedError(AgentKernelError):
    """If an agent is asked of a kernel whose block is ending."""

    def __init__(self, verb: str) -> None:
        self.verb = verb
        super().__init__(f"{verb}() came after the end of the kernel's block began")


class MaintenanceCancelled(AgentKernelError):
    """If a cancel reached `run_maintenance` before its function was done."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        super().__init__(f"maintenance of agent {agent_id!r} was cancelled")


class MessageConflictError(AgentKernelError):
    """If an id that the session has accepted before comes with another body."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(
            f"message id {message_id!r} was accepted before with another body; "
            "send it under a new id"
        )


class MessageNotPendingError(AgentKernelError):
    """If an inbox operation names a message that is not pending."""

    def __init__(self, message_id: str) -> None:
        self.message_id = message_id
        super().__init__(f"message {message_id!r} is not pending")


class ModelError(AgentKernelError):
    """If a model request fails: what a provider raises from its stream.

    Attributes:
      code: a short stable word: `connection`, `rate-limit`, `overloaded`,
        `invalid-request`, `auth`, `truncated`, `idle`, `empty`, `server`, `error`.
      retryable: whether the same request may succeed later.
      retry_after: seconds that the provider asked to wait, None if it did not.
      status: the HTTP status, None if there was none.

    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "error",
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        super().__init__(message)


class OwnTurnError(AgentKernelError):
    """If an agent's own turn asks to wait for that agent's idle or disposal."""

    def __init__(self, agent_id: str, verb: str) -> None:
        self.agent_id = agent_id
        self.verb = verb
        super().__init__(
            f"{verb}() was awaited inside a turn of agent {agent_id!r}, which it "
            "would wait for; call it from outside the turn"
        )


class ToolArgumentsError(AgentKernelError):
    """If a tool is given arguments that it does not accept."""


class TurnCancelled(AgentKernelError):
    """If code of a turn asks its signal to raise and the turn has been stopped."""

    def __init__(self) -> None:
        super().__init__("the turn was stopped")


class UnknownNameError(AgentKernelError, LookupError):
    """If no model, tool or agent of that name is registered."""

    def __init__(self, kind: str, name: str, known: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.name = name
        self.known = known
        hint = f"; known: {', '.join(known)}" if known else "; none is registered"
        super().__init__(f"no {kind} named {name!r}{hint}")


class WrongThreadError(AgentKernelError):
    """If a verb is called outside the thread in which the kernel runs.

    Attributes:
      owner: whose verb it is: `agent`, `kernel`, `job`, say.

    """

    def __init__(self, verb: str, owner: str = "agent") -> None:
        self.verb = verb
        self.owner = owner
        super().__init__(
            f"{verb}() must run in the kernel's Trio thread; from another thread "
            f"use trio.from_thread.run_sync({owner}.{verb}, ..., trio_token=token)"
        )


class StorageError(AgentKernelError):
    """If the store could not do what was asked.

    Attributes:
      durable_seq: the last sequence number known to be durable, None if unknown.

    """

    def __init__(self, message: str, *, durable_seq: int | None = None) -> None:
        self.message = message
        self.durable_seq = durable_seq
        tail = "" if durable_seq is None else f" (last durable event: {durable_seq})"
        super().__init__(message + tail)


class SessionBusyError(StorageError):
    """If a session is open: in another kernel, or in this one.

    Attributes:
      session_id: which session.
      holder: who has it open; None if an agent of the same kernel does.

    """

    def __init__(self, session_id: str, holder: str | None) -> None:
        self.session_id = session_id
        self.holder = holder
        advice = (
            "is open in this kernel, or just being opened; "
            f"kernel.get({session_id!r}) gives its agent"
            if holder is None
            else f"is held by {holder}; close it there first, or pass takeover=True "
            "if that owner is known to be gone"
        )
        super().__init__(f"session {session_id!r} {advice}")


class SessionDisplacedError(StorageError):
    """If this kernel's claim on a session was taken over by another."""

    def __init__(self, session_id: str, *, durable_seq: int | None = None) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id!r} was taken over by another kernel",
            durable_seq=durable_seq,
        )


class SessionExistsError(StorageError):
    """If a session of that id exists already."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id!r} exists already; resume it, or choose another id"
        )


class SessionFormatError(StorageError):
    """If a stored session cannot be read.

    Attributes:
      seq: the sequence number of the offending event, None if it has none.

    """

    def __init__(self, problem: str, *, seq: int | None = None) -> None:
        self.problem = problem
        self.seq = seq
        where = "" if seq is None else f" at event {seq}"
        super().__init__(f"the session cannot be read{where}: {problem}")


class SessionNotFoundError(StorageError):
    """If no session of that id exists."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"no session {session_id!r} in this store")
