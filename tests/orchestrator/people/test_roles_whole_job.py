"""A job of roles from outside, as a whole: after a kill, with a hang, with its leader stopped, and when it is over."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from jobs import kill, wait_for
from role_jobs import role_job

from robust_run.errors import PlatformError
from robust_run.orchestrator.course import files
from robust_run.robust_cli import robust


def said(*words: str) -> str:
    """Return what a command prints. Raises what it raises."""
    return CliRunner().invoke(robust, words, catch_exceptions=False, standalone_mode=False).output


def test_commands_that_are_given_the_whole_job_tell_of_all_its_members(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10) as roles:
        run = str(roles.job.run_dir)
        roles.trained(5)
        kill(roles.pid("rollout-0"))
        back = roles.pid("rollout-0", "1.1")

        def chain() -> str:
            found = said("why", run)
            return found if "<- its rank 0" in found else ""

        why = wait_for(chain, "the trainer to have waited for long")
        assert "trainer/0:0 has been waiting for" in why and "for an item at queue samples <- rollout/" in why
        assert "which fills it, has worked on 1 item of prompts for" in why
        assert "rollout.py:" in why, "the chain ends at a line of code"
        assert f"more: robust stacks {os.path.relpath(run)}/members/rollout-" in why
        (only,) = json.loads(said("why", run, "--json"))["chains"]
        assert only["inside"].startswith("its rank 0: ") and only["run"].startswith("members/rollout-")

        for pid in (back, roles.newest("rollout-1")):
            os.kill(pid, signal.SIGSTOP)
        stopped = wait_for(lambda: (text := said("why", run)) and "kill -CONT" in text and text, "it to be seen")
        assert "<- its rank 0: stopped in rollout.py" in stopped
        for pid in (back, roles.newest("rollout-1")):
            os.kill(pid, signal.SIGCONT)

        top = said("top", run)
        assert "rollout/0" in top and "1 loss, back after" in top and "has been waiting for" in top
        assert "was killed by SIGKILL" in top
        assert json.loads(said("top", run, "--json"))["history"]["losses"][0]["member"] == "rollout/0"
        assert "rank 0 was killed by SIGKILL" in said("incident", run)
        assert "rollout/0 (members/rollout-0.1), incident 1 of the job" in said("incident", "1", run)
        assert "rollout/0 runs (generation 2)" in said("events", run)

        assert "report.html, and 3 of its members" in said("report", run)
        page = (roles.job.run_dir / "report.html").read_text()
        assert "running" in page and 'href="members/rollout-0.1/report.html"' in page
        assert 'href="members/rollout-0.1/incidents/0001.html"' in page

        folder = os.path.dirname(run)
        listed = said("status", "--all", "--log-dir", folder)
        assert "1 run: 1 running" in listed and "rollout/0: rank 0 was killed by SIGKILL" in listed

        roles.go()
        roles.done()
        assert "1 run: 1 done" in said("report", folder)
        assert f'href="{os.path.basename(run)}/report.html"' in Path(folder, "runs.html").read_text()
        (row,) = json.loads(said("status", "--all", "--log-dir", folder, "--json"))["runs"]
        assert (row["state"], row["tone"], row["ranks"], row["incidents"]) == ("done", "calm", 3, 1)
        assert "page: " in roles.job.err
        page = (roles.job.run_dir / "report.html").read_text()
        assert "<title>done · " in page and "Members over time" in page
        assert files.read(run).points[-1].roles["rollout"].here_s > 0
        assert "idle" in said("roles", run), "how much roles were used is known of a job that is over"
        assert "rank 0 was killed by SIGKILL" in said("why", run)
        with pytest.raises(PlatformError, match=r"is over; robust roles .* says how it ended"):
            said("stop", run)


def test_a_job_whose_leader_was_killed_with_its_guard_is_told_from_its_journal(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        kill(roles.job.pid, roles.leader())
        roles.job.finish()
        run = str(roles.job.run_dir)
        why = said("why", run)
        assert "nobody answers" in why and "members/trainer-0.1" in why
        assert "nobody answers" in said("top", run)
        listed = said("status", "--all", "--log-dir", os.path.dirname(run))
        assert "1 run: 1 not known" in listed and "its leader does not answer" in listed
        assert "nobody leads the job" in said("report", run)
        assert "<title>no leader · " in (roles.job.run_dir / "report.html").read_text()
