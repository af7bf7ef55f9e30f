"""`robust status | nodes | events | evict | readmit | restart | stop` on a job of three nodes, from its node and from others."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import PATIENCE_S, TRAIN, ClusterJob, start_all, write
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

CALM = ("--rdzv-conf", "keep_alive_max_attempt=6")  # a busy machine may hold an agent up for a second and more
FAST = ("--no-warm", "--restart-grace", "0.3", "--shutdown-timeout", "3", *CALM)
ROBUST = (sys.executable, "-c", "from robust_run.robust_cli import main; main()")


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three hosts that are on."""
    need_hosts()
    with Cluster(3, tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, tmp_path: Path, *options: str, script: str = TRAIN) -> ClusterJob:
    """Start a job on two hosts, with a third that stands by; it trains."""
    path = write(tmp_path, script)
    job = start_all(
        cluster,
        path,
        tmp_path=tmp_path,
        options=["--nnodes", "2", "--standby", "1", *FAST, *options],
        launch=[cluster[0], cluster[1]],
    )
    job.wait_for_steps(0, 2)
    job.join(cluster[2])
    job.wait_for_event("node_joined", 3)
    wait_for((job.run_dir / "api.json").exists, "the API", PATIENCE_S)
    return job


def robust(host: Host, job: ClusterJob, command: str, *arguments: str, code: int = 0) -> str:
    """Run a `robust` command about the job on a host and return what it prints; stderr where it must fail."""
    argv = [*ROBUST, command, *arguments, *([] if "--url" in arguments else [str(job.run_dir)])]
    done = host.run(argv, check=False, env=job.env)
    assert done.returncode == code, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def standings(host: Host, job: ClusterJob, *arguments: str) -> dict[str, str]:
    """Return what each node is to the job."""
    view = json.loads(robust(host, job, "nodes", "--json", *arguments))
    return {node["name"]: node["standing"] for node in view["nodes"]}


def hosts_of(job: ClusterJob, attempt: int) -> set[str]:
    """Return where the workers of an attempt train."""
    return {worker.host for worker in job.wait_for_steps(attempt, 2)}


def test_an_evicted_node_is_replaced_and_remembered_by_the_next_job(three: Cluster, tmp_path: Path) -> None:
    evicted = tmp_path / "evicted"
    job = start(three, tmp_path, "--evict-list", str(evicted))
    assert standings(three[0], job) == {"node-0": "active", "node-1": "active", "node-2": "standby"}
    said = robust(three[0], job, "evict", "node-1", "--reason", "its fan is loud")
    assert "evicted node-1" in said
    assert hosts_of(job, 1) == {"node-0", "node-2"}
    assert standings(three[0], job) == {"node-0": "active", "node-1": "evicted", "node-2": "active"}
    incident = job.wait_for_incident()
    assert (incident["action"]["name"], "its fan is loud" in incident["verdict"]["sentence"]) == ("evict", True)
    assert "its fan is loud" in evicted.read_text()
    assert job.finish() == {"node-0": 0, "node-1": 0, "node-2": 0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()

    after = start_all(
        three,
        str(tmp_path / "train.py"),
        tmp_path=tmp_path,
        options=["--nnodes", "2", "--standby", "1", "--evict-list", str(evicted), *FAST],
    )
    assert hosts_of(after, 0) == {"node-0", "node-2"}
    assert set(after.finish().values()) == {0}
    after.assert_nothing_left()


def test_an_evicted_standby_is_not_used(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    warning = three[0].run([*ROBUST, "evict", "node-2", str(job.run_dir)], env=job.env)
    assert "evicted node-2" in warning.stdout
    assert standings(three[0], job)["node-2"] == "evicted"
    three[1].power_off()
    job.wait_for_incident()
    assert "waiting for nodes" in robust(three[0], job, "status"), "it does not take the evicted one"
    robust(three[0], job, "readmit", "node-2")
    assert hosts_of(job, 1) == {"node-0", "node-2"}
    codes = job.finish()
    assert (codes["node-0"], codes["node-2"]) == (0, 0)
    job.assert_nothing_left()


def test_without_a_spare_the_job_waits_until_the_node_is_readmitted(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    job.launchers.pop().process.signal(15)  # the standby goes
    job.wait_for_event("node_left")
    done = three[0].run([*ROBUST, "evict", "node-1", str(job.run_dir)], env=job.env)
    assert "the job will wait for a node" in done.stderr
    wait_for(lambda: "1 of 2 nodes are here" in job.said(), "it says that it waits", PATIENCE_S)
    assert "waiting for nodes" in robust(three[0], job, "status")
    assert "readmitted node-1" in robust(three[0], job, "readmit", "node-1")
    assert hosts_of(job, 1) == {"node-0", "node-1"}
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_the_web_server_is_for_its_own_machine_alone_unless_more_is_asked_for(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    said = three[2].run([*ROBUST, "status", str(job.run_dir)], env=job.env)
    assert "running" in said.stdout  # the simulated hosts share a kernel, and so the Unix socket
    place: dict[str, Any] = json.loads((job.run_dir / "api.json").read_text())
    assert place["http"].startswith("http://127.0.0.1:")
    job.finish()
    job.assert_nothing_left()


def test_another_machine_needs_the_address_and_the_token(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path, "--http-host", "0.0.0.0")
    place: dict[str, Any] = json.loads((job.run_dir / "api.json").read_text())
    url = place["http"]
    assert three[0].address in url, place
    far = ("--url", url, "--token-file", str(job.run_dir / "token"))
    assert standings(three[2], job, *far) == {"node-0": "active", "node-1": "active", "node-2": "standby"}
    assert json.loads(robust(three[2], job, "status", "--json", *far))["attempt"] == 0
    assert "attempt 0 starts" in robust(three[2], job, "events", *far)
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    wrong.chmod(0o600)
    refusal = robust(three[2], job, "stop", "--url", url, "--token-file", str(wrong), code=1)
    assert "token" in refusal, refusal
    assert "started again as attempt 1" in robust(three[2], job, "restart", "--reason", "to see", *far)
    assert hosts_of(job, 1) == {"node-0", "node-1"}
    assert job.wait_for_incident()["symptom"] == "operator"
    assert "stopping" in robust(three[2], job, "stop", *far)
    codes = job.wait_ended()
    assert len(set(codes.values())) == 1, codes
    assert set(codes.values()) == {128 + 15}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_dead_job_still_tells_its_story(three: Cluster, tmp_path: Path) -> None:
    job = start(three, tmp_path)
    robust(three[0], job, "restart")
    job.wait_for_steps(1, 2)
    alive = json.loads(robust(three[0], job, "status", "--json"))
    assert "stopping" in robust(three[0], job, "stop", "--now")
    assert set(job.wait_ended().values()) == {143}
    dead = json.loads(robust(three[1], job, "status", "--json"))
    assert set(dead) == set(alive)
    assert dead["attempt"] == alive["attempt"] == 1
    story = robust(three[1], job, "events")
    for words in ("joined with 1 worker", "attempt 1 starts", "restart asked for by", "the job is over: stopped"):
        assert words in story, story
    lines = [json.loads(line) for line in robust(three[1], job, "events", "--json").splitlines()]
    assert [line for line in lines if "event" in line or "action" in line] == job.journal()[1:]
    assert "is over (stopped)" in robust(three[1], job, "evict", "node-1", code=1)
    job.assert_nothing_left()
