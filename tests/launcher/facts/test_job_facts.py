"""Facts of real jobs: each is what happened to the job, and what `robust status` says of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from code_jobs import crash, finish, robust, wait_for_steps, write_code
from fact_ground import lost_s, sum_of
from jobs import Job, run, running, script, wait_for

from robust_run.fleet.words import RunFacts
from robust_run.launcher.operator.reading.run_facts import lives_here, read_facts
from robust_run.robust_cli import robust as commands

HERE = socket.gethostname()
OPTIONS = ("--nproc-per-node", "2", "--probation-steps", "10", "--restart-grace", "1")
WAITS = """
import os, time
open(f"up-{os.environ['TORCHELASTIC_RESTART_COUNT']}-{os.environ['RANK']}", "w").close()
while not os.path.exists("enough"):
    time.sleep(0.01)
"""


def facts_of(job: Job) -> RunFacts:
    return read_facts(str(job.run_dir), time.time(), lives_here(os.environ))


def assert_sums_up(facts: RunFacts) -> None:
    """Each second was effective, or is what one incident cost, or what none did."""
    assert lost_s(facts) + (facts.effective_s or 0.0) == pytest.approx(facts.until_s - facts.began_s, abs=1.0)


def test_a_job_that_is_killed_updated_and_watched(tmp_path: Path) -> None:
    """It trains; a rank is killed; its code is updated, fails, and is taken back; it ends well."""
    write_code(tmp_path)
    with running(tmp_path, *OPTIONS, "train.py") as job:
        wait_for_steps(tmp_path, 0)
        wait_for(lambda: job.events("code_captured"), "the code to be captured")
        wait_for(lambda: (job.run_dir / "api.json").exists(), "somebody to ask")
        live = facts_of(job)
        assert (live.state, live.incidents, len(live.starts)) == ("live", (), 1)
        assert live.until_s == pytest.approx(time.time(), abs=60)
        assert_sums_up(live)
        killed_s = time.time()
        crash(job, 0)
        wait_for_steps(tmp_path, 1)
        write_code(tmp_path, scale=2, extra="assert step % 5 != 3, 'third time unlucky'")
        robust(tmp_path, "update", "--when", "now", run=job)
        wait_for_steps(tmp_path, 3)
        assert finish(job, tmp_path) == 0
    facts = facts_of(job)
    assert (facts.run_id, facts.state, facts.nodes, facts.ranks) == (job.run_id, "done", 1, 2)
    assert facts.name.endswith("train.py")
    kill, update, fault = facts.incidents
    assert kill.at_s == pytest.approx(killed_s, abs=10)
    assert (kill.kind, kill.rule, kill.component, kill.nodes) == ("crash", "died_of_signal", "unknown", (HERE,))
    assert (kill.action, kill.evicted) == ("relaunch", ())
    assert kill.code.startswith("1-")
    assert (update.rule, update.symptom, update.component) == ("operator", "operator", "unknown")
    assert (fault.kind, fault.component, fault.trouble, fault.action) == ("code", "code", "user_exception", "rollback")
    assert fault.code.startswith("2-")
    assert all(sum_of(each.lost) > 0 for each in facts.incidents)
    first, second = facts.code
    assert (first.version, first.failed, first.rolled_back) == (kill.code, 0, False)
    assert (second.version, second.failed, second.rolled_back) == (fault.code, 1, True)
    assert [each.attempt for each in facts.starts] == [0, 1, 2, 3]
    assert all(each.ready_s is not None for each in facts.starts)
    assert facts.steps is not None and facts.steps > 20
    assert facts.step_s is not None and facts.step_s > 0.02
    assert facts.node_s == {HERE: pytest.approx(facts.until_s - facts.began_s, abs=5)}
    assert_sums_up(facts)
    said = json.loads(CliRunner().invoke(commands, ["status", "--json", str(job.run_dir)]).output)
    assert facts.ettr == pytest.approx(said["ettr"], abs=1e-9)
    assert facts.until_s == said["ended_unix_s"]


def test_a_program_that_raises_fails_with_the_code(tmp_path: Path) -> None:
    path = script(tmp_path, "raise ValueError('no data')")
    code, job = run(tmp_path, "--no-warm", "--nproc-per-node", "1", "--max-restarts", "1", path)
    assert code != 0
    facts = facts_of(job)
    assert facts.state == "failed"
    assert {(each.kind, each.component, each.nodes) for each in facts.incidents} == {("code", "code", (HERE,))}
    assert facts.incidents[-1].action == "stop"
    assert (facts.ettr, facts.effective_s) == (None, 0.0)
    assert_sums_up(facts)


def test_a_job_that_is_told_to_stop_is_stopped_and_had_no_fault(tmp_path: Path) -> None:
    path = script(tmp_path, WAITS)
    with running(tmp_path, "--no-warm", "--nproc-per-node", "2", path) as job:
        job.wait_for_file("up-0-1", tmp_path)
        job.signal(signal.SIGTERM)
        job.finish()
    facts = facts_of(job)
    assert (facts.state, facts.incidents, facts.steps) == ("stopped", (), None)
    assert facts.ettr is not None and facts.ettr > 0, "its steps are not counted, so it trained while its workers ran"
    assert_sums_up(facts)


def test_a_job_whose_controller_was_killed_is_lost_and_known_up_to_its_last_line(tmp_path: Path) -> None:
    path = script(tmp_path, WAITS)
    with running(tmp_path, "--no-warm", "--nproc-per-node", "1", path) as job:
        job.wait_for_file("up-0-0", tmp_path)
        job.pids(0)
        assert facts_of(job).state == "live"
        for pid in (job.pid, job.agent_pid()):
            os.kill(pid, signal.SIGKILL)
        job.finish()
        wait_for(lambda: facts_of(job).state == "lost", "its controller to be gone")
    facts = facts_of(job)
    assert facts.until_s == job.journal()[-1]["at"]
    assert facts.node_s.keys() == {HERE}
    assert_sums_up(facts)
