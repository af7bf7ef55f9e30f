"""The controller's node is lost or cut off, and another takes over: by a shared folder, and by a real etcd. Never two."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import PATIENCE_S, TRAIN, ClusterJob, Launcher, start_all, write
from etcd import etcd_program
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

#: The lease is longer than usual, and a leader is elected for a third of it: a busy machine may hold either up for a second.
FAST = ("--no-warm", "--restart-grace", "0.3", "--rdzv-conf", "keep_alive_max_attempt=9")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts that are on."""
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, tmp_path: Path, *options: str, nnodes: str = "2", standby: str = "1") -> ClusterJob:
    """Start a job of two nodes, of a third that stands by, and of one candidate beside the controller; it trains."""
    script = write(tmp_path, TRAIN)
    job = start_all(
        cluster,
        script,
        tmp_path=tmp_path,
        options=["--nnodes", nnodes, "--standby", standby, "--controller-standby", "1", *FAST, *options],
        launch=[cluster[0], cluster[1]],
    )
    job.wait_for_steps(0, 2)
    job.join(cluster[2])
    ready(job)
    return job


def ready(job: ClusterJob) -> None:
    """Wait until all have joined and a candidate stands ready."""
    job.wait_for_event("node_joined", 3)
    wait_for(lambda: len(controllers(job)) >= 2, f"a candidate:\n{job.said()}", PATIENCE_S)


def controllers(job: ClusterJob) -> list[Launcher]:
    """Return the launchers that have a controller's process, leader or candidate."""
    return [launcher for launcher in job.launchers if launcher.controller_pids()]


def terms(lines: Sequence[dict[str, Any]]) -> list[int]:
    """Return the terms of a journal's lines, each once, in the order they first appear."""
    return list(dict.fromkeys(line.get("term", 1) for line in lines[1:]))


def wait_for_term(job: ClusterJob, term: int) -> None:
    """Wait until a controller of this term has begun."""
    wait_for(
        lambda: any(event["term"] == term for event in job.events("controller_resumed")),
        f"term {term}:\n{job.said()}",
        PATIENCE_S,
    )


def wait_for_training_on(job: ClusterJob, *hosts: str) -> None:
    """Wait until a later attempt trains on these: of two nodes one is lost first, so it need not be the next one."""

    def newest() -> set[str]:
        steps = [worker for worker in job.workers() if worker.times]
        attempt = max((worker.attempt for worker in steps), default=0)
        return {worker.host for worker in steps if worker.attempt == attempt > 0}

    wait_for(lambda: newest() == set(hosts), f"{hosts} to train:\n{job.said()}", PATIENCE_S)


def test_the_controllers_node_loses_power_and_a_candidate_takes_over(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    assert "node-0" in {worker.host for worker in job.workers()}
    three[0].power_off()
    workers = job.wait_for_steps(1, 2)
    assert {worker.host for worker in workers} == {"node-1", "node-2"}
    assert terms(job.journal()) == [1, 2]
    assert [event["term"] for event in job.events("controller_resumed")] == [2]
    incident = job.wait_for_incident()
    assert (incident["verdict"]["kind"], "node-0" in incident["verdict"]["sentence"]) == ("node_lost", True)
    three[0].power_on()
    back = job.resume(three[0])
    assert back.finish() == 2
    assert "controls this job at " in back.err, back.err
    assert "(term 2)" in back.err, back.err
    job.launchers.remove(back)
    job.join(three[0])
    job.wait_for_event("node_joined", 4)
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": 0}, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_killed_controller_is_followed_by_a_candidate_and_no_worker_notices(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    before = {(worker.host, worker.pid) for worker in job.workers()}
    killed = job.on(three[0]).controller_pid()
    os.kill(killed, signal.SIGKILL)
    wait_for_term(job, 2)
    wait_for(lambda: len(job.events("node_returned")) >= 3, f"all return:\n{job.said()}", PATIENCE_S)
    job.wait_for_more_steps(0, 2)
    assert {(worker.host, worker.pid) for worker in job.workers()} == before
    assert [order["attempt"] for order in job.actions("start_attempt")] == [0]
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def test_a_signal_to_the_node_that_took_over_ends_the_job(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    os.kill(job.on(three[0]).controller_pid(), signal.SIGKILL)
    wait_for_term(job, 2)
    job.wait_for_event("node_returned", 3)
    leader = job.events("controller_resumed")[-1]["host"]
    worker = next(each for each in job.workers() if each.host == leader)
    os.kill(next(host for host in three if host.name == leader).pid_outside(worker.pid), signal.SIGKILL)
    job.wait_for_steps(1, 2)  # that node has obeyed its own controller, and so knows that it leads
    next(launcher for launcher in job.launchers if launcher.host.name == leader).process.signal(signal.SIGTERM)
    assert set(job.wait_ended().values()) == {128 + signal.SIGTERM}, job.said()
    assert [action["outcome"] for action in job.actions("finish")] == ["stopped"]
    job.assert_nothing_left()


def test_both_candidates_die_one_after_another(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path, nnodes="1:2")
    three[0].power_off()
    wait_for_term(job, 2)
    job.wait_for_steps(1, 2)
    second = next(host for host in three if host.name == job.events("controller_resumed")[-1]["host"])
    wait_for(lambda: len(controllers(job)) >= 2, f"the next candidate:\n{job.said()}", PATIENCE_S)
    second.power_off()
    wait_for_term(job, 3)
    workers = job.wait_for_steps(2, 1)
    last = ({"node-1", "node-2"} - {second.name}).pop()
    assert [worker.host for worker in workers] == [last]
    assert terms(job.journal()) == [1, 2, 3]
    assert job.finish()[last] == 0, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_leader_that_is_cut_off_from_all_lets_those_lead_who_see_each_other(three: Cluster, tmp_path: Path) -> None:
    """It reaches the shared folder, so for the election it lives; its job stands still until another leads."""
    job = start(three, tmp_path)
    three[0].cut()
    wait_for_training_on(job, "node-1", "node-2")
    assert terms(job.journal()) == [1, 2]
    assert "it sees no other node" in job.on(three[0]).err
    given_up = [
        line for line in job.journal() if line.get("term", 1) == 1 and line.get("event", {}).get("type") == "node_lost"
    ]
    assert given_up == [], "it is the leader that was cut off"
    three[0].heal()
    wait_for(lambda: job.events("node_returned") and len(job.events("node_returned")) >= 3, "the return", PATIENCE_S)
    assert set(job.finish().values()) == {0}, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_leader_whose_other_nodes_have_lost_their_power_leads_again_and_waits_for_them(
    three: Cluster, tmp_path: Path
) -> None:
    job = start(three, tmp_path)
    for host in (three[1], three[2]):
        host.power_off()
    wait_for_term(job, 2)
    assert job.events("controller_resumed")[-1]["host"] == "node-0"
    three[1].power_on()
    job.launchers = [launcher for launcher in job.launchers if launcher.host is three[0]]
    job.join(three[1])
    wait_for_training_on(job, "node-0", "node-1")
    assert set(job.finish().values()) == {0}, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


# --- etcd, and no shared folder


def etcd_on(host: Host) -> str:
    """Run an etcd on a host; return what --coordinator takes."""
    client, peer = f"http://{host.address}:2379", f"http://{host.address}:2380"
    argv = [etcd_program(), "--name", "test", "--data-dir", str(host.private / "etcd"), "--logger", "zap"]
    argv += ["--listen-client-urls", client, "--advertise-client-urls", client]
    argv += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"test={peer}"]
    host.start(argv, name="etcd", env={"GOMAXPROCS": "1"})
    return f"etcd://{host.address}:2379"


def start_with_etcd(cluster: Cluster, tmp_path: Path) -> ClusterJob:
    """Start the same job with an etcd on the last host, and a folder of its own for each of the first three."""
    address = etcd_on(cluster[len(cluster) - 1])
    options = ["--nnodes", "2", "--standby", "1", "--controller-standby", "1", "--coordinator", address, *FAST]
    job = start_all(cluster, tmp_path=tmp_path, options=options, launch=())
    at = job.argv.index("--log-dir")
    job.argv = [*job.argv[:at], *job.argv[at + 2 :], write(tmp_path, TRAIN)]
    job.log_dir = runs_of(cluster[0])
    for host in list(cluster)[:3]:
        job.join(host, "--log-dir", str(runs_of(host)))
        if host is cluster[1]:
            job.wait_for_steps(0, 2)
    ready(job)
    return job


def runs_of(host: Host) -> Path:
    """Return where a host keeps its runs."""
    return host.private / "runs"


def follow(job: ClusterJob, cluster: Cluster, term: int) -> Host:
    """Look at the journal of whoever has begun this term from now on; return that host."""

    def found() -> Host | None:
        for host in cluster:
            job.log_dir = runs_of(host)
            if any(event["term"] == term for event in job.events("controller_resumed")):
                return host
        return None

    host: Host = wait_for(found, f"term {term}:\n{job.said()}", PATIENCE_S)
    return host


def test_with_etcd_a_candidate_takes_over_without_a_shared_folder(three: Cluster, tmp_path: Path) -> None:
    job = start_with_etcd(three, tmp_path)
    three[0].power_off()
    leader = follow(job, three, 2)
    workers = job.wait_for_steps(1, 2)
    assert {worker.host for worker in workers} == {"node-1", "node-2"}
    assert leader.name in {"node-1", "node-2"}
    assert job.wait_for_incident()["verdict"]["kind"] == "node_lost"
    codes = job.finish()
    assert (codes["node-1"], codes["node-2"]) == (0, 0), job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_controllers_node_that_is_cut_off_steps_down_and_stands_by_when_it_is_back(
    three: Cluster, tmp_path: Path
) -> None:
    job = start_with_etcd(three, tmp_path)
    names = job.names()
    three[0].cut()
    follow(job, three, 2)
    workers = job.wait_for_steps(1, 2)
    assert {worker.host for worker in workers} == {"node-1", "node-2"}
    wait_for(lambda: "this controller (term 1) stops" in job.on(three[0]).err, f"it stops:\n{job.said()}", PATIENCE_S)
    job.assert_never_two_at_once()
    three[0].heal()
    back = next(node for node, name in {**names, **job.names()}.items() if name == "node-0")
    wait_for(
        lambda: [event for event in job.events("node_returned") if event["node"] == back],
        f"it returns:\n{job.said()}",
        PATIENCE_S,
    )
    wait_for(lambda: job.on(three[0]).controller_pids(), "it is a candidate again", PATIENCE_S)
    job.wait_for_more_steps(1, 2)
    assert max(worker.attempt for worker in job.workers()) == 1, "its return ends no attempt"
    assert set(job.finish().values()) == {0}, job.said()
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_with_etcd_a_leader_that_reaches_etcd_and_no_node_lets_others_lead_and_gives_nobody_up(tmp_path: Path) -> None:
    need_hosts()
    with Cluster(4, tmp_path) as cluster:
        job = start_with_etcd(cluster, tmp_path)
        cluster[0].cut_from(cluster[1], cluster[2])
        follow(job, cluster, 2)
        workers = job.wait_for_steps(1, 2)
        assert {worker.host for worker in workers} == {"node-1", "node-2"}
        assert "it sees no other node" in job.on(cluster[0]).err
        job.log_dir = runs_of(cluster[0])
        assert job.events("node_lost") == [], "it is the leader that was cut off"
        cluster[0].heal()
        wait_for(lambda: job.on(cluster[0]).controller_pids(), "it is a candidate again", PATIENCE_S)
        assert set(job.finish().values()) == {0}, job.said()
        job.assert_never_two_at_once()
        job.assert_nothing_left()


def test_a_leader_that_stands_still_is_replaced_and_stands_by_when_it_goes_on(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path, "--rdzv-conf", "keep_alive_max_attempt=15")
    before = {(worker.host, worker.pid) for worker in job.workers()}
    stopped = job.on(three[0]).controller_pid()
    os.kill(stopped, signal.SIGSTOP)
    wait_for_term(job, 2)
    job.wait_for_event("node_returned", 3)
    os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: "this controller (term 1) stops" in job.on(three[0]).err, f"it stops:\n{job.said()}", PATIENCE_S)
    job.on(three[0]).controller_pid(other_than=stopped)
    job.wait_for_more_steps(0, 2)
    assert {(worker.host, worker.pid) for worker in job.workers()} == before
    assert terms(job.journal()) == [1, 2]
    assert set(job.finish().values()) == {0}
    job.assert_nothing_left()


def test_a_node_that_comes_back_when_the_job_is_over_goes_home(three: Cluster, tmp_path: Path) -> None:
    job = start_with_etcd(three, tmp_path)
    three[0].cut()
    job.wait_for_steps(1, 2)
    (job.steps_dir / "done").touch()
    assert (job.on(three[1]).finish(), job.on(three[2]).finish()) == (0, 0)
    three[0].heal()
    assert job.on(three[0]).finish() == 0, job.said()
    assert "the job ended while this node could not reach it" in job.on(three[0]).err
    job.assert_never_two_at_once()
    job.assert_nothing_left()
