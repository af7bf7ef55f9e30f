"""`robust report` of a real job: while it runs, when its controller is stopped, and when that was killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job, running, script, wait_for
from page_ground import assert_harmless

PROGRAM = """
import os, time
while not os.path.exists("enough"):
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.path.exists("die"):
        raise RuntimeError("words")
    time.sleep(0.02)
"""
OPTIONS = ("--nproc-per-node", "2", "--no-warm", "--restart-grace", "1")

pytestmark = pytest.mark.timeout(600)


def robust(job: Job, *words: str) -> str:
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words, str(job.run_dir)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(path: Path) -> str:
    """Return what a reader of a page sees, roughly."""
    html = path.read_text()
    assert_harmless(html)
    without = re.sub(r"<(style|script|title)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", without.replace("<wbr>", "")))


def asks(job: Job) -> bool:
    """Whether its controller answers."""
    return json.loads(robust(job, "status", "--json"))["alive"]


def test_a_report_of_a_job_that_runs_is_about_a_job_that_runs(tmp_path: Path) -> None:
    with running(tmp_path, *OPTIONS, script(tmp_path, PROGRAM), cwd=tmp_path) as job:
        job.pids()
        wait_for(lambda: asks(job), "the controller to answer")
        said = robust(job, "report")
        assert "the job runs: this is how it was at" in said
        assert "robust top shows it live" in said
        assert "api.json" not in said, "no URL is there"
        page = words(job.run_dir / "report.html")
        assert re.search(r"as of \d\d:\d\d:\d\d, running", page)
        assert "2 ranks on 1 node, attempt 0" in page
        assert "--resume" not in page
        assert "No end was recorded" not in page
        (tmp_path / "die").touch()
        job.pids(attempt=1)
        assert json.loads(robust(job, "report", "--json"))["life"] == "running"
        incident = words(job.run_dir / "incidents" / "0001.html")
        assert re.search(r"as of \d\d:\d\d:\d\d, running", incident)
        assert "robust evict" not in incident, "it has no other node"
        assert "robust check /" not in incident, "the node trains"
        (tmp_path / "enough").touch()
        assert job.finish() == 0
    assert "running" not in words(job.run_dir / "report.html").partition("What the figures mean")[0]


def test_commands_that_an_incident_page_of_a_job_that_runs_advises_are_carried_out(tmp_path: Path) -> None:
    with running(tmp_path, *OPTIONS, script(tmp_path, PROGRAM), cwd=tmp_path) as job:
        job.pids()
        (tmp_path / "die").touch()
        job.pids(attempt=1)
        robust(job, "report")
        html = (job.run_dir / "incidents" / "0001.html").read_text()
        commands = re.findall(r"<code class=cmd>(.*?)</code>", html)
        for command in commands:
            if command == "robust check":
                continue  # it is typed where nothing trains
            assert command.startswith("robust "), command
            program = f"{sys.executable} -c 'from robust_run.robust_cli import main; main()' {command[7:]}"
            (tmp_path / "train.py").write_text(PROGRAM + "# mended\n")
            done = subprocess.run(program, shell=True, capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, (command, done.stderr)
        (tmp_path / "enough").touch()
        assert job.finish() == 0


def test_a_controller_that_is_stopped_is_not_called_dead_and_one_that_was_killed_is(tmp_path: Path) -> None:
    with running(tmp_path, *OPTIONS, script(tmp_path, PROGRAM), cwd=tmp_path) as job:
        job.pids()
        wait_for(lambda: asks(job), "the controller to answer")
        os.kill(job.agent_pid(), signal.SIGSTOP)
        said = robust(job, "report")
        assert "did not answer within 10 s" in said
        assert "but a process holds its journal, so it lives" in said
        page = words(job.run_dir / "report.html")
        assert "It is not known here whether it runs" in page
        assert "--resume" not in said + page
        os.kill(job.agent_pid(), signal.SIGKILL)
        job.finish()
        said = robust(job, "report")
        assert f"robust-run --resume {job.run_dir}" in said
        page = words(job.run_dir / "report.html")
        assert "No end was recorded" in page
        assert "robust-run --resume" in page
        assert "running" not in page.partition("What the figures mean")[0]
