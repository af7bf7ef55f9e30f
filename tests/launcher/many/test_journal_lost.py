"""The run directory loses what the controller wrote, and the controller dies: the agents' word counts, and the job heals."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PATIENCE_S, TRAIN, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for

#: The lease is longer than usual: a busy machine may hold an agent up for a second and more.
CALM = ("--rdzv-conf", "keep_alive_max_attempt=6")
FAST = ("--nnodes", "2", "--no-warm", "--restart-grace", "0.3", "--max-restarts", "0", *CALM)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    """Two hosts that are on."""
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def test_a_job_whose_run_directory_is_deleted_survives_its_controller(two: Cluster, tmp_path: Path) -> None:
    job = start_all(two, write(tmp_path, TRAIN), tmp_path=tmp_path, options=list(FAST))
    job.wait_for_steps(0, 2)
    shutil.rmtree(job.run_dir.rename(tmp_path / "deleted"))  # at once, whoever is just making a file there
    os.kill(job.on(two[0]).controller_pid(), signal.SIGKILL)
    job.wait_for_steps(1, 2)
    assert "the journal ends before attempt 0" in job.said()
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()


def test_a_job_goes_on_when_the_last_records_of_its_journal_are_lost(two: Cluster, tmp_path: Path) -> None:
    job = start_all(two, write(tmp_path, TRAIN), tmp_path=tmp_path, options=list(FAST))
    job.wait_for_steps(0, 2)
    journal = job.run_dir / "journal.jsonl"
    size = journal.stat().st_size
    for term in (2, 3):  # agents have obeyed a controller that is not on record
        controller = job.on(two[0]).controller_pid()
        os.kill(controller, signal.SIGKILL)
        job.on(two[0]).controller_pid(other_than=controller)
        wait_for(lambda: len(job.events("node_returned")) >= 2 * (term - 1), job.said(), PATIENCE_S)  # noqa: B023
    command = "from robust_run.robust_cli import main; main()"
    two[0].run([sys.executable, "-c", command, "restart", str(job.run_dir)], env=job.env)
    job.wait_for_steps(1, 2)
    controller = job.on(two[0]).controller_pid()
    os.kill(controller, signal.SIGSTOP)  # or it writes another line between the loss and its death
    wait_for(lambda: "T (stopped)" in Path(f"/proc/{controller}/status").read_text(), "the controller to stand still")
    os.truncate(journal, size)
    os.kill(controller, signal.SIGKILL)
    job.wait_for_steps(2, 2)
    assert "the journal ends before attempt 1" in job.said()
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()
    job.assert_nothing_left()
