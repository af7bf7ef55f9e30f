"""The agent's own faults: they end the job, they never leave it unwatched."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from jobs import Job, script

#: Breaks the agent while it ends an attempt, then runs the command as it is.
BROKEN = """
import os, sys
from robust_run.launcher.agent import evidence
def gather(*arguments):
    raise RuntimeError("a bug of ours")
evidence.gather = gather
from robust_run import cli
sys.exit(cli.run(sys.argv[1:], os.environ))
"""


def test_a_fault_of_ours_ends_the_job_and_says_so(tmp_path: Path) -> None:
    path = script(
        tmp_path, "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    )
    run_id = f"t{uuid.uuid4().hex[:12]}"
    argv = [sys.executable, "-c", BROKEN, "--log-dir", str(tmp_path / "runs"), "--run-id", run_id, path]
    import os

    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, env={**os.environ, "TEST_JOB": run_id})
    job = Job(process, tmp_path / "runs", run_id)
    assert job.finish() == 70
    assert "a fault of robust-run ended the job" in job.err
    assert "a bug of ours" in job.err
    job.assert_nothing_left()
