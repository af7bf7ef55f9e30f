"""Code updates of jobs on several hosts: whoever is there, comes later, or takes over, no attempt mixes versions."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import PATIENT, ClusterJob, start_all
from code_jobs import began, write_code
from hosts import Cluster, Host, need_hosts
from jobs import wait_for

PATIENCE_S = 150.0  # every attempt imports torch on each node, on a machine that is busy
OPTIONS = ("--probation-steps", "10", "--restart-grace", "1", "--rdzv-conf", "keep_alive_max_attempt=6")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(4, tmp_path) as cluster:
        yield cluster


def robust(host: Host, run_dir: Path | str, *words: str, check: bool = True) -> str:
    """Type a `robust` command on a host; return what it says."""
    argv = [sys.executable, "-c", "from robust_run.robust_cli import main; main()", *words, str(run_dir)]
    done = host.run(argv, check=check, timeout_s=60.0)
    return str(done.stdout + done.stderr)


def fates(host: Host, run_dir: Path | str) -> dict[int, str]:
    """Return what became of each version."""
    said = robust(host, run_dir, "code", "log", "--json", check=False)
    try:
        return {each["version"]["number"]: each["fate"] for each in json.loads(said).get("records", [])}
    except ValueError:
        return {}


def wait_for_fate(host: Host, run_dir: Path | str, number: int, fate: str) -> None:
    """Wait until this became of a version."""
    wait_for(lambda: fates(host, run_dir).get(number) == fate, f"version {number} to be {fate}", PATIENCE_S)


def seen(folder: Path, attempt: int, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank of an attempt ran."""
    return [began(folder, attempt, rank, PATIENCE_S) for rank in range(ranks)]


def wait_for_weights(folder: Path) -> None:
    """Wait until something was learnt."""
    wait_for((folder / "weights.pt").exists, "weights", PATIENCE_S)


def finish(job: ClusterJob, folder: Path) -> set[int]:
    """Let the job end; return the exit codes of the nodes that are on."""
    (folder / "enough").touch()
    codes = job.wait_ended(PATIENCE_S)
    return {code for code in codes.values() if code != -9}


def test_a_lost_node_brings_the_update_and_the_standby_has_it(cluster: Cluster, tmp_path: Path) -> None:
    code, here = tmp_path / "code", cluster.shared
    write_code(code)
    options = ["--nnodes", "3", "--standby", "1", *OPTIONS]
    job = start_all(cluster, str(code / "train.py"), tmp_path=tmp_path, options=options)
    seen(here, 0, 3)
    wait_for_weights(here)
    write_code(code, scale=2)
    robust(cluster[0], job.run_dir, "update", "--slower")  # than it was, on a machine that is busy
    write_code(code, scale=77)  # never staged
    world = job.layout(0)
    next(host for host in cluster if host.name == world[-1] and host is not cluster[0]).power_off()
    now = seen(here, 1, 3)
    assert [each["scale"] for each in now] == [2, 2, 2], job.said()
    assert len({each["version"] for each in now}) == 1
    assert all(each["from"] > 0 for each in now)
    wait_for_fate(cluster[0], job.run_dir, 2, "trusted")
    assert finish(job, here) == {0}
    job.assert_nothing_left([host for host in cluster if host._init])


def test_nodes_that_share_no_folder_get_the_version_and_go_back_together(cluster: Cluster, tmp_path: Path) -> None:
    here = cluster.shared
    places = [host.root / "run" / "code" for host in list(cluster)[:3]]
    for index, place in enumerate(places):
        write_code(place, scale=1 if index == 0 else 50 + index)  # not even at the start the same
    hosts = list(cluster)[:3]
    options = ["--nnodes", "2", "--standby", "1", "--log-dir", "/run/logs", *OPTIONS, *PATIENT]
    job = start_all(cluster, "/run/code/train.py", tmp_path=tmp_path, options=options, launch=hosts[:2])
    job.log_dir = hosts[0].root / "run" / "logs"
    run_dir = f"/run/logs/{job.run_id}"
    assert {each["scale"] for each in seen(here, 0, 2)} == {1}, "what the controller's node has, all have"
    wait_for_weights(here)
    write_code(places[0], scale=2)
    robust(hosts[0], run_dir, "update", "--when", "now", "--slower")
    now = seen(here, 1, 2)
    assert [each["scale"] for each in now] == [2, 2], f"{now}\n{job.said()}"
    wait_for_fate(hosts[0], run_dir, 2, "trusted")
    late = job.join(hosts[2])  # it was not there when the update was made
    store = hosts[2].root / "run" / "logs" / job.run_id / "code" / "trees"
    wait_for(lambda: store.is_dir() and len(list(store.iterdir())) >= 1, f"the standby to get the code: {late.err}")
    write_code(places[0], scale=3, extra="assert step % 5 != 3, 'bad idea'")
    robust(hosts[0], run_dir, "update", "--when", "now", "--slower", "--note", "a bad one")
    wait_for_fate(hosts[0], run_dir, 3, "rolled_back")
    back = seen(here, 3, 2)
    assert {each["scale"] for each in back} == {2}, job.said()
    assert finish(job, here) == {0}
    job.assert_nothing_left(hosts)
    assert all(len({each["version"] for each in seen(here, attempt, 2)}) == 1 for attempt in range(4))
    first = json.loads((job.log_dir / job.run_id / "startup.json").read_bytes())["attempts"][0]
    assert [(node, fetch[0]) for node, fetch in first["fetched"]] == [(hosts[1].name, "code")], "a row of the waterfall"


def test_a_controller_that_comes_back_knows_what_is_pending(cluster: Cluster, tmp_path: Path) -> None:
    code, here = tmp_path / "code", cluster.shared
    write_code(code)
    hosts = list(cluster)[:2]
    job = start_all(
        cluster, str(code / "train.py"), tmp_path=tmp_path, options=["--nnodes", "2", *OPTIONS], launch=hosts
    )
    seen(here, 0, 2)
    wait_for_weights(here)
    write_code(code, scale=12)
    robust(hosts[0], job.run_dir, "update", "--slower", "--note", "before the fall")
    killed = job.on(hosts[0]).controller_pid()
    os.kill(killed, signal.SIGKILL)
    job.wait_for_event("controller_resumed")
    wait_for(lambda: len(job.events("node_returned")) >= 2, job.said(), PATIENCE_S)
    known = wait_for(lambda: fates(hosts[0], job.run_dir), "its answer", PATIENCE_S)
    assert known == {1: "trusted", 2: "pending"}
    worker = next(event for event in job.events("attempt_started") if job.names()[event["node"]] == hosts[1].name)
    os.kill(hosts[1].pid_outside(worker["pids"][0]), signal.SIGKILL)
    assert {each["scale"] for each in seen(here, 1, 2)} == {12}, job.said()
    wait_for_fate(hosts[0], job.run_dir, 2, "trusted")
    shutil.rmtree(code)
    assert "before the fall" in robust(hosts[0], job.run_dir, "code", "show", "2")
    assert finish(job, here) == {0}
    job.assert_nothing_left(hosts)


def test_nodes_go_back_together_from_whatever_is_bad(cluster: Cluster, tmp_path: Path) -> None:
    code, here = tmp_path / "code", cluster.shared
    write_code(code)
    job = start_all(
        cluster,
        str(code / "train.py"),
        tmp_path=tmp_path,
        options=["--nnodes", "2", *OPTIONS, *PATIENT],
        launch=list(cluster)[:2],
    )
    seen(here, 0, 2)
    wait_for_weights(here)
    job.wait_for_event("steps_survived", 2, PATIENCE_S)
    bad = (
        ("code", {"extra": "pass\nimport no_such_module_anywhere"}),
        ("nan", {"extra": "net.weight.data.fill_(float('nan')) if step % 5 == 4 and attempt == '3' else None"}),
        ("slow", {"pause": 1.0}),
    )
    for number, (kind, what) in enumerate(bad, start=2):
        write_code(code, scale=number, **what)  # type: ignore[arg-type]
        meant = () if kind == "slow" else ("--slower",)  # a machine that is busy is no reason to go back
        robust(cluster[0], job.run_dir, "update", "--when", "now", *meant, "--note", kind)
        wait_for_fate(cluster[0], job.run_dir, number, "rolled_back")
        assert [each["scale"] for each in seen(here, 2 * (number - 1), 2)] == [1] * 2, job.said()
        wait_for(
            lambda: [event for event in job.events("steps_survived") if event["attempt"] == 2 * (number - 1)],  # noqa: B023
            "training to go on",
            PATIENCE_S,
        )
    kinds = [action["verdict"]["kind"] for action in job.actions("record_incident") if action["action"] == "rollback"]
    assert kinds == ["code", "nan", "slow"]
    assert finish(job, here) == {0}
    job.assert_nothing_left()
