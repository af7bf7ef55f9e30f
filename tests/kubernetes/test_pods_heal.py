"""Jobs as a cluster starts them, with the variables of its operators: a worker dies and is replaced in place, pods stay.

A pod that is lost is made anew by the cluster and takes its place; one that is deleted leaves in good order.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clusters import ALL_REDUCE, TOKEN, TRAIN, write
from hosts import Cluster, Host, need_hosts
from jobs import wait_for
from pod_operators import elastic_pytorchjob, indexed_job, jobset, pytorchjob, trainjob
from pods import Pod, PodJob, end_worker, pod_job, publish

from robust_run.launcher.records.token import metrics_token

#: All pods import torch at once, on a machine that is busy.
TORCH_S = 300.0

pytestmark = pytest.mark.timeout(900)

ASK = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
print(urllib.request.urlopen(request).read().decode())
"""

KINDS: dict[str, Callable[[], list[Pod]]] = {
    "PyTorchJob": lambda: pytorchjob(2),
    "elastic PyTorchJob": lambda: elastic_pytorchjob(2, 2, 2),
    "TrainJob": lambda: trainjob(2),
    "JobSet": jobset,
    "indexed Job": indexed_job,
}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def started(cluster: Cluster, tmp_path: Path, pods: list[Pod], text: str, **env: str) -> PodJob:
    job = pod_job(cluster, tmp_path, pods, write(tmp_path, text))
    for host in list(cluster)[: len(pods)]:
        job.join(host, env=env)
    return job


def host_of(job: PodJob, machine: str) -> Host:
    return next(host for host in job.hosts if host.name in job.pods and job.pods[host.name].machine == machine)


RANKS = {
    "PyTorchJob": ["train-master-0", "train-master-0", "train-worker-0", "train-worker-0"],
}
"""The hosts that an operator gave to ranks, where it does."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_is_killed_is_replaced_and_the_pods_stay(kind: str, cluster: Cluster, tmp_path: Path) -> None:
    pods = KINDS[kind]()
    processes = 2 if "PyTorch" in kind or kind == "TrainJob" else 1
    job = started(cluster, tmp_path, pods, ALL_REDUCE if kind == "PyTorchJob" else TRAIN)
    workers = job.wait_for_steps(0, 2 * processes, timeout_s=TORCH_S)
    assert kind not in RANKS or {each.rank: each.host for each in workers} == dict(enumerate(RANKS[kind]))
    hosts = {job.pods[host.name].name: host for host in cluster if host.name in job.pods}
    before = {name: job.pod_of(host) for name, host in hosts.items()}
    assert {name: job.probe(host) for name, host in hosts.items()} == dict.fromkeys(hosts, 0), "all are ready"
    world = job.layout(0)
    assert sorted(job.names().values()) == sorted(pod.machine for pod in pods), "nodes are called as their machines"
    end_worker(job, host_of(job, world[1]), attempt=0)
    job.wait_for_steps(1, 2 * processes, timeout_s=TORCH_S)
    (incident,) = job.incidents()
    assert (incident["verdict"]["rule"], incident["verdict"]["nodes"]) == ("died_of_signal", [world[1]])
    assert {name: job.pod_of(host) for name, host in hosts.items()} == before, "no pod was made anew"
    assert job.layout(1) == world
    assert set(job.finish(TORCH_S).values()) == {0}
    assert not job.layout(2), "once was enough"


def test_pods_meet_whose_names_lead_nowhere_at_first(cluster: Cluster, tmp_path: Path) -> None:
    job = pod_job(cluster, tmp_path, pytorchjob(1), write(tmp_path, TRAIN), names=False)
    master, worker = list(cluster)[:2]
    job.join(master)
    job.join(worker)
    job.wait_for_event("node_joined", 1, TORCH_S)
    assert job.probe(master) == 0, "a service that names only pods that are ready can name it now"
    assert job.probe(worker) == 1
    publish(cluster, job, master)
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    assert job.probe(worker) == 0
    assert set(job.finish(TORCH_S).values()) == {0}


def test_a_pod_that_is_lost_is_replaced_by_the_standby_and_stands_by_when_it_is_made_anew(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = started(cluster, tmp_path, indexed_job(), TRAIN)
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    job.wait_for_event("node_joined", 3, TORCH_S)
    world = job.layout(0)  # the first two that came
    name = next(each for each in world if each != "gpu-0")  # where the controller is
    lost = host_of(job, name)
    lost.power_off()
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert name not in job.layout(1)
    lost.power_on()
    job.join(lost)  # as the Job's controller does: the same number, name and arguments
    job.wait_for_event("node_joined", 4, TORCH_S)
    assert not job.layout(2), "nobody was disturbed for it"
    assert set(job.finish(TORCH_S).values()) == {0}


def test_the_pod_with_the_controller_is_lost_another_one_leads_and_the_new_pod_joins_that(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = pod_job(cluster, tmp_path, indexed_job(), write(tmp_path, TRAIN))
    job.join(cluster[0])
    job.join(cluster[1])
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    job.join(cluster[2])
    job.wait_for_event("node_joined", 3, TORCH_S)
    candidate = job.on(cluster[1])
    wait_for(candidate.controller_pids, f"a candidate on gpu-1:\n{job.said()}", TORCH_S)
    cluster[0].power_off()
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert "gpu-0" not in job.layout(1)
    cluster[0].power_on()
    job.join(cluster[0])
    job.wait_for_event("node_joined", 4, TORCH_S)
    assert set(job.finish(TORCH_S).values()) == {0}


def test_a_job_that_is_deleted_ends_once_and_as_a_whole_whichever_pod_is_told_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = started(cluster, tmp_path, indexed_job(), TRAIN)
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    job.wait_for_event("node_joined", 3, TORCH_S)
    job.delete(*reversed(cluster))
    assert set(job.wait_ended(TORCH_S).values()) == {128 + signal.SIGTERM}
    assert [each["outcome"] for each in job.actions("finish")] == ["stopped"]
    assert not job.layout(1), "no pod was taken for one that leaves a job that goes on"
    assert not job.incidents()


def test_a_drain_of_the_pod_with_the_controller_hands_that_over_and_the_job_goes_on_without_the_pod(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = pod_job(cluster, tmp_path, indexed_job(), write(tmp_path, TRAIN))
    host, peer, standby = cluster
    job.join(host)
    job.join(peer)
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    job.join(standby)
    job.wait_for_event("node_joined", 3, TORCH_S)
    wait_for(job.on(peer).controller_pids, f"a candidate on gpu-1:\n{job.said()}", TORCH_S)
    job.delete(host)
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert sorted(job.layout(1)) == ["gpu-1", "gpu-2"]
    assert job.on(host).finish(TORCH_S) == 128 + signal.SIGTERM
    assert [each["node"] for each in job.events("node_left")] == [job.events("node_told_to_leave")[0]["node"]]
    assert [each["verdict"]["rule"] for each in job.incidents()] == ["node_left"], "nobody waited for a lease"
    job.join(host)  # as the Job's controller does: the same number, name and arguments
    job.wait_for_event("node_joined", 4, TORCH_S)
    assert not job.layout(2), "nobody was disturbed for it"
    codes = job.finish(TORCH_S)
    assert [code for name, code in codes.items() if name != host.name] == [0, 0]


def test_prometheus_finds_a_job_and_reads_it_from_another_machine(cluster: Cluster, tmp_path: Path) -> None:
    job = started(cluster, tmp_path, pytorchjob(1), TRAIN, ROBUST_PROMETHEUS_DIR=str(tmp_path / "targets"))
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    (file,) = (tmp_path / "targets").glob("*.json")
    ((only),) = json.loads(file.read_text())
    assert only["targets"] == [f"{cluster[0].address}:8080"]
    argv = [sys.executable, "-c", ASK, f"http://{only['targets'][0]}/metrics", f"Bearer {metrics_token(TOKEN)}"]
    assert "robust_run_running" in cluster[2].run(argv).stdout
    assert set(job.finish(TORCH_S).values()) == {0}
    assert not list((tmp_path / "targets").iterdir())


def test_a_pod_that_is_drained_leaves_in_good_order(cluster: Cluster, tmp_path: Path) -> None:
    job = started(cluster, tmp_path, indexed_job(), TRAIN)
    job.wait_for_steps(0, 2, timeout_s=TORCH_S)
    job.wait_for_event("node_joined", 3, TORCH_S)
    world = job.layout(0)
    drained = host_of(job, world[1])
    job.delete(drained)
    job.wait_for_steps(1, 2, timeout_s=TORCH_S)
    assert world[1] not in job.layout(1)
    codes = job.finish(TORCH_S)
    assert [code for name, code in codes.items() if name != drained.name] == [0, 0]
