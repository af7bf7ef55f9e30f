"""Slurm may end a job in the moment it starts: before its nodes have met, and before anything is on record."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import wait_for
from slurm_tasks import task_env

PREEMPTED = "JobId=41 JobState=RUNNING Requeue=1 Restarts=0 BatchFlag=1 BatchHost=rr1 EndTime=Unknown PreemptTime=1000"
SCONTROL = f"""#!/bin/sh
echo "$@" >> $0.log
case "$*" in
    "show job"*) echo "{PREEMPTED}" ;;
    "show node"*) until [ -e $0.go ]; do sleep 0.1; done; exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (
            "127.0.0.1",
            "see the output of the task on 127.0.0.1",
        ),  # nodes look for each other, and there is no first one
        ("a" * 64, ""),  # no name server is asked for it: the launcher asks Slurm where the first node is
    ],
)
def test_a_job_that_must_make_room_before_it_has_begun_is_requeued(tmp_path: Path, first: str, said: str) -> None:
    scontrol, asked = tmp_path / "scontrol", tmp_path / "scontrol.log"
    scontrol.write_text(SCONTROL)
    scontrol.chmod(0o755)
    (tmp_path / "train.py").touch()
    nodes = {"SLURM_STEP_NODELIST": f"{first},rr2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    env = {**os.environ, **task_env(**nodes), "PATH": f"{tmp_path}:/usr/bin:/bin", "ROBUST_TOKEN": "secret" * 6}
    argv = [sys.executable, "-m", "robust_run", "train.py"]
    with subprocess.Popen(argv, env=env, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            if said:
                assert said in process.stderr.readline()
            else:
                wait_for(asked.exists, "the question where the first node is", 60)
            process.send_signal(signal.SIGTERM)
            (tmp_path / "scontrol.go").touch()
            wait_for(lambda: process.poll() is not None, "the launcher to end", 60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "requeue 41" in asked.read_text().splitlines()
