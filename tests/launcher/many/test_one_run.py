"""One run per rendezvous: a node that comes back never starts a second training of a job that runs elsewhere.

Each worker holds a lock on a file of its rank, which all hosts share: two workers of one rank at a time would be seen by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import STEPS, ClusterJob, start_all, wait_for, write
from hosts import Cluster, Host, need_hosts

#: A long lease, since a busy machine may hold an agent up for seconds; so a takeover takes half a minute.
FAST = ("--no-warm", "--restart-grace", "0.3", "--rdzv-conf", "keep_alive_max_attempt=15,last_call_timeout=1")
PATIENCE_S = 150.0
pytestmark = pytest.mark.timeout(900)

WITNESS = f"""{STEPS}
    import fcntl

    _lock = os.open(f"{{STEPS_DIR}}/lock-{{RANK}}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        open(f"{{STEPS_DIR}}/two-of-{{RANK}}", "w").close()
    while not os.path.exists(DONE):
        step()
        pause(0.02)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Four hosts that are on."""
    need_hosts()
    with Cluster(4, tmp_path) as made:
        yield made


def start(cluster: Cluster, tmp_path: Path, *options: str, named: bool = False) -> ClusterJob:
    """Start a job whose controller may move, on the first three hosts, and wait until candidates stand ready."""
    job = start_all(cluster, tmp_path=tmp_path, options=["--controller-standby", "2", *FAST, *options], launch=())
    if not named:
        at = job.argv.index("--run-id")
        job.argv = [*job.argv[:at], *job.argv[at + 2 :]]
    job.argv = [*job.argv, write(tmp_path, WITNESS)]
    for host in list(cluster)[:3]:
        job.join(host)
    if not named:
        job.run_id = wait_for(lambda: runs(job), f"a run:\n{job.said()}", PATIENCE_S)[0]
    job.wait_for_event("node_joined", 3, PATIENCE_S)
    wait_for(lambda: sum(bool(each.controller_pids()) for each in job.launchers) >= 3, "candidates", PATIENCE_S)
    return job


def runs(job: ClusterJob) -> list[str]:
    """Return the names of all runs below the log directory that have a journal."""
    return sorted(path.parent.name for path in job.log_dir.glob("*/journal.jsonl"))


def lose_the_founder(cluster: Cluster, job: ClusterJob, ranks: int) -> None:
    """The node that founded loses its power; another leads, and the job heals."""
    trains = "node-0" in {each.host for each in job.wait_for_steps(0, ranks, timeout_s=PATIENCE_S)}  # or it stands by
    cluster[0].power_off()
    wait_for(lambda: job.events("controller_resumed"), f"a successor:\n{job.said()}", PATIENCE_S)
    if trains:
        wait_for(lambda: max(each.attempt for each in job.workers()) >= 1, f"attempt 1:\n{job.said()}", PATIENCE_S)


def assert_one_training(job: ClusterJob) -> None:
    assert runs(job) == [job.run_id], job.said()
    assert not list(job.steps_dir.glob("two-of-*")), f"two workers of one rank lived at once:\n{job.said()}"


def finish(job: ClusterJob, *hosts: Host) -> None:
    (job.steps_dir / "done").touch()
    for host in hosts:
        assert job.on(host).finish(PATIENCE_S) == 0, job.said()


FORMS = {
    "by where its nodes meet": (("--nnodes", "2", "--standby", "1"), False),
    "by --rdzv-id": (("--nnodes", "2", "--standby", "1", "--rdzv-id", "exp7"), False),
    "elastic": (("--nnodes", "1:2", "--standby", "1"), False),
    "by --run-id": (("--nnodes", "2", "--standby", "1"), True),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_founder_that_comes_back_joins_the_run_that_went_on_without_it(
    cluster: Cluster, tmp_path: Path, form: str
) -> None:
    options, named = FORMS[form]
    job = start(cluster, tmp_path, *options, named=named)
    lose_the_founder(cluster, job, 2)
    cluster[0].power_on()
    job.join(cluster[0])  # the same line
    job.wait_for_event("node_joined", 4, PATIENCE_S)
    job.join(cluster[3])  # and a late node with it
    job.wait_for_event("node_joined", 5, PATIENCE_S)
    assert_one_training(job)
    finish(job, *cluster)
    assert_one_training(job)


def test_after_a_power_cut_of_all_nodes_one_run_goes_on_and_after_its_end_a_new_one_is_founded_at_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = start(cluster, tmp_path, "--nnodes", "1:2", "--standby", "1")
    job.wait_for_steps(0, 2, timeout_s=PATIENCE_S)
    for host in list(cluster)[:3]:
        host.power_off()
    cluster[0].power_on()
    job.join(cluster[0])
    wait_for(lambda: max(each.attempt for each in job.workers()) >= 1, f"attempt 1:\n{job.said()}", PATIENCE_S)
    assert "is not over and has no leader any more: this node goes on with it" in job.on(cluster[0]).err
    assert_one_training(job)
    finish(job, cluster[0])
    (job.steps_dir / "done").unlink()
    job.join(cluster[0])
    job.join(cluster[3])
    wait_for(lambda: len(runs(job)) == 2, f"a new run:\n{job.said()}", PATIENCE_S)
    assert "goes on with it" not in job.on(cluster[0]).err
    finish(job, cluster[0], cluster[3])


def test_a_node_that_remembers_a_run_and_does_not_see_the_folder_waits_and_joins_when_the_folder_is_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = start(cluster, tmp_path, "--nnodes", "1:2", "--standby", "1")
    job.wait_for_steps(0, 2, timeout_s=PATIENCE_S)
    cluster[0].power_off()
    wait_for(lambda: job.events("controller_resumed"), f"a successor:\n{job.said()}", PATIENCE_S)
    register = next(job.log_dir.glob(".rendezvous-*"))
    hidden = register.rename(tmp_path / "hidden")
    cluster[1].cut_from(cluster[0])
    cluster[2].cut_from(cluster[0])
    cluster[0].power_on()
    back = job.join(cluster[0])
    wait_for(lambda: "has nothing of it; is its file system mounted?" in back.err, f"it waits:\n{back.err}", PATIENCE_S)
    assert_one_training(job)
    cluster[0].heal()
    hidden.rename(register)
    job.wait_for_event("node_joined", 4, PATIENCE_S)
    finish(job, cluster[0])
    assert_one_training(job)
