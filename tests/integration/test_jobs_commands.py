"""Commands as jobs: real processes, that end with their job and with their agent."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import agentkernel as ak
from agentkernel.bridges.approvals import Approvals
from agentkernel.bridges.jobs import Job, Jobs, command_job, job_tools
from agentkernel.testing import ScriptedModel, call, check_log
from agentkernel.tools import Policy, ProcessLimits, Rule

PYTHON = shlex.quote(sys.executable)
QUICK = ProcessLimits(grace=0.2)


@asynccontextmanager
async def office(model: ScriptedModel) -> AsyncGenerator[tuple[ak.Agent, Jobs]]:
    async with ak.open_kernel(ak.MemoryStore(), strict=True) as kernel:
        kernel.models.register("m", model)
        jobs = Jobs(kernel)
        async with kernel.open("s", model="m") as agent:
            with trio.fail_after(60):
                yield agent, jobs


def runs(pid: int) -> bool:
    """Whether a process is there, and not only its name that nobody has read yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def said(job: Job, lines: int) -> list[int]:
    """Wait until a job has printed that many process ids."""
    while job.output.count("\n") < lines:
        assert await job.wait_for_output()
    return [int(line) for line in job.output.split()]


async def test_a_command_reports_its_output_and_its_exit_code() -> None:
    """Once; a failure is called one."""
    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        good = jobs.start(
            agent, command_job("echo out; echo err >&2"), kind="c", title="t"
        )
        bad = jobs.start(agent, command_job(["false"]), kind="c", title="t")
        lost = jobs.start(agent, command_job(["/nowhere/at-all"]), kind="c", title="t")
        assert await good.wait() == "completed"
        assert await bad.wait() == "failed"
        assert await lost.wait() == "failed"
        assert good.output == "out\nerr\n"
        assert good.result is not None
        assert good.result.text == "exit code 0\nout\nerr\n"
        await agent.when_idle()
        check_log(agent.session.events)


STUBBORN = f"""
trap '' TERM
{PYTHON} -c 'import os, signal, time
signal.signal(15, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)' &
echo $$
wait
"""


@pytest.mark.case("PROC-01", "PROC-06", "LIFE-01")
@pytest.mark.parametrize("way", ["kill", "dispose"])
async def test_a_command_that_ignores_its_end_is_gone_with_its_family(way: str) -> None:
    """Before `wait` returns, and before the agent has gone."""
    async with office(ScriptedModel(default=["ok"])) as (agent, jobs):
        body = command_job(STUBBORN, limits=QUICK)
        job = jobs.start(agent, body, kind="c", title="stubborn")
        pids = await said(job, 2)
        assert all(runs(pid) for pid in pids)
        if way == "kill":
            job.kill()
            assert await job.wait() == "killed"
            assert not [pid for pid in pids if runs(pid)]
    assert not [pid for pid in pids if runs(pid)]
    assert job.status == ("killed" if way == "kill" else "ended")


@pytest.mark.case("PROC-02", "PROC-03")
async def test_a_job_ends_with_its_leader_not_with_a_pipe() -> None:
    """What it leaves behind is ended, listed, and does not hold the job open."""
    model = ScriptedModel(default=["ok"])
    async with office(model) as (agent, jobs):
        body = command_job("sleep 600 & echo $!", limits=QUICK)
        job = jobs.start(agent, body, kind="c", title="leaves")
        assert await job.wait() == "completed"
        [pid] = [int(line) for line in job.output.split()]
        assert not runs(pid)
        line = f"background process {pid} ended: sleep 600"
        assert job.result is not None
        assert line in job.result.text.splitlines()
        left = {"pid": pid, "command": "sleep 600", "ended": True}
        assert job.result.meta["survivors"] == (left,)
        await agent.when_idle()
    assert line in str(model.requests[0].messages[0])


@pytest.mark.case("SUB-03")
async def test_a_model_runs_a_command_beside_its_turns() -> None:
    """It goes on after a stop of the turn, with the folder that it was given."""
    model = ScriptedModel(
        [call("job_start", command="pwd; sleep 600")], ["started"], default=["ok"]
    )
    async with office(model) as (agent, jobs):
        Approvals(agent, Policy((Rule("allow", "job_*"),)))
        for tool in job_tools(jobs, cwd=os.sep):
            agent.tools.add(tool)
        agent.followup("go")
        await agent.when_idle()
        [job] = jobs.of(agent)
        while not job.output:
            assert await job.wait_for_output()
        assert job.output == f"{os.sep}\n"
        assert not agent.cancel().effective
        assert job.status == "running"
        model.add([call("job_kill", job=job.id)], ["killed it"])
        agent.followup("enough")
        await agent.when_idle()
        assert [one.status for one in jobs.of(agent)] == ["killed"]


@pytest.mark.parametrize("command", ["", [], ()])
def test_no_command_is_a_mistake_of_whoever_asks_for_it(
    command: str | list[str],
) -> None:
    """It is told before there is a job."""
    with pytest.raises(ValueError, match="no command"):
        command_job(command)
