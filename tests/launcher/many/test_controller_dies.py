"""The controller's process, and the whole launcher on its node, are killed and stopped: workers elsewhere never notice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENCE_S, TRAIN, ClusterJob, Worker, start_all, write
from hosts import Cluster, Host, need_hosts
from jobs import Job, running, script, wait_for

#: The lease is longer than usual: a busy machine may hold an agent up for a second and more.
FAST = ("--no-warm", "--restart-grace", "0.3", "--max-restarts", "50", "--rdzv-conf", "keep_alive_max_attempt=6")
PATIENT = ("--rdzv-conf", "keep_alive_max_attempt=9")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Two hosts that are on."""
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, tmp_path: Path, *options: str, nnodes: str = "2", **more: object) -> ClusterJob:
    """Start a job of one worker per host and wait until all of them train."""
    return start_all(
        cluster, write(tmp_path, TRAIN), tmp_path=tmp_path, options=["--nnodes", nnodes, *FAST, *options], **more
    )


def terms(job: ClusterJob) -> list[int]:
    """Return the terms of the controllers that continued the job."""
    return [event["term"] for event in job.events("controller_resumed")]


def pids(job: ClusterJob, attempt: int = 0) -> set[tuple[str, int]]:
    """Return the workers of an attempt as (host, pid)."""
    return {(worker.host, worker.pid) for worker in job.workers() if worker.attempt == attempt}


def kill_rank(job: ClusterJob, attempt: int, rank: int) -> None:
    """SIGKILL a worker that trains."""
    worker = job.wait_for_steps(attempt, 2)[rank]
    os.kill(pid_of(job, worker), signal.SIGKILL)


def pid_of(job: ClusterJob, worker: Worker) -> int:
    """Return a living worker's pid as the harness has it."""
    return next(host for host in job.hosts if host.name == worker.host).pid_outside(worker.pid)


def wait_for_term(job: ClusterJob, term: int) -> None:
    """Wait until a controller of this term, or a later one, has begun."""
    wait_for(lambda: terms(job)[-1:] >= [term], f"term {term}:\n{job.said()}", PATIENCE_S)


def test_a_killed_controller_comes_back_and_no_worker_notices(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path)
    job.wait_for_steps(0, 2)
    before = pids(job)
    killed = 0
    for round_number in range(5):
        killed = job.on(two[0]).controller_pid(other_than=killed)
        os.kill(killed, signal.SIGKILL)
        wait_for_term(job, round_number + 2)
        wait_for(lambda: len(job.events("node_returned")) >= 2 * (round_number + 1), job.said(), PATIENCE_S)  # noqa: B023
    job.wait_for_more_steps(0, 2)
    assert pids(job) == before
    assert [order["attempt"] for order in job.actions("start_attempt")] == [0]
    assert terms(job) == [2, 3, 4, 5, 6]
    kill_rank(job, 0, 1)
    assert job.wait_for_incident()["action"]["name"] == "relaunch"
    job.wait_for_steps(1, 2)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_controller_that_comes_back_says_the_incident_that_its_predecessor_may_not_have_said(
    two: Cluster, tmp_path: Path
) -> None:
    job = start(two, tmp_path)
    controller = job.on(two[0]).controller_pid()
    kill_rank(job, 0, 1)
    job.wait_for_incident()
    os.kill(controller, signal.SIGKILL)
    wait_for_term(job, 2)
    job.wait_for_steps(1, 2)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    _, back, after = job.said().partition("the controller is back (term 2)")
    assert back and "attempt 0: rank 1 " in after, job.said()


def test_a_controller_that_stands_still_for_a_second_is_left_alone(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path, *PATIENT)
    job.wait_for_steps(0, 2)
    before, controller = pids(job), job.on(two[0]).controller_pid()
    os.kill(controller, signal.SIGSTOP)
    time.sleep(1.0)  # the fault itself
    os.kill(controller, signal.SIGCONT)
    kill_rank(job, 0, 1)
    job.wait_for_steps(1, 2)
    assert job.on(two[0]).controller_pids() == [controller]
    assert (len(before), terms(job)) == (2, [])
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def test_a_stopped_controller_is_replaced_before_the_leases_end(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path, *PATIENT)
    job.wait_for_steps(0, 2)
    before, controller = pids(job), job.on(two[0]).controller_pid()
    wait_for(lambda: time.time() - os.stat(f"/proc/{controller}").st_ctime > 11, "the controller to be no young one")
    os.kill(controller, signal.SIGSTOP)
    wait_for_term(job, 2)
    job.wait_for_more_steps(0, 2)
    assert "has not answered" in job.on(two[0]).err
    assert pids(job) == before
    assert [order["attempt"] for order in job.actions("start_attempt")] == [0]
    kill_rank(job, 0, 1)
    job.wait_for_steps(1, 2)
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def test_the_launcher_of_the_controllers_node_is_killed_and_resumed(two: Cluster, tmp_path: Path) -> None:
    evicted = tmp_path / "evicted"
    job = start(two, tmp_path, "--evict-list", str(evicted))
    job.wait_for_steps(0, 2)
    evict = ["evict", "node-7", "--force", "--reason", "old", str(job.run_dir)]
    two[0].run([sys.executable, "-c", "from robust_run.robust_cli import main; main()", *evict], env=job.env)
    job.on(two[0]).kill()
    went_on = next(worker for worker in job.workers() if worker.host == "node-1")
    wait_for(
        lambda: next(w for w in job.workers() if w.host == "node-1").times[-1] > went_on.times[-1] + 7.0,
        f"the worker of node-1 to train on beyond its lease:\n{job.said()}",
        PATIENCE_S,
    )
    resumed = job.resume(two[0], "--http-port", "18080", "--http-host", "0.0.0.0")
    job.wait_for_steps(1, 2)
    assert '"http://10.77.0.10:18080"' in (job.run_dir / "api.json").read_text()
    assert "node-7" in evicted.read_text()
    assert "node-7" in status(two[0], job)
    assert terms(job) == [2]
    assert job.wait_for_incident()["verdict"]["kind"] == "node_lost"
    assert (job.finish(), resumed.host.name) == ({"node-0": 0, "node-1": 0}, "node-0")
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def status(host: Host, job: ClusterJob) -> str:
    """Return what `robust nodes` says."""
    command = "from robust_run.robust_cli import main; main()"
    return host.run([sys.executable, "-c", command, "nodes", str(job.run_dir)], env=job.env).stdout


def test_a_second_resume_is_refused(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path)
    job.wait_for_steps(0, 2)
    live = job.resume(two[0])
    assert live.finish() == 2
    assert "a controller of this run is alive (pid " in live.err, live.err
    job.launchers.remove(live)
    job.on(two[0]).kill()
    elsewhere = job.resume(two[1])
    assert elsewhere.finish() == 2
    assert "run it on the node that has this address" in elsewhere.err, elsewhere.err
    job.launchers.remove(elsewhere)
    racing = [job.resume(two[0]), job.resume(two[0])]
    job.wait_for_steps(1, 2)
    loser = wait_for(lambda: [each for each in racing if each.process.poll() is not None], "one is refused", PATIENCE_S)
    assert [each.process.returncode for each in loser] == [2], job.said()
    assert len(loser[0].err.strip().splitlines()) == 1, loser[0].err
    job.launchers.remove(loser[0])
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_only_the_controller_is_started_where_its_agent_lives(two: Cluster, tmp_path: Path) -> None:
    evicted = tmp_path / "evicted"
    job = start(two, tmp_path, "--evict-list", str(evicted))
    job.wait_for_steps(0, 2)
    before = pids(job)
    evicted.write_text("{ this is no eviction\n")
    os.kill(job.on(two[0]).controller_pid(), signal.SIGKILL)
    wait_for(lambda: "mend the line" in job.on(two[0]).err, f"the new one to refuse:\n{job.said()}", PATIENCE_S)
    wait_for(lambda: not job.on(two[0]).controller_pids(), "no controller", PATIENCE_S)
    evicted.unlink()
    resumed = job.resume(two[0])
    wait_for(lambda: len(job.events("node_returned")) >= 2, f"both agents return:\n{job.said()}", PATIENCE_S)
    job.wait_for_more_steps(0, 2)
    assert pids(job) == before
    assert len(job.names()) == 2
    kill_rank(job, 0, 0)
    job.wait_for_steps(1, 2)
    (job.steps_dir / "done").touch()
    assert [launcher.finish() for launcher in job.launchers] == [0, 0, 0]
    assert "only its controller is started" in resumed.err
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_controller_killed_at_any_moment_loses_nothing(two: Cluster, tmp_path: Path) -> None:
    chance = random.Random(1)
    job = start(two, tmp_path)
    for attempt in range(4):
        kill_rank(job, attempt, chance.randrange(2))
        for kill in (1, 2):  # while the attempt is ended, or the next is opened, or started
            time.sleep(chance.uniform(0.0, 0.2))
            os.kill(job.on(two[0]).controller_pid(), signal.SIGKILL)
            wait_for_term(job, 2 * attempt + kill + 1)
        job.wait_for_steps(attempt + 1, 2)
    assert terms(job) == list(range(2, 10))
    assert set(job.finish().values()) == {0}
    assert sorted({order["attempt"] for order in job.actions("start_attempt")}) == [0, 1, 2, 3, 4]
    assert [incident["verdict"]["kind"] for incident in job.incidents()] == ["crash"] * 4
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_controller_killed_while_the_nodes_gather(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path, launch=[two[0]])
    job.wait_for_event("node_joined")
    os.kill(job.on(two[0]).controller_pid(), signal.SIGKILL)
    wait_for_term(job, 2)
    job.join(two[1])
    job.wait_for_steps(0, 2)
    assert job.finish() == {"node-0": 0, "node-1": 0}
    job.assert_nothing_left()


# --- one node


def resume(job: Job, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `robust-run --resume` of a one-node job, from another folder, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "robust_run", "--resume", str(job.run_dir), *options],
        cwd="/",
        env={**os.environ, "TEST_JOB": job.run_id},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


WAITS = """
    import os, time
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    open(f"up-{attempt}-{os.environ['RANK']}", "w").close()
    while attempt == "0" and not os.path.exists("done"):
        time.sleep(0.01)
"""


def test_a_one_node_job_that_was_killed_goes_on_with_its_next_attempt(tmp_path: Path) -> None:
    script(tmp_path, WAITS)
    with running(tmp_path, "--nproc-per-node", "2", "train.py") as job:
        job.wait_for_file("up-0-1", tmp_path)
        alive = resume(job, tmp_path)
        assert (alive.returncode, "is alive" in alive.stderr) == (2, True), alive.stderr
        os.kill(job.agent_pid(), signal.SIGKILL)
        job.signal(signal.SIGKILL)
        job.process.wait(60)
        wait_for(lambda: not job.leftovers(), "its workers to die with it")
        done = resume(job, tmp_path)
        assert done.returncode == 0, done.stderr
        assert "resumed" in done.stderr
        assert (tmp_path / "up-1-0").exists(), "the second attempt ran where the first did"
        assert [order["attempt"] for order in job.actions("start_attempt")] == [0, 1]
        over = resume(job, tmp_path)
        assert (over.returncode, "the job is over: done" in over.stderr) == (2, True), over.stderr
        job.assert_nothing_left()


def test_what_cannot_be_resumed_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "not-a-run").mkdir()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn/journal.jsonl").write_text('{"schema":')
    for name, words in (("not-a-run", "no journal.jsonl there"), ("torn", "is not a journal")):
        done = subprocess.run(
            [sys.executable, "-m", "robust_run", "--resume", str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.splitlines()) == 1
