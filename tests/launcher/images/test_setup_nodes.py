"""`robust-run --setup` on several nodes: one builds, all restore; who comes late takes what the job has, and never installs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from clusters import start_all
from hosts import Cluster, need_hosts
from jobs import Job, script, unused_port, wait_for

from robust_run.launcher.records.memory_folders import remove_dead_memory
from tests.launcher.images.setup_ground import LOOK, Ground, ground_at

TOKEN = "a token that all nodes know"
#: Waits until it is let go, and ends with an error the first time.
WAITS = f"""{LOOK}
import time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
open(f"up-{{attempt}}-{{os.environ['RANK']}}", "w").close()
while not os.path.exists(f"go-{{attempt}}"):
    time.sleep(0.01)
"""


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with ground_at(tmp_path) as made:
        yield made


def meeting(nnodes: str, *more: str, conf: str = "") -> tuple[str, ...]:
    patient = f"keep_alive_max_attempt=30{conf}"  # no node is lost because the machine is busy
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{unused_port()}", "--rdzv-id", "together")
    return ("--nnodes", nnodes, *where, "--rdzv-conf", patient, *more)


def looks(*jobs: Job) -> list[str]:
    """What workers have said."""
    return sorted(line for job in jobs for line in job.out.splitlines() if line.count(" ") == 3)


def test_two_nodes_that_start_at_once_build_once(ground: Ground) -> None:
    words, path = meeting("2"), script(ground.folder, LOOK)
    with (
        ground.running(*words, *ground.options(cache="a"), path, ROBUST_TOKEN=TOKEN) as one,
        ground.running(*words, *ground.options(cache="b"), path, ROBUST_TOKEN=TOKEN) as other,
    ):
        assert [one.finish(), other.finish()] == [0, 0], one.err + other.err
        one.assert_nothing_left()
        other.assert_nothing_left()
    assert looks(one, other) == ["1 True 0 0", "1 True 1 0"]
    assert ground.runs == 1
    assert (one.err + other.err).count("built here") == 1


def test_a_node_that_comes_late_takes_what_the_job_has(ground: Ground) -> None:
    """Though its requirements have changed, and it was told to refresh: both were for the node that built."""
    words, path = meeting("1", "--standby", "1"), script(ground.folder, WAITS)
    options = (*words, *ground.options(cache="a"), "--refresh-setup", "--max-restarts", "3")
    with ground.running(*options, path, ROBUST_TOKEN=TOKEN) as one:
        one.wait_for_file("up-0-0", ground.folder)
        ground.requirements.write_text("tiny==2.0\n")
        late = (*words, *ground.options(cache="b"), "--refresh-setup", path)
        with ground.running(*late, ROBUST_TOKEN=TOKEN) as other:
            wait_for(lambda: len(one.events("node_joined")) == 2, "the standby to join")
            (ground.folder / "go-1").touch()
            os.kill(one.pids()[0], signal.SIGKILL)
            assert [one.finish(), other.finish()] == [0, 0], one.err + other.err
            one.assert_nothing_left()
            other.assert_nothing_left()
    assert looks(one, other) == ["1 True 0 0", "1 True 0 1"]
    assert ground.runs == 1


def test_a_standby_runs_in_it_when_the_node_is_lost(ground: Ground) -> None:
    words, path = meeting("1:2"), script(ground.folder, WAITS)
    with (
        ground.running(*words, *ground.options(cache="a"), path, ROBUST_TOKEN=TOKEN) as one,
        ground.running(*words, *ground.options(cache="b"), path, ROBUST_TOKEN=TOKEN) as other,
    ):
        for rank in (0, 1):
            wait_for(lambda rank=rank: (ground.folder / f"up-0-{rank}").exists(), "both workers")  # type: ignore[misc]
        (ground.folder / "go-1").touch()
        host, guest = (one, other) if "hosts the controller" in said(one) else (other, one)
        guest.signal(signal.SIGKILL)
        assert host.finish() == 0, host.err
        wait_for(lambda: not guest.leftovers(), "the lost node's processes to end")
        guest.finish()
    remove_dead_memory()
    assert "1 True 0 1" in looks(host)
    assert ground.runs == 1


def said(job: Job) -> str:
    """What a job says until its workers have started."""
    assert job.process.stderr is not None
    os.set_blocking(job.process.stderr.fileno(), False)
    with suppress(BlockingIOError):
        job.err += os.read(job.process.stderr.fileno(), 1 << 16).decode()
    os.set_blocking(job.process.stderr.fileno(), True)
    return job.err


def test_when_the_builder_is_killed_another_node_builds(ground: Ground) -> None:
    command = f"echo up > $TEST_FOLDER/up-$TEST_NODE; test $TEST_NODE = b || sleep 1000; {ground.command}"
    words, path = meeting("1:2", conf=",last_call_timeout=1"), script(ground.folder, LOOK)
    with ground.running(*words, *ground.options(command, "a"), path, ROBUST_TOKEN=TOKEN, TEST_NODE="a") as one:
        one.wait_for_file("up-a", ground.folder)
        with ground.running(*words, *ground.options(command, "b"), path, ROBUST_TOKEN=TOKEN, TEST_NODE="b") as other:
            wait_for(lambda: "another node installs" in said(other), "the second node to wait")
            for line in one.leftovers():
                with suppress(ProcessLookupError):
                    os.kill(int(line.partition(":")[0]), signal.SIGKILL)
            assert other.finish() == 0, other.err
            other.assert_nothing_left()
    for folder in (ground.folder / "work").iterdir():  # of the build that was killed
        assert folder.name.startswith("robust-setup-")
        shutil.rmtree(folder)
    remove_dead_memory()
    assert looks(other) == ["1 True 0 0"]
    assert ground.runs == 1


def test_a_set_up_that_fails_on_one_node_ends_all(ground: Ground) -> None:
    command = "sleep 1; echo the reason; false"
    words, path = meeting("2"), script(ground.folder, LOOK)
    with (
        ground.running(*words, *ground.options(command, "a"), path, ROBUST_TOKEN=TOKEN) as one,
        ground.running(*words, *ground.options(command, "b"), path, ROBUST_TOKEN=TOKEN) as other,
    ):
        assert [one.finish(), other.finish()] == [1, 1], one.err + other.err
        one.assert_nothing_left()
        other.assert_nothing_left()
    for job in (one, other):
        assert job.err.splitlines()[-1].endswith("ended with 1: the reason")


def test_machines_of_their_own_share_what_the_first_installs(ground: Ground) -> None:
    """No node but the first is asked to build: it is told by the controller what the job has."""
    need_hosts()
    path = script(ground.folder, LOOK)
    with Cluster(2, ground.folder) as cluster:
        job = start_all(
            cluster,
            path,
            tmp_path=ground.folder,
            options=["--nnodes", "2", *ground.options(), "--refresh-setup"],
            env=ground.keywords()["env"],
            python=ground.python,
        )
        assert job.finish() == {"node-0": 0, "node-1": 0}, job.said()
        for host in cluster:
            wait_for(lambda host=host: not job.left_on(host), f"{host.name} to be empty")  # type: ignore[misc]
        assert sorted(path.name for path in (job.run_dir / "setup").glob("node-*.json")) == [
            "node-0.json",
            "node-1.json",
        ]
    assert ground.runs == 1
