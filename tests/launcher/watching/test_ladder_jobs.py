"""The ladder in jobs of one node: real workers that die and die again, real checks between, and an end that tells all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from jobs import Job, run, running, script, wait_for

from robust_run.launcher.operator.commands.explain_command import explain

DIES = """
import os, signal
os.kill(os.getpid(), signal.SIGSEGV)
"""
QUICK = ("--no-warm", "--diagnose-checks", "compute")


@pytest.fixture(autouse=True)
def own_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What checks measured before is this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def rungs(job: Job) -> list[tuple[str, str]]:
    return [(each["rung"], each["rule"]) for each in job.actions("decided")]


def test_a_program_that_always_dies_climbs_all_rungs_and_ends_with_what_is_known(tmp_path: Path) -> None:
    code, job = run(tmp_path, "--no-warm", "--max-restarts", "9", script(tmp_path, DIES))
    assert code == 128 + signal.SIGSEGV
    assert rungs(job) == [
        ("diagnose", "unexplained_diagnose"),
        ("reattempt", "all_passed"),
        ("stop", "nothing_left"),
    ]
    assert len(job.events("attempt_started")) == 3
    (checked,) = job.events("diagnosed")
    assert not checked["judgement"].get("suspects") and checked["judgement"]["passed"]
    assert "FAILED after 3 attempts" in job.err
    assert "tried: check the nodes, try again as it is" in job.err and "no replay: the job has one node" in job.err
    assert (job.run_dir / "incidents" / "0002.checks.json").exists()
    job.assert_nothing_left()
    told = CliRunner().invoke(explain, ["2", str(job.run_dir)], standalone_mode=False).output
    assert "incident 2, attempt 1: rank 0 was killed by SIGSEGV" in told
    assert "1. diagnose" in told and "2. reattempt" in told and "checks: nothing was found on 1 node" in told
    told = CliRunner().invoke(explain, ["3", str(job.run_dir)], standalone_mode=False).output
    assert "the same episode: incident 2" in told and "3. stop" in told
    told = CliRunner().invoke(explain, ["1", str(job.run_dir)], standalone_mode=False).output
    assert "no diagnosis was made" in told


def test_a_loss_that_is_nan_has_the_node_checked_at_once_and_again_is_the_end(tmp_path: Path) -> None:
    path = script(tmp_path, "raise ValueError('loss is nan at step 17')\n")
    code, job = run(tmp_path, *QUICK, path)
    assert code == 1
    assert rungs(job)[0] == ("diagnose", "nan_diagnose") and rungs(job)[-1][0] == "stop"
    assert len(job.events("attempt_started")) == 2
    assert job.actions("record_incident")[0]["verdict"]["kind"] == "nan"
    assert "loss is nan at step 17" in job.err


def test_a_fault_that_passes_is_settled_once_the_job_does_well(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "import os\nif int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 2:\n    os.kill(os.getpid(), 11)\n",
    )
    code, job = run(tmp_path, *QUICK, path)
    assert code == 0
    assert [rung for rung, _ in rungs(job)] == ["diagnose", "reattempt", "settled"]
    assert job.actions("decided")[-1]["rule"] == "reattempt_helped"


def test_the_only_node_computes_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_CHECK_FAULTS", '[{"check": "compute", "flip": 1.0}]')
    code, job = run(tmp_path, *QUICK, script(tmp_path, DIES))
    assert code == 139
    assert rungs(job)[-1] == ("stop", "lone_node")
    assert len(job.events("attempt_started")) == 2


def test_a_worker_that_is_killed_is_never_a_reason_to_check(tmp_path: Path) -> None:
    code, job = run(
        tmp_path, "--no-warm", "--max-restarts", "4", script(tmp_path, "import os\nos.kill(os.getpid(), 9)\n")
    )
    assert code == 137
    assert len(job.events("attempt_started")) == 5
    assert not job.actions("diagnose") and not rungs(job)


def test_a_job_that_is_told_to_stop_while_its_node_is_checked_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBUST_CHECK_FAULTS", '[{"check": "compute", "hang": true}]')
    with running(tmp_path, *QUICK, script(tmp_path, DIES)) as job:
        wait_for(lambda: job.actions("diagnose"), "checks")
        wait_for(lambda: _below(job.pid, "diagnostics.compute"), "a check program")
        job.signal(signal.SIGTERM)
        assert job.finish() == 143
        job.assert_nothing_left()


def test_checks_end_with_a_launcher_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUST_CHECK_FAULTS", '[{"check": "compute", "hang": true}]')
    with running(tmp_path, *QUICK, script(tmp_path, DIES)) as job:
        pids = wait_for(lambda: _below(job.pid, "diagnostics.compute"), "a check program")
        os.kill(job.pid, signal.SIGKILL)
        wait_for(lambda: not any(_runs(pid) for pid in pids), f"{pids} to end")
        job.finish()
        job.assert_nothing_left()


def _below(pid: int, word: str) -> list[int]:
    """Return the processes below one whose command has this word."""
    found = []
    queue = [pid]
    while queue:
        each = queue.pop()
        try:
            queue += [int(child) for child in Path(f"/proc/{each}/task/{each}/children").read_text().split()]
            if word.encode() in Path(f"/proc/{each}/cmdline").read_bytes():
                found.append(each)
        except OSError:
            continue
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
