"""Real jobs whose roles grow and shrink: with their nodes, and by demand."""

from __future__ import annotations

import signal
from pathlib import Path

from jobs import running, script, unused_port, wait_for
from role_jobs import BARE, RoleJob, nodes_of

from robust_run.errors import PlatformError
from robust_run.orchestrator.people.operator import look

WORKER = """
import os, time
from pathlib import Path
from robust_run import roles
me = roles.me()
Path(f"ran-{me.role}-{me.index}.{me.serial}.{me.attempt}-{os.getpid()}").touch()
roles.ready()
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
members = "1..2"
restart = "alone"
ready = "called"
devices = 1
"""


def test_a_job_begins_with_the_fewest_nodes_and_grows_and_shrinks_with_those_that_come_and_go(tmp_path: Path) -> None:
    script(tmp_path, WORKER, "worker.py")
    (tmp_path / "roles.toml").write_text(ROLES)
    place = f"127.0.0.1:{unused_port()}"
    meets = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", place, "--rdzv-id", "r"]
    meets += ["--rdzv-conf", "last_call_timeout=1"]
    env = {"CUDA_VISIBLE_DEVICES": "0"}
    with running(tmp_path, "--roles", "roles.toml", *meets, "--node-name", "a", env=env) as a:
        roles = RoleJob(a, tmp_path)
        roles.pid("trainer-0")
        roles.pid("rollout-0")
        assert _standing(roles) == "waits"
        for serial in (1, 2):
            with running(tmp_path, "--roles", "roles.toml", *meets, "--node-name", "b", env=env) as b:
                roles.pid("rollout-1", f"{serial}.0")
                assert nodes_of(roles)[f"rollout-1.{serial}"] == ["b"]
                if serial == 1:
                    b.signal(signal.SIGTERM)
                    assert b.finish() == 143, b.err
                    wait_for(lambda: _standing(roles) == "waits", "rollout/1 to wait for room again")
                    continue
                (tmp_path / "over").touch()
                assert a.finish() == 0, a.err
                assert b.finish() == 0, b.err
        assert list(roles.ran("trainer-0")) == list(roles.ran("rollout-0")) == ["1.0"]


def _standing(roles: RoleJob) -> str:
    members = {each.name: each for role in look(str(roles.job.run_dir)).roles for each in role.members}
    return members["rollout/1"].state


SLOW_TRAINER = """
import time
from pathlib import Path
from robust_run import roles
prompts, samples = roles.queue("prompts"), roles.queue("samples")
roles.wait_ready("rollout", timeout_s=120)
number = 0
while not Path("over").exists():
    prompts.put(b"%d" % number, key=str(number))
    samples.done(samples.take(1)[0])
    number += 1
    time.sleep(0.1)
"""

FAST_ROLLOUT = """
from robust_run import roles
prompts, samples = roles.queue("prompts"), roles.queue("samples")
roles.ready()
while True:
    for item in prompts.take(1):
        samples.put(item.payload, key=item.key)
        prompts.done(item)
"""

BY_DEMAND = f"""
scale_after_s = 10

[roles.trainer]
command = "trainer.py"
{BARE}
ends = "job"

[roles.rollout]
command = "rollout.py"
{BARE}
members = "1..3"
restart = "alone"
ready = "called"
scale = "demand"
"""


def test_a_role_that_has_too_many_members_gives_one_back_and_says_why(tmp_path: Path) -> None:
    script(tmp_path, SLOW_TRAINER, "trainer.py")
    script(tmp_path, FAST_ROLLOUT, "rollout.py")
    (tmp_path / "roles.toml").write_text(BY_DEMAND)
    with running(tmp_path, "--roles", "roles.toml") as job:
        act = wait_for(lambda: _acts(job.run_dir), "an act", 300)
        assert act[0].startswith("rollout is to have 2 members, not 3: for 10 s its members waited at queues for ")
        (tmp_path / "over").touch()
        assert job.finish() == 0, job.err
        job.assert_nothing_left()


def _acts(run: Path) -> tuple[str, ...]:
    try:
        return next(role.acts for role in look(str(run)).roles if role.name == "rollout")
    except (OSError, StopIteration, PlatformError):  # it has just begun
        return ()
