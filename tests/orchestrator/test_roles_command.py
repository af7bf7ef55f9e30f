"""`robust roles`: a job of several roles that runs, and what one that is gone left."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs import kill, wait_for
from role_jobs import role_job

from robust_run.errors import PlatformError, UserError
from robust_run.robust_cli import robust


def said(*words: str) -> str:
    """Return what a command prints. Raises what it raises."""
    return CliRunner().invoke(robust, words, catch_exceptions=False, standalone_mode=False).output


def document(*words: str) -> dict[str, Any]:
    """Return what it prints as JSON; members by name."""
    found = json.loads(said(*words, "--json"))
    assert found["schema"] == 1
    members = {member["name"]: member for role in found["roles"] for member in role["members"]}
    return {**found, "members": members}


def test_a_job_is_shown_scaled_and_ended(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        run = str(roles.job.run_dir)
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        wait_for(lambda: document("roles", run)["members"]["rollout/1"]["ready"], "both to be ready")
        wait_for(lambda: document("roles", run)["queues"]["prompts"]["leased"] == 2, "both to have taken one")
        found = document("roles", run)
        assert found["phase"] == "going"
        assert found["members"]["rollout/0"]["pid"] == roles.launcher("rollout-0")
        assert found["members"]["rollout/2"]["state"] == "held"
        lines = said("roles", roles.job.run_id, "--log-dir", str(tmp_path / "runs"))
        assert "rollout: 2 wanted of 1 to 3, 2 ready, restart alone" in lines
        assert said("status", run).splitlines()[0] == "roles runs", "robust status shows it too"
        assert "members/rollout-0.1" in lines
        assert "nobody" not in said("status", f"{run}/members/rollout-0.1")

        trainer = roles.pid("trainer-0")
        assert "rollout: 3 wanted" in said("roles", "scale", run, "rollout", "3")
        roles.pid("rollout-2")
        assert "rollout: 1 wanted" in said("roles", "scale", run, "rollout", "1")
        wait_for(lambda: document("roles", run)["members"]["rollout/2"]["state"] == "held", "rollout/2 to end")
        assert roles.ran("trainer-0") == {"1.0": trainer}
        with pytest.raises(UserError, match="rollout can have 1 to 3 members, not 9"):
            said("roles", "scale", run, "rollout", "9")
        with pytest.raises(UserError, match="has no role 'x'; it has trainer, rollout"):
            said("roles", "scale", run, "x", "1")

        said("stop", run)
        assert roles.job.finish() == 128 + signal.SIGTERM
        roles.job.assert_nothing_left()
        assert "asked for it" in roles.job.err
        over = document("roles", run)
        assert (over["is_led"], over["phase"], over["code"]) == (False, "over", 143)
        assert "1 run: 1 stopped" in said("status", "--all", "--log-dir", str(tmp_path / "runs"))
        with pytest.raises(PlatformError, match="is over; robust roles"):
            said("roles", "stop", run)


def test_what_a_job_that_was_killed_left_is_told_from_its_journal(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        kill(roles.job.pid, roles.leader())
        roles.job.finish()
        assert "nobody answers" in said("roles", str(roles.job.run_dir))


def test_what_is_no_run_of_several_roles_is_said(tmp_path: Path) -> None:
    with pytest.raises(PlatformError, match="is no run of several roles"):
        said("roles", str(tmp_path))
    with pytest.raises(PlatformError, match="no run of several roles in"):
        said("roles", "--log-dir", str(tmp_path))
    (tmp_path / "roles.jsonl").write_text('{"schema": 99}\n')
    with pytest.raises(PlatformError, match="has the format 99"):
        said("roles", str(tmp_path))
    (tmp_path / "roles.jsonl").write_text("")
    with pytest.raises(PlatformError, match="is no journal of roles"):
        said("roles", str(tmp_path))
