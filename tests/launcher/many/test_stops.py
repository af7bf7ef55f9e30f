"""The job is told to end while its controller is away, or by a signal to every single process, as schedulers send it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENT, TRAIN, ClusterJob, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for

from robust_run.launcher.agent.signals import SAME_BREATH_S


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Two hosts that are on."""
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def start(cluster: Cluster, tmp_path: Path, nnodes: str) -> ClusterJob:
    """Start a job of one worker per host and wait until both train."""
    options = ["--nnodes", nnodes, "--no-warm", "--restart-grace", "0.3", "--shutdown-timeout", "5", *PATIENT]
    job = start_all(cluster, write(tmp_path, TRAIN), tmp_path=tmp_path, options=options)
    job.wait_for_steps(0, 2)
    return job


def test_a_stop_that_comes_while_the_controller_is_away_is_not_lost(two: Cluster, tmp_path: Path) -> None:
    job = start(two, tmp_path, "2")
    launcher = job.on(two[0])
    os.kill(launcher.controller_pid(), signal.SIGKILL)
    os.kill(launcher.guard_pid(), signal.SIGTERM)
    assert job.wait_ended() == {"node-0": 143, "node-1": 143}
    assert len(job.events("controller_resumed")) == 1, "the fault"
    assert job.actions("finish")[-1]["outcome"] == "stopped"
    assert "the job ended: stopped by SIGTERM" in job.on(two[1]).err
    assert not job.layout(1)
    job.assert_nothing_left()


@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_sigterm_to_every_process_of_the_controllers_node_ends_the_job(
    two: Cluster, tmp_path: Path, nnodes: str
) -> None:
    job = start(two, tmp_path, nnodes)
    for pid in two[0].pids():
        with contextlib.suppress(ProcessLookupError):  # it may have ended because of the signal before
            os.kill(pid, signal.SIGTERM)
    assert job.wait_ended() == {"node-0": 143, "node-1": 143}
    assert job.actions("finish")[-1]["outcome"] == "stopped"
    assert not job.events("controller_resumed"), "the controller leaves it to the agents what a signal means"
    assert not job.layout(1)
    job.assert_nothing_left()


def test_the_second_signal_ends_a_job_at_once_even_if_its_controller_does_not_answer(
    two: Cluster, tmp_path: Path
) -> None:
    job = start(two, tmp_path, "2")
    launcher = job.on(two[0])
    os.kill(launcher.controller_pid(), signal.SIGSTOP)
    os.kill(launcher.guard_pid(), signal.SIGINT)
    wait_for(lambda: "SIGINT" in launcher.err, "the first to be heard")
    time.sleep(SAME_BREATH_S)  # closer together they are one
    os.kill(launcher.guard_pid(), signal.SIGINT)
    assert launcher.finish() == 128 + signal.SIGINT
    job.on(two[1]).process.signal(signal.SIGTERM)
    job.finish()
    job.assert_nothing_left()
