"""Real jobs of two roles whose processes are killed: only what died comes back, and each sample counts once."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest
from jobs import kill, running, script, wait_for
from role_jobs import FILE, FULL, role_job

from robust_run.launcher.operator.reading.fleet import FleetReader
from robust_run.launcher.operator.reading.run_facts import lives_here
from robust_run.orchestrator.people.operator import look


def test_a_job_runs_to_its_end_and_leaves_nothing(tmp_path: Path) -> None:
    with role_job(tmp_path, file=FULL) as roles:
        roles.done()
        assert "is done: trainer is done" in roles.job.err
        assert len(roles.all_ran()) == 3
        assert not list(roles.job.run_dir.glob("*.sock"))
        for folder in (roles.job.run_dir.parent, roles.job.run_dir):  # its members are runs of the fleet
            seen = FleetReader([str(folder)], lives_here({})).read(time.time())
            assert sorted(run.run_id for run in seen.runs) == ["rollout-0.1", "rollout-1.1", "trainer-0.1"]
            assert [run.state for run in seen.runs if run.run_id == "trainer-0.1"] == ["done"]
            assert seen.skipped == ()


def test_a_killed_rollout_comes_back_alone_and_what_it_worked_on_is_given_to_another(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0, file=FULL) as roles:
        trainer, other, pid = roles.pid("trainer-0"), roles.pid("rollout-1"), roles.pid("rollout-0")
        wait_for(lambda: len(list(tmp_path.glob("has-*"))) == 2, "both to have a prompt")
        (mine,) = (each.name.split("-")[1] for each in tmp_path.glob("has-*-0"))
        kill(pid)
        roles.go()
        wait_for(
            lambda: (tmp_path / f"has-{mine}-1").exists() or roles.ran("rollout-0").get("1.1"), "another to have it"
        )
        roles.done()
        assert roles.ran("trainer-0") == {"1.0": trainer}
        assert roles.ran("rollout-1") == {"1.0": other}


def test_a_rollout_whose_launcher_is_killed_is_started_anew_and_nobody_else(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10) as roles:
        trainer, other = roles.pid("trainer-0"), roles.pid("rollout-1")
        roles.pid("rollout-0")
        kill(roles.launcher("rollout-0"))
        roles.pid("rollout-0", "2.0")
        roles.go()
        roles.done()
        assert roles.ran("trainer-0") == {"1.0": trainer}
        assert roles.ran("rollout-1") == {"1.0": other}


def test_a_killed_trainer_goes_back_to_its_checkpoint_and_rollouts_do_not_notice(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10, file=FULL) as roles:
        pids = {name: roles.pid(name) for name in ("rollout-0", "rollout-1")}
        roles.trained(7)
        kill(roles.pid("trainer-0"))
        roles.pid("trainer-0", "1.1")
        roles.go()
        roles.done()
        for name, pid in pids.items():
            assert roles.ran(name) == {"1.0": pid}


def test_all_begin_again_where_the_trainer_says_so(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10, trainer='restart = "job"') as roles:
        roles.trained(5)
        kill(roles.pid("trainer-0"))
        assert roles.pid("trainer-0", "2.0")
        for name in ("rollout-0", "rollout-1"):
            roles.pid(name, "2.0")
        roles.go()
        roles.done()
        assert "all roles begin again (1 of 3)" in roles.job.err


def test_ctrl_c_ends_all_in_good_order(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        roles.job.signal(signal.SIGINT)
        assert roles.job.finish() == 130
        assert "SIGINT asked for it" in roles.job.err
        roles.job.assert_nothing_left()


def test_a_program_that_fails_ends_the_job_with_its_code_and_its_reason(tmp_path: Path) -> None:
    script(tmp_path, "raise SystemExit(7)", "bad.py")
    (tmp_path / "roles.toml").write_text('[roles.bad]\ncommand = "bad.py"\nmax_restarts = 0\n')
    with running(tmp_path, "--roles", "roles.toml") as job:
        assert job.finish() != 0
        assert "bad/0 ended with exit code" in job.err
        assert "rank 0 exited with code 7" in job.err
        job.assert_nothing_left()


def test_what_this_machine_cannot_hold_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "roles.toml").write_text('[roles.a]\ncommand = "a.py"\ndevices = 8\nnodes = 2\n')
    with running(tmp_path, "--roles", "roles.toml", env={"CUDA_VISIBLE_DEVICES": "0"}) as job:
        assert job.finish() == 2
        assert "needs room for 1 workers with 8 GPUs on 2 nodes, and there is 1 node with up to 1 GPUs" in job.err
        job.assert_nothing_left()


def test_a_run_directory_that_has_been_used_is_not_used_again(tmp_path: Path) -> None:
    with role_job(tmp_path, count=2) as roles:
        roles.done()
        ran = roles.all_ran()
        with running(tmp_path, "--roles", "roles.toml", "--run-id", roles.job.run_id) as job:
            assert job.finish() == 2
            assert "choose another id" in job.err
        assert roles.all_ran() == ran


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_each_sample_counts_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    victims = [*("worker rollout-0", "worker rollout-1", "launcher rollout-0", "launcher rollout-1") * 2]
    victims += ["worker trainer-0", "launcher trainer-0", "leader", "leader", "worker trainer-0"]
    chance.shuffle(victims)
    with role_job(tmp_path, count=10 * len(victims), hold=10, file=FILE if seed else FULL) as roles:
        for number, victim in enumerate(victims):
            roles.trained(10 * number + 5)
            what, _, name = victim.partition(" ")
            pid = (
                roles.leader() if what == "leader" else roles.newest(name) if what == "worker" else roles.launcher(name)
            )
            kill(pid)
            roles.hold(10 * number + 20)
        roles.go()
        roles.done()


def test_a_trainer_that_is_stopped_while_others_wait_is_started_again_and_they_keep_their_processes(
    tmp_path: Path,
) -> None:
    with role_job(tmp_path, count=60, hold=40) as roles:
        trainer, rollouts = roles.pid("trainer-0"), {name: roles.pid(name) for name in ("rollout-0", "rollout-1")}
        roles.trained(5)
        os.kill(trainer, signal.SIGSTOP)
        roles.go()
        roles.pid("trainer-0", "1.1")
        roles.done()
        assert {name: roles.ran(name) for name in rollouts} == {name: {"1.0": pid} for name, pid in rollouts.items()}
        assert "trainer/0: it has been stopped (SIGSTOP) for" in roles.job.err


# The leader, and its guard.


def test_a_killed_leader_is_started_again_and_no_worker_dies_and_no_sample_is_lost(tmp_path: Path) -> None:
    with role_job(tmp_path, count=60, hold=10) as roles:
        names = ("trainer-0", "rollout-0", "rollout-1")
        pids = {name: roles.pid(name) for name in names}
        for trained in (5, 20, 35):
            roles.trained(trained)
            leader = roles.leader()
            kill(leader)
            wait_for(lambda old=leader: roles.leader() != old, "another leader")  # type: ignore[misc]
            roles.hold(trained + 20)
        roles.go()
        roles.done()
        assert {name: roles.ran(name) for name in names} == {name: {"1.0": pid} for name, pid in pids.items()}
        assert "the leader of the job was killed by SIGKILL; it is started again" in roles.job.err


def test_a_rollout_that_dies_while_there_is_no_leader_comes_back(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10) as roles:
        trainer = roles.pid("trainer-0")
        roles.pid("rollout-0")
        roles.trained(3)
        launcher = roles.launcher("rollout-0")
        kill(roles.leader(), launcher)
        roles.pid("rollout-0", "2.0")
        roles.go()
        roles.done()
        assert roles.ran("trainer-0") == {"1.0": trainer}


def test_a_leader_that_cannot_be_kept_ends_the_job(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        for _ in range(4):
            leader = roles.leader()
            kill(leader)
            wait_for(lambda old=leader: roles.job.process.poll() is not None or roles._leader() != old, "its end")  # type: ignore[misc]
        assert roles.job.finish() == 137
        assert "4 times in a row; the job is ended" in roles.job.err
        roles.job.assert_nothing_left()


def test_when_the_guard_is_killed_all_end_in_good_order(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        kill(roles.job.pid)
        roles.job.finish()
        roles.job.assert_nothing_left()
        assert "finish" in [action["type"] for action in roles.journal()[-1]["actions"]]
        assert "the end of the job's guard asked for it" in roles.job.err


def test_when_guard_and_leader_are_killed_members_end_in_good_order(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=0, file=FULL) as roles:
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            roles.pid(name)
        kill(roles.job.pid, roles.leader())
        roles.job.finish()
        roles.job.assert_nothing_left()
        for name in ("trainer-0", "rollout-0", "rollout-1"):
            output = (roles.job.run_dir / "members" / f"{name}.1.out").read_text()
            assert "stopped by SIGTERM" in output


def test_a_trainer_that_waits_is_traced_to_the_rollout_that_works_and_nobody_is_ended(tmp_path: Path) -> None:
    with role_job(tmp_path, hold=10) as roles:  # from the start: on a busy machine all may be done before we get a CPU
        roles.trained(2)

        def chain() -> str:
            view = look(str(roles.job.run_dir))
            return next((line for line in view.waits if "trainer/0:0" in line and "rollout/" in line), "")

        line = wait_for(chain, "the wait to be traced")
        assert "for an item at queue samples <- rollout/" in line
        assert "which fills it, has worked on 1 item of prompts for" in line
        (tmp_path / "hold").unlink()
        roles.done()
        assert len(roles.all_ran()) == 3
