"""Nodes that keep copies of each other's memory: one that loses its power costs a step, one and its peer what storage lacks."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from authorities import node_options
from clusters import PATIENT, STEPS, ClusterJob, start_all, write
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

from robust_run.ckpt_io import catalog

TRAIN = f"""{STEPS}
    import torch
    import torch.distributed as dist

    from robust_run import checkpoint

    dist.init_process_group("gloo")
    weights = torch.arange(1, 101, dtype=torch.int64)
    state = {{"weights": weights, "more": torch.zeros(300_000, dtype=torch.int64)}}
    at = begin = checkpoint.load(state) or 0
    done = torch.zeros(1, dtype=torch.int64)
    while not done:
        at += 1
        part = (weights * (RANK + 3) + at * 7919) % 2147483647
        dist.all_reduce(part)
        weights.copy_((weights * 31 + part) % 2147483647)
        checkpoint.save(state, step=at, every=10)
        done[0] = int(RANK == 0 and os.path.exists(DONE))
        dist.broadcast(done, 0)
        step()
        pause(0.1)
    with open(f"{{STEPS_DIR}}/final-{{RANK}}", "w") as file:
        print(at, *weights.tolist(), file=file)
    dist.destroy_process_group()
"""


def undisturbed(steps: int, ranks: int) -> list[int]:
    weights = list(range(1, 101))
    for step in range(1, steps + 1):
        parts = [sum((each * (rank + 3) + step * 7919) % 2147483647 for rank in range(ranks)) for each in weights]
        weights = [(each * 31 + part) % 2147483647 for each, part in zip(weights, parts, strict=True)]
    return weights


@pytest.fixture
def hosts(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(request.param, tmp_path) as cluster:
        yield cluster


def evict(job: ClusterJob, host: Host, name: str) -> None:
    words = ["evict", name, "--force", "--reason", "its turn", str(job.run_dir)]
    host.run([sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words], env=job.env)


def begin(
    cluster: Cluster | list[Host],
    tmp_path: Path,
    nodes: int,
    *more: str,
    has_copies: bool = True,
    step_s: float = 0.1,
    every: int = 10,
) -> ClusterJob:
    """Start the training on some of the hosts; the others stand by. Return when it keeps copies and has made some steps."""
    options = ["--nnodes", str(nodes), "--standby", str(len(cluster) - nodes), "--restart-grace", "0.3", *PATIENT]
    job = start_all(
        cluster,
        write(tmp_path, TRAIN.replace("pause(0.1)", f"pause({step_s})").replace("every=10", f"every={every}")),
        tmp_path=tmp_path,
        options=[*options, "--ckpt-dir", str(tmp_path / "ckpt"), *more],
    )
    if has_copies:
        wait_for(lambda: len(copied_to(job)) == nodes, f"all to be told where to send copies:\n{job.said()}", 60.0)
    job.wait_for_steps(0, nodes, count=made(job) + 20)
    return job


def wait_until_stored(folder: Path) -> None:
    """Wait until a step is in storage: it is written beside the training, which may be steps ahead on a busy machine."""
    wait_for(
        lambda: "valid" in [each.state for each in catalog.list_checkpoints(str(folder))], "a step in storage", 60.0
    )


def made(job: ClusterJob, attempt: int = 0) -> int:
    """Steps of the rank of an attempt that has made most."""
    return max((len(worker.times) for worker in job.workers() if worker.attempt == attempt), default=0)


def copied_to(job: ClusterJob, attempt: int = 0) -> dict[str, str]:
    """By name of a host: which one gets its copies."""
    names = job.names()
    orders = [order for order in job.actions("memory_peers") if order["attempt"] == attempt]
    return {names[peer["node"]]: peer["name"] for order in orders for peer in order["peers"]}


def chosen(job: ClusterJob, attempt: int) -> dict[str, Any]:
    (event,) = [event for event in job.events("resume_chosen") if event["attempt"] == attempt]
    return event


def finish(job: ClusterJob, ranks: int) -> None:
    """Have the training end; its weights are those of one that nothing happened to."""
    codes = job.finish()
    assert codes["node-0"] == 0, job.said()
    finals = [[int(word) for word in (job.steps_dir / f"final-{rank}").read_text().split()] for rank in range(ranks)]
    assert all(final == finals[0] for final in finals)
    assert finals[0][1:] == undisturbed(finals[0][0], ranks)
    job.assert_nothing_left()


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_rank_that_dies_and_then_a_node_that_loses_its_power_cost_a_step_each(hosts: Cluster, tmp_path: Path) -> None:
    job = begin(hosts, tmp_path, 2, every=1000)  # a step that storage has just got would do as well
    try:
        workers = {each.rank: each for each in job.workers()}
        worker, peer = workers[1], workers[0]  # any of the three may stand by
        host = next(host for host in hosts if host.name == worker.host)
        os.kill(host.pid_outside(worker.pid), signal.SIGKILL)
        job.wait_for_steps(1, 2, count=20)
        event = chosen(job, 1)
        assert (event["source"], event["step"] >= made(job) - 1) == ("memory", True), (event, job.said())
        wait_for(lambda: len(copied_to(job, 1)) == 2, "all to be told again where to send copies")
        job.wait_for_steps(1, 2, count=made(job, 1) + 10)

        host.power_off()
        job.wait_for_steps(2, 2, count=5)
        reached = event["step"] + made(job, 1)
        event = chosen(job, 2)
        # On a busy machine a copy may take longer than a step, and only each second one is copied.
        assert (event["source"], event["step"] >= reached - 3) == ("peer", True), (reached, event, job.said())
        words = f"attempt 2 starts at step {event['step']} from memory, {host.name}'s part from its copy on {peer.host}"
        assert words in job.said()
        (newcomer,) = {each.name for each in hosts} - {"node-0", host.name}  # whichever came last stood by
        wait_for(lambda: copied_to(job, 2) == {"node-0": newcomer, newcomer: "node-0"}, "the newcomer to have its part")
        finish(job, 2)
    finally:
        job.kill_everything()


#: Which certificate a port shows.
ASK = "import ssl, sys; print(ssl.get_server_certificate((sys.argv[1], int(sys.argv[2]))))"


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_with_certificates_the_copy_that_saves_a_node_went_over_tls(hosts: Cluster, tmp_path: Path) -> None:
    files = node_options(tmp_path)
    job = begin(hosts, tmp_path, 2, *files, step_s=0.5)  # encrypted, a copy takes longer than 0.1 s on a busy machine
    try:
        for ready in job.events("memory_ready"):
            shown = hosts[0].run([sys.executable, "-c", ASK, ready["host"], str(ready["port"])]).stdout
            assert shown.strip() == Path(files[1]).read_text().strip(), "keepers speak TLS"
        job.wait_for_steps(0, 2, count=made(job) + 5)
        victim = next(host for host in hosts[1:] if host.name in job.layout(0))
        victim.power_off()
        job.wait_for_steps(1, 2, count=5)
        reached, event = made(job), chosen(job, 1)
        assert (event["source"], event["step"] >= reached - 1) == ("peer", True), (reached, event, job.said())
        finish(job, 2)
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_with_one_node_a_standby_has_the_copy_and_goes_on_with_it(hosts: Cluster, tmp_path: Path) -> None:
    job = begin(hosts, tmp_path, 1)
    try:
        (name,) = job.layout(0)
        evict(job, hosts[0], name)
        job.wait_for_steps(1, 1, count=5)
        reached, event = made(job), chosen(job, 1)
        assert (event["source"], event["step"] >= reached - 1) == ("peer", True), (reached, event, job.said())
        finish(job, 1)
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_without_copies_a_node_that_is_evicted_gives_its_own_part_away(hosts: Cluster, tmp_path: Path) -> None:
    job = begin(hosts, tmp_path, 2, "--ckpt-copies", "0", has_copies=False)
    try:
        assert copied_to(job) == {}
        victim = next(host.name for host in hosts[1:] if host.name in job.layout(0))
        evict(job, hosts[0], victim)
        job.wait_for_steps(1, 2, count=5)
        reached, event = made(job), chosen(job, 1)
        assert (event["source"], event["step"] >= reached - 1) == ("peer", True), (reached, event, job.said())
        words = f"attempt 1 starts at step {event['step']} from memory, rank 1 from {victim}"
        assert words in job.said()
        assert victim not in job.layout(1)
        assert copied_to(job) == copied_to(job, 1) == {}
        finish(job, 2)
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [5], indirect=True)
def test_a_node_and_its_peer_that_lose_their_power_bring_the_job_back_to_storage(
    hosts: Cluster, tmp_path: Path
) -> None:
    job = begin(hosts, tmp_path, 3)
    try:
        peers = copied_to(job)
        first = next(name for name, peer in peers.items() if hosts[0].name not in (name, peer))
        victims = [host for host in hosts if host.name in (first, peers[first])]
        wait_until_stored(tmp_path / "ckpt")
        wait_for(lambda: made(job) % 10 in (3, 4, 5), "steps that are in memory alone")
        for victim in victims:
            victim.power_off()
        job.wait_for_steps(1, 3, count=5)
        event = chosen(job, 1)
        assert (event["source"], event["step"] % 10) == ("storage", 0), (event, job.said())
        reasons = [each["why"] for each in event["passed_over"]]
        assert reasons == [f"{first}, which held a part of it, is gone, and no other node has a copy"], (
            event,
            job.said(),
        )
        finish(job, 3)
    finally:
        job.kill_everything()


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_copy_that_does_not_come_is_passed_over_and_not_tried_for_ever(hosts: Cluster, tmp_path: Path) -> None:
    job = begin(hosts[:2], tmp_path, 2)
    try:
        job.join(hosts[2], "--ckpt-memory", "1M")  # there is no room for what is to be brought
        wait_for(lambda: len(job.names()) == 3, "the standby")
        wait_until_stored(tmp_path / "ckpt")
        hosts[1].power_off()
        (attempt,) = wait_for(lambda: storage_starts(job), f"an attempt that starts from storage:\n{job.said()}", 60.0)
        job.wait_for_steps(attempt, 2, count=5)
        tried = [event for event in job.events("resume_chosen") if 0 < event["attempt"] < attempt]
        assert 1 <= len(tried) <= 3 and {event["source"] for event in tried} == {"peer"}, job.said()
        steps = [event["step"] for event in tried]
        assert steps == sorted(set(steps), reverse=True), "each of them once, the newest first"
        assert "cannot be read" in job.said() and "is passed over" in job.said()
        finish(job, 2)
    finally:
        job.kill_everything()


def storage_starts(job: ClusterJob) -> list[int]:
    return [event["attempt"] for event in job.events("resume_chosen") if event["source"] == "storage"][:1]
