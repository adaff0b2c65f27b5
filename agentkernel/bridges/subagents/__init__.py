"""Subagents: agents that work for another agent.

Children in this process are `Subagents` and `agent_tool`; agents in a program of their
own, behind the Agent Client Protocol, are `RemoteAgent` and `remote_agent_tool`.
"""

from .remote import (
    Decide as Decide,
    RemoteAgent as RemoteAgent,
    RemoteUpdate as RemoteUpdate,
    run_remote as run_remote,
)
from .remote_tool import (
    UPDATE as UPDATE,
    RemoteAgentTool as RemoteAgentTool,
    remote_agent_tool as remote_agent_tool,
)
from .schema import AnswerSchema as AnswerSchema, SchemaLike as SchemaLike
from .spawn import (
    MAX_DEPTH as MAX_DEPTH,
    AgentTool as AgentTool,
    ChildOptions as ChildOptions,
    Subagents as Subagents,
    agent_tool as agent_tool,
)
from .values import (
    NO_ANSWER as NO_ANSWER,
    ChildRefusedError as ChildRefusedError,
    Persona as Persona,
    Report as Report,
    add_usage as add_usage,
    as_output as as_output,
)
