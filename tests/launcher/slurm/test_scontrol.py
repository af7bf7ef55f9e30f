"""Asking Slurm is bounded, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import wait_for

from robust_run.slurm.scontrol import ask
from robust_run.slurm.tools import SystemTools


@pytest.fixture
def hung(tmp_path: Path) -> Path:
    """A folder with commands like those of sites that wrap them, which hang as with a slurmctld that is gone."""
    script = tmp_path / "scontrol"
    script.write_text("#!/bin/sh\nsleep 1000 &\necho $! > $0.new\nmv $0.new $0.pid\nwait\n")
    script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    "call",
    [
        lambda env, limit_s: ask(("show", "config"), env, timeout_s=limit_s).text,
        lambda env, limit_s: SystemTools().run([f"{env['PATH'].partition(':')[0]}/scontrol"], env, limit_s).err,
    ],
)
def test_a_command_that_hangs_is_ended_with_all_it_has_started(
    hung: Path, call: Callable[[dict[str, str], float], str]
) -> None:
    for limit_s in (1.0, 30.0):  # on a busy machine it may not have begun in time
        assert f"no answer within {limit_s:g} s" in call({"PATH": f"{hung}:/usr/bin:/bin"}, limit_s)
        if (hung / "scontrol.pid").exists():
            break
    pid = int((hung / "scontrol.pid").read_text())
    wait_for(lambda: not alive(pid), "the child to be gone")


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_a_doctor_that_is_told_to_end_ends_its_srun_in_good_order_and_leaves_nothing(tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    trap = "trap 'echo cancelled > $0.said; exit 1' TERM"
    srun.write_text(f"#!/bin/sh\n[ $1 = --version ] && exit\n{trap}\n: > $0.began\n/bin/sleep 1000 & wait\n")
    srun.chmod(0o755)
    argv = [
        sys.executable,
        "-c",
        "from robust_run.robust_cli import main; main()",
        "slurm",
        "doctor",
        "--nodes=2",
        f"--folder={tmp_path}",
    ]
    env = {**os.environ, "PATH": str(tmp_path)}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for((tmp_path / "srun.began").exists, "the step", 60)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert "waiting for 2 nodes" in err
    assert "sbatch: not in PATH" in out, "what was found before is said before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["srun", "srun.began", "srun.said"]
