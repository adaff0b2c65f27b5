"""What an agent's turn can wait on, as parts of a state machine that can be combined.

Each part brings one bridge into an `AgentMachine`: what is installed, the rules that
a client of it has, and what must be true of it when every task waits and when an
agent has ended. The verbs of the agent come in between, at any time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal, TypeAlias, TypeVar, cast

import pytest
import trio
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import agentkernel as ak
from agentkernel.bridges.approvals import (
    GRANT,
    Approvals,
    Question,
    StaleApprovalError,
)
from agentkernel.bridges.hooks import Hook, HookRun, Hooks, HookSettings
from agentkernel.bridges.jobs import (
    Job,
    JobLimitError,
    JobResult,
    Jobs,
    child_job,
)
from agentkernel.bridges.subagents import Persona, Subagents, agent_tool
from agentkernel.bridges.workflow import Flow, WorkflowOptions, WorkflowTool
from agentkernel.testing import call
from agentkernel.testing.machine import AgentMachine, Answer
from agentkernel.tools.approval import Policy, Rule

T = TypeVar("T")
SMALL = st.integers(0, 5)
Decision: TypeAlias = Literal["allow", "deny"]
DECISIONS: st.SearchStrategy[Decision] = st.sampled_from(("allow", "deny"))
PUSHES = Policy((Rule("ask", "push", scope="session"),), "allow")


def chosen(items: Sequence[T], which: int) -> T:
    return items[which % len(items)]


def body_of(fact: ak.Extension) -> dict[str, object]:
    return cast("dict[str, object]", fact.body)


class WithApprovals(AgentMachine):
    """The tool `push` is asked about, of every agent."""

    approvals: Approvals

    def __init__(self) -> None:
        super().__init__()
        self.closed: list[str] = []
        # Sessions with a yes for good, and the calls that were made in them since.
        self.granted: set[str] = set()
        self.waived: set[tuple[str, str]] = set()

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        self.approvals = Approvals(kernel, PUSHES)
        kernel.on(ak.Appended, self._question_seen)

    def revive(self, kernel: ak.Kernel) -> None:
        super().revive(kernel)
        Approvals(kernel, PUSHES)

    def tools(self) -> Iterable[ak.Tool]:
        return (*super().tools(), self.world.tool("push"))

    def answers(self) -> st.SearchStrategy[Answer]:
        pushes: list[Answer] = [
            (call("push"),),
            ("both", call("push"), call("look"), call("push")),
        ]
        return super().answers() | st.sampled_from(pushes)

    def _question_seen(self, payload: ak.Appended) -> None:
        agent, fact = payload.agent, payload.event.data
        if isinstance(fact, ak.ApprovalDecided):
            self.closed.append(fact.approval_id)
        elif isinstance(fact, ak.Extension) and fact.name == GRANT:
            self.granted.add(agent.id)
        elif isinstance(fact, ak.AssistantReplied) and agent.id in self.granted:
            self.waived |= {(agent.id, one.call_id) for one in fact.message.calls}
        elif (
            isinstance(fact, ak.ApprovalAsked)
            and (agent.id, fact.call_id) in self.waived
        ):
            self.problems.append(f"asked again after a yes for good: {fact}")

    def held(self) -> list[tuple[str, object]]:
        return super().held() + [(q.agent.id, q) for q in self.approvals.open()]

    def release(self) -> None:
        super().release()
        for question in self.approvals.open():
            self.approvals.answer(question.id, "deny")

    @rule(count=st.integers(1, 3))
    def ask(self, count: int) -> None:
        """Have the agent's model make calls that are asked about."""
        self.lead((call("push"),) * count)

    @precondition(lambda self: self.approvals.open())
    @rule(which=SMALL, decision=DECISIONS)
    def answer(self, which: int, decision: Decision) -> None:
        """Answer an open question, for this call alone."""
        question = chosen(self.approvals.open(), which)
        if decision == "allow":
            self.approvals.answer(question.id, "allow", scope="once")
        else:
            self.approvals.answer(question.id, "deny", reason="no")
        self._is_closed(question)

    @precondition(lambda self: self.approvals.open())
    @rule(which=SMALL)
    def answer_for_good(self, which: int) -> None:
        """Say yes for the session, and have its agent want the same again."""
        question = chosen(self.approvals.open(), which)
        assert question.may_last
        self.approvals.answer(question.id, "allow", scope="session")
        self._is_closed(question)
        self.settle()
        for waiting in self.world.waiting:
            if (waiting.kind, waiting.agent) == ("tool", question.agent.id):
                waiting.tell(("done",))
        self.settle()
        for waiting in self.world.waiting:
            if (waiting.kind, waiting.agent) == ("request", question.agent.id):
                waiting.tell((call("push"),))

    @precondition(lambda self: self.approvals.open())
    @rule(which=SMALL, keep=st.booleans())
    def dismiss(self, which: int, *, keep: bool) -> None:
        """Stop the turn that asks."""
        self.watch()
        question = chosen(self.approvals.open(), which)
        with self.own_cancel():
            if question.agent is self.agent:
                self.reference.cancel(keep_inbox=keep, turn=question.turn)
            receipt = self.approvals.dismiss(question.id, keep_inbox=keep)
        assert receipt.turn == question.turn, receipt
        self._is_closed(question)

    @precondition(lambda self: self.closed)
    @rule(which=SMALL, decision=DECISIONS)
    def answer_too_late(self, which: int, decision: Decision) -> None:
        """An answer to what is closed is an error, and changes nothing."""
        seqs = [agent.session.last_seq for agent in self.kernel.agents]
        approval_id = self.closed[-1 - which % len(self.closed)]
        with pytest.raises(StaleApprovalError):
            self.approvals.answer(approval_id, decision)
        after = [agent.session.last_seq for agent in self.kernel.agents]
        assert seqs == after, f"{approval_id} was answered too late"

    def _is_closed(self, question: Question) -> None:
        assert question not in self.approvals.open(), f"{question} is open"
        assert self.closed.count(question.id) == 1, f"{question} was not closed once"

    def check_settled(self) -> None:
        super().check_settled()
        for agent in self.kernel.agents:
            listed = [q.id for q in self.approvals.open(agent)]
            recorded = [q.approval_id for q in agent.session.open_approvals]
            assert listed == recorded, f"{agent}: {listed} are open, not {recorded}"
            assert agent.status == "running" or not listed, f"{agent}: {listed}"
        live = {agent.id for agent in self.kernel.agents}
        assert all(q.agent.id in live for q in self.approvals.open())


class GatedExecutor:
    """Runs hooks in memory: one of an event that is held waits to be told."""

    def __init__(self, machine: WithHooks) -> None:
        self._machine = machine

    async def run(self, hook: Hook, stdin: bytes, *, signal: ak.TurnSignal) -> HookRun:
        await trio.lowlevel.checkpoint()
        if hook.event not in self._machine.holding:
            return HookRun(0)
        agent = str(json.loads(stdin)["session_id"])
        answer: Answer | None = None
        with trio.CancelScope() as scope:
            unregister = signal.on_cancel(lambda _reason: scope.cancel())
            try:
                answer = await self._machine.world.wait("hook", agent, name=hook.event)
            finally:
                unregister()
        if answer is None:
            return HookRun(cancelled=True)
        for item in answer:
            if isinstance(item, Exception):
                return HookRun(2, stderr="no")
            if isinstance(item, ak.ToolCallChunk):
                return HookRun(0, stdout='{"continue": false, "stopReason": "halt"}')
        return HookRun(0, stdout="noted")


HOOKED = ("UserPromptSubmit", "PreToolUse", "PostToolUse", "Stop", "SubagentStop")


class WithHooks(AgentMachine):
    """A hook at each of many points; those of the events that are held wait."""

    def __init__(self) -> None:
        super().__init__()
        self.holding: set[str] = {"PreToolUse"}
        self.running: set[tuple[str, str]] = set()

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        self._hook_into(kernel)
        kernel.on(ak.Appended, self._hook_seen)

    def revive(self, kernel: ak.Kernel) -> None:
        super().revive(kernel)
        self._hook_into(kernel)

    def _hook_into(self, kernel: ak.Kernel) -> None:
        value: dict[str, object] = {}
        for event in (*HOOKED, "Interrupt", "SessionStart", "SessionEnd"):
            value[event] = [{"hooks": [{"type": "command", "command": event}]}]
        settings = HookSettings.from_json({"hooks": value})
        Hooks(kernel, settings, executor=GatedExecutor(self))

    def expects(self, message: ak.UserMessage) -> bool:
        return message.meta.get("source") == "hook" or super().expects(message)

    def expects_cancel(self, payload: ak.CancelRequested) -> bool:
        # A hook about a call that says `continue: false` parks what is pending.
        return payload.keep_inbox or super().expects_cancel(payload)

    def _hook_seen(self, payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.HookInvoked):
            self.running.add((payload.agent.id, fact.hook_id))
        elif isinstance(fact, ak.HookReturned):
            self.running.remove((payload.agent.id, fact.hook_id))

    @rule(count=st.integers(1, 2), event=st.sampled_from(HOOKED))
    def run_into_hooks(self, count: int, event: str) -> None:
        """Have the agent's model make calls, while hooks of an event wait."""
        self.holding.add(event)
        self.lead((call("look"),) * count)

    @rule(event=st.sampled_from(HOOKED))
    def hold_hooks(self, event: str) -> None:
        """Have the hooks of an event wait from now on, or not any more."""
        self.holding ^= {event}

    def check_settled(self) -> None:
        super().check_settled()
        running = {agent for agent, _ in self.running}
        waiting = {one.agent for one in self.world.waiting if one.kind == "hook"}
        assert running == waiting, f"{self.running}, of which {waiting} wait"
        for agent in self.kernel.agents:
            assert agent.status == "running" or agent.id not in running, agent


class WithJobs(AgentMachine):
    """Work that outlives turns: of its own, and, with children, detached ones."""

    MOST = 3
    jobs: Jobs

    def __init__(self) -> None:
        super().__init__()
        self.with_idle = False
        self.waited: list[tuple[Job, str]] = []

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        self.jobs = Jobs(kernel, max_jobs=self.MOST)
        kernel.on(ak.StatusChanged, self._owner_idle)

    def revive(self, kernel: ak.Kernel) -> None:
        super().revive(kernel)
        Jobs(kernel, max_jobs=self.MOST)

    def expects(self, message: ak.UserMessage) -> bool:
        is_notice = message.kind == "notice" and "job" in message.meta
        return is_notice or super().expects(message)

    def _owner_idle(self, payload: ak.StatusChanged) -> None:
        if payload.agent is self.agent and payload.status == "idle" and self.with_idle:
            self.with_idle = False
            for waiting in self.world.waiting:
                if waiting.kind == "job":
                    waiting.tell(("in that very tick",))

    async def _work(self, job: Job) -> JobResult:
        # It works for nobody's turn.
        answer = await self.world.wait("job", "", name=job.id)
        for item in answer:
            if isinstance(item, Exception):
                raise item
        return JobResult("the job is done")

    @rule(child=st.booleans())
    def start_job(self, *, child: bool) -> None:
        """Start a job, unless there are too many."""
        before = self.agent.session.last_seq
        body = child_job(Subagents(), "work") if child else self._work
        running = [j for j in self.jobs.of(self.agent) if j.status == "running"]
        if len(running) < self.MOST:
            self.jobs.start(self.agent, body, kind="test", title="work")
            return
        with pytest.raises(JobLimitError):
            self.jobs.start(self.agent, body, kind="test", title="work")
        assert self.agent.session.last_seq == before, "what is refused leaves no trace"

    @rule(lost=st.integers(0, 3))
    def crash_at_work(self, lost: int) -> None:
        """A job that a crash has cut off is told of, once."""
        self.start_job(child=False)
        self.crash_a_copy(lost)

    @rule()
    def finish_with_idle(self) -> None:
        """Have the jobs end in the tick in which their owner goes idle."""
        self.with_idle = True

    @precondition(lambda self: self.jobs.of(self.agent))
    @rule(which=SMALL)
    def kill_job(self, which: int) -> None:
        """End a job; one that has ended, or is being ended, is left as it is."""
        job = chosen(self.jobs.of(self.agent), which)
        expected = job.status == "running" and not job.was_killed
        assert job.kill() is expected, f"{job}: {expected}"

    @precondition(lambda self: self.jobs.of(self.agent))
    @rule(which=SMALL)
    def wait_for_job(self, which: int) -> None:
        """Wait for a job, from outside of any turn."""
        job = chosen(self.jobs.of(self.agent), which)

        async def wait() -> None:
            self.waited.append((job, await job.wait()))

        self.host.start(wait)

    def check_settled(self) -> None:
        super().check_settled()
        for job in self.jobs.of(self.agent):
            told = self.agent.session.record(f"{job.id}-ended")
            assert (job.status == "running") is (told is None), f"{job}, told {told}"
        for job, status in self.waited:
            assert job.status == status, f"{job} was waited for: {status}"

    def check_ended(self, agent: ak.Agent, log: Sequence[ak.SessionEvent]) -> None:
        super().check_ended(agent, log)
        notices: Counter[str] = Counter()
        facts: dict[str, Counter[str]] = {}
        for fact in (event.data for event in log):
            if isinstance(fact, ak.Extension) and fact.name.startswith("job/"):
                if body_of(fact)["owner"] == agent.id:
                    count = facts.setdefault(fact.name, Counter())
                    count[str(body_of(fact)["job"])] += 1
            elif isinstance(fact, ak.InboxSpliced) and fact.outcome is None:
                new = (m for m in fact.inserted if m.id not in fact.removed)
                notices.update(str(m.meta["job"]) for m in new if m.kind == "notice")
        started = facts.get("job/started", Counter())
        assert all(count == 1 for count in started.values()), started
        ended = facts.get("job/ended", Counter())
        assert ended == started, f"{started} were started, {ended} have ended"
        assert notices == started, f"{started} were started, {notices} were told"


class WithChildren(AgentMachine):
    """A model may have children, and they may have theirs; they use the same world."""

    def __init__(self) -> None:
        super().__init__()
        self.detached: set[str] = set()
        # Those that are to stop and have not come to it yet.
        self.stopping: dict[ak.Agent, ak.CancelCause] = {}

    def install(self, kernel: ak.Kernel) -> None:
        super().install(kernel)
        kernel.on(ak.Appended, self._child_seen)
        kernel.on(ak.CancelRequested, self._stop_seen)
        kernel.on(ak.StatusChanged, self._idle_seen)

    def revive(self, kernel: ak.Kernel) -> None:
        super().revive(kernel)
        if not isinstance(self, WithJobs):
            # They see to the children that a crash has cut off, too.
            Jobs(kernel)

    def tools(self) -> Iterable[ak.Tool]:
        personas = (Persona("plain"), Persona("fork", fork=True))
        return (*super().tools(), agent_tool(*personas, max_depth=2))

    def answers(self) -> st.SearchStrategy[Answer]:
        children: list[Answer] = [
            (call("agent", prompt="go"),),
            (call("agent", prompt="go", agent="fork"), call("agent", prompt="you")),
        ]
        return super().answers() | st.sampled_from(children)

    def _child_seen(self, payload: ak.Appended) -> None:
        fact = payload.event.data
        if isinstance(fact, ak.SubagentDescribed) and fact.detached:
            self.detached.add(fact.child)

    def _stop_seen(self, payload: ak.CancelRequested) -> None:
        self.stopping.setdefault(payload.agent, payload.cause)

    def _idle_seen(self, payload: ak.StatusChanged) -> None:
        if payload.status == "idle":
            self.stopping.pop(payload.agent, None)

    def working(self) -> set[str]:
        working = super().working()
        # Parents come first.
        for agent in self.kernel.agents:
            parent = agent.parent
            if parent is not None and agent.id not in self.detached:
                working |= {agent.id} if parent.id in working else set()
        return working

    @property
    def others(self) -> list[ak.Agent]:
        return [agent for agent in self.kernel.agents if agent is not self.agent]

    @rule(count=st.integers(1, 3), below=st.booleans())
    def have_children(self, count: int, *, below: bool) -> None:
        """Have the agent's model wait for children, and a child's for its own."""
        self.lead((call("agent", prompt="go"),) * count)
        for waiting in self.world.waiting:
            if below and waiting.agent != self.agent.id and waiting.kind == "request":
                waiting.tell((call("agent", prompt="deeper"),))
                self.settle()
                break

    @precondition(lambda self: self.others)
    @rule(which=SMALL, keep=st.booleans())
    def cancel_child(self, which: int, *, keep: bool) -> None:
        """Stop a child alone; whoever waits for it goes on."""
        chosen(self.others, which).cancel(keep_inbox=keep)

    @precondition(lambda self: self.others)
    @rule(keep=st.booleans())
    def cancel_all(self, *, keep: bool) -> None:
        """Stop the agent: those that its turn waits for are told in the same call."""
        working = self.working()
        below = [a for a in self.others if a.id in working and a.status == "running"]
        self.cancel(None, keep=keep)
        if self.agent in self.stopping:
            missed = [agent for agent in below if agent not in self.stopping]
            assert not missed, f"the stop has not reached {missed}"

    @precondition(lambda self: self.others)
    @rule(which=SMALL)
    def steer_child(self, which: int) -> None:
        """Talk to a child that works."""
        child = chosen(self.others, which)
        if child.status == "running":
            child.steer("and this")

    def check_settled(self) -> None:
        super().check_settled()
        working = self.working()
        awaited = [agent for agent in self.others if agent.id in working]
        assert self.agent.status == "running" or not awaited, f"{awaited} live on"

    def check_ended(self, agent: ak.Agent, log: Sequence[ak.SessionEvent]) -> None:
        super().check_ended(agent, log)
        copied = log[0].data
        assert isinstance(copied, ak.SessionHeader)
        own = log[copied.lineage.forked_at or 0 :]
        told = [e.data for e in own if isinstance(e.data, ak.SubagentDescribed)]
        begun = Counter(fact.child for fact in told if fact.ending is None)
        ended = Counter(fact.child for fact in told if fact.ending is not None)
        assert begun == ended, f"{agent}: {begun} were started, {ended} have ended"
        assert all(count == 1 for count in begun.values()), begun
        live = {other.id for other in agent.kernel.agents}
        assert not live & set(begun), f"{agent} went before {live & set(begun)}"


class WithWorkflow(WithChildren):
    """The tool `study` has six agents work: three at once, then three more."""

    def __init__(self) -> None:
        super().__init__()
        self.records: set[str] = set()

    def tools(self) -> Iterable[ak.Tool]:
        spec = ak.ToolSpec("study", "Studies.", {"type": "object"})
        # Its agents shall not have workflows of their own.
        looks = Persona("looks", tools=("look", "push"))

        async def ask(number: int, flow: Flow) -> ak.JsonValue:
            return await flow.agent(f"task {number}", persona=looks)

        async def study(flow: Flow, _arguments: ak.JsonObject) -> ak.JsonValue:
            words: list[ak.JsonValue] = []
            for phase in ("first", "second"):
                flow.phase(phase)
                words += await flow.parallel([partial(ask, n) for n in range(3)])
            return words

        tool = WorkflowTool(spec, study, options=WorkflowOptions(model="world"))
        return (*super().tools(), tool)

    def answers(self) -> st.SearchStrategy[Answer]:
        studies: list[Answer] = [("study", call("study"))]
        # What failed, or was stopped, is gone on with.
        studies += [(call("study", resume=name),) for name in sorted(self.records)]
        return super().answers() | st.sampled_from(studies)

    @rule()
    def begin_study(self) -> None:
        """Have the agent's model start a workflow."""
        self.lead((call("study"),))

    @rule(rounds=st.integers(1, 3), answer=st.sampled_from(["word", "other"]))
    def answer_all(self, rounds: int, answer: str) -> None:
        """Have everything that waits go on, a few times."""
        for _ in range(rounds):
            for which in range(len(self.world.waiting)):
                self.tell(which, (answer,))
            self.host.settle()

    def check_ended(self, agent: ak.Agent, log: Sequence[ak.SessionEvent]) -> None:
        super().check_ended(agent, log)
        extensions = [e.data for e in log if isinstance(e.data, ak.Extension)]
        flow = [f for f in extensions if f.name.startswith("workflow/")]
        if not flow:
            return
        self.records.add(agent.id)
        count = Counter(fact.name for fact in flow)
        assert count["workflow/started"] == count["workflow/ended"] == 1, count
        assert count["workflow/agent-started"] <= 6, count
        keys = Counter(
            str(body_of(f)["key"]) for f in flow if f.name == "workflow/agent-started"
        )
        assert all(number == 1 for number in keys.values()), f"ran twice: {keys}"
