"""The node that leads is lost, and with it the disk that has the newest code of a role."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hosts import need_hosts
from jobs import script, wait_for
from role_hosts import roles_on_hosts
from role_jobs import BARE

LONG_S = 150
ROBUST = [sys.executable, "-c", "from robust_run.robust_cli import main; main()"]
WORKER = """
import os, time
from pathlib import Path
import helper
from robust_run import roles
me = roles.me()
Path(f"ran-{me.role}-{me.index}.{me.serial}.{me.attempt}-{helper.VALUE}").touch()
while not Path("over").exists():
    time.sleep(0.05)
"""
ROLES = f"""
[roles.trainer]
command = "worker.py"
{BARE}
ends = "job"

[roles.rollout]
command = "worker.py"
{BARE}
members = 2
restart = "alone"
"""


@pytest.mark.timeout(LONG_S + 120)
def test_who_leads_on_starts_members_with_the_code_that_the_role_has_whoever_had_it(tmp_path: Path) -> None:
    need_hosts()
    files = {"worker.py": WORKER, "helper.py": "VALUE = 'one'\n"}
    with roles_on_hosts(tmp_path, 1, text=ROLES, files=files, is_shared=False) as roles:
        one, two, three = roles.cluster
        run = str(roles.run(one))

        def robust(*words: str) -> str:
            done = one.run([*ROBUST, *words], check=False, cwd=tmp_path)
            return done.stdout + done.stderr

        wait_for(lambda: "as the job was started" in robust("code", "log", run, "--role", "trainer"), "its first code")
        assert roles.nodes(one)["trainer-0.1"] == [one.name]
        script(tmp_path, "VALUE = 'two'\n", "helper.py")
        assert "takes it up at its next failure" in robust("update", run, "--role", "trainer")
        script(tmp_path, "VALUE = 'three'\n", "helper.py")
        one.power_off()
        wait_for(lambda: roles.ran("trainer-0") and "2.0" in roles.ran("trainer-0"), "the trainer elsewhere", LONG_S)
        started = [each.name for each in tmp_path.glob("ran-trainer-0.2.*")]
        assert started == ["ran-trainer-0.2.0-two"]
        (tmp_path / "over").touch()
        for host in (two, three):
            assert roles.jobs[host.name].finish(LONG_S) == 0, roles.jobs[host.name].err
            roles.jobs[host.name].assert_nothing_left()
