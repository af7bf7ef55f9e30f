"""Nodes whose views of the checkpoints differ start from one step all the same.

Each host has a copy of the folder: what a cache of a shared file system shows it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clusters import STEPS, ClusterJob, start_all, write
from hosts import Cluster, need_hosts
from jobs import wait_for
from saved_checkpoints import save

CALM = ("--rdzv-conf", "keep_alive_max_attempt=20")
FAST = ("--no-warm", "--restart-grace", "0.3", "--shutdown-timeout", "3", *CALM)

#: Notes what it was told and steps until it is done. A file `fail` ends rank 0's attempt.
TRAIN = f"""{STEPS}
    step_told = os.environ.get("ROBUST_RESUME_STEP", "-") + "-own" * (os.environ.get("ROBUST_RESUME_OWN") == "1")
    told = os.environ.get("ROBUST_RESUME", "nothing"), step_told
    with open(f"{{STEPS_DIR}}/told.{{ATTEMPT}}.{{RANK}}.part", "w") as file:
        file.write(" ".join(told))
    os.rename(file.name, f"{{STEPS_DIR}}/told.{{ATTEMPT}}.{{RANK}}")
    while not os.path.exists(DONE):
        step()
        pause(0.005)
        if RANK == 0 and os.path.exists(f"{{STEPS_DIR}}/fail.{{ATTEMPT}}"):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Cluster]:
    need_hosts()
    with Cluster(2, tmp_path) as cluster:
        yield cluster


def views(tmp_path: Path, *steps: Sequence[int], fresh: bool = False) -> list[Path]:
    """Return a folder for each host that shows these steps of one folder: of age, or `fresh`, so that a cache may hide them."""
    there = tmp_path / "all"
    for step in {step for each in steps for step in each}:
        created_s = time.time() + 3600 if fresh and step == max(map(max, filter(None, steps))) else 1e9 + step
        save(f"{there}/step-{step}", {"x": b"%d" % step}, step=step, created_s=created_s)
    folders = []
    for number, shown in enumerate(steps):
        folders.append(tmp_path / f"seen-by-{number}")
        folders[-1].mkdir()
        for step in shown:
            show(tmp_path, folders[-1], step)
    return folders


def show(tmp_path: Path, folder: Path, step: int) -> None:
    """Let a folder show a step, at once and whole."""
    shutil.copytree(tmp_path / "all" / f"step-{step}", folder / f".{step}")
    os.rename(folder / f".{step}", folder / f"step-{step}")


def start(cluster: Cluster, tmp_path: Path, folders: Sequence[Path | None], *options: str) -> ClusterJob:
    path = write(tmp_path, TRAIN)
    job = start_all(cluster, path, tmp_path=tmp_path, options=["--nnodes", "2", *FAST, *options], launch=[])
    for host, folder in zip(cluster, folders, strict=True):
        job.join(host, *(["--ckpt-dir", str(folder)] if folder is not None else []))
    return job


def told(job: ClusterJob, attempt: int) -> list[tuple[str, str]]:
    """What each rank was told: the path and the step."""
    paths = [job.steps_dir / f"told.{attempt}.{rank}" for rank in range(2)]
    wait_for(lambda: all(path.exists() for path in paths), f"the ranks of attempt {attempt}:\n{job.said()}")
    return [(name, step) for name, _, step in (path.read_text().rpartition(" ") for path in paths)]


def chosen(job: ClusterJob, attempt: int) -> dict[str, Any]:
    (event,) = (each for each in job.events("resume_chosen") if each["attempt"] == attempt)
    return event


def fail(job: ClusterJob, attempt: int) -> None:
    (job.steps_dir / f"fail.{attempt}").touch()


def order_of(job: ClusterJob, cluster: Cluster, folders: Sequence[Path]) -> list[Path]:
    """The folders in the order of the ranks."""
    names = [host.name for host in cluster]
    return [folders[names.index(name)] for name in job.layout(0)]


def test_both_start_at_the_newest_step_that_both_see(two: Cluster, tmp_path: Path) -> None:
    folders = views(tmp_path, (1, 2, 3), (1, 2))
    job = start(two, tmp_path, folders)
    assert told(job, 0) == [(f"{folder}/step-2", "2") for folder in order_of(job, two, folders)]
    event = chosen(job, 0)
    assert (event["step"], event["source"]) == (2, "storage")
    (over,) = event["passed_over"]
    assert (over["step"], over["why"]) == (3, "node-1 does not see it")
    job.wait_for_steps(0, 2)
    assert set(job.finish().values()) == {0}
    assert "step 3 is passed over: node-1 does not see it; attempt 0 starts at step 2" in job.said()
    job.assert_nothing_left()


def test_a_view_that_is_late_is_waited_for(two: Cluster, tmp_path: Path) -> None:
    folders = views(tmp_path, (1, 2, 3), (1, 2), fresh=True)
    job = start(two, tmp_path, folders)
    wait_for(lambda: job.actions("look_for_checkpoints"), f"the question:\n{job.said()}")
    wait_for(lambda: job.events("store_opened"), f"the store:\n{job.said()}")
    show(tmp_path, folders[1], 3)
    assert told(job, 0) == [(f"{folder}/step-3", "3") for folder in order_of(job, two, folders)]
    assert chosen(job, 0)["passed_over"] == []
    assert set(job.finish().values()) == {0}


def test_after_a_failure_it_is_chosen_anew_for_both(two: Cluster, tmp_path: Path) -> None:
    folders = views(tmp_path, (1, 2), (1, 2))
    job = start(two, tmp_path, folders)
    job.wait_for_steps(0, 2)
    assert {step for _, step in told(job, 0)} == {"2"}
    save(f"{tmp_path}/all/step-5", {"x": b"5"}, step=5, created_s=1e9 + 5)
    save(f"{tmp_path}/all/step-6", {"x": b"6"}, step=6, created_s=1e9 + 6)
    for folder, steps in zip(folders, ((5, 6), (5,)), strict=True):
        for step in steps:
            show(tmp_path, folder, step)
    fail(job, 0)
    job.wait_for_steps(1, 2)
    assert {step for _, step in told(job, 1)} == {"5"}
    incident = wait_for(lambda: [each for each in job.incidents() if each["resume"]], "the resume point")[0]
    assert (incident["resume"]["step"], incident["resume"]["attempt"]) == (5, 1)
    assert [over["step"] for over in incident["resume"]["passed_over"]] == [6]
    assert set(job.finish().values()) == {0}
    job.assert_never_two_at_once()


def test_a_node_that_was_given_no_folder_is_told_the_same_path(two: Cluster, tmp_path: Path) -> None:
    (folder,) = views(tmp_path, (1, 2))
    job = start(two, tmp_path, [folder, None])
    assert told(job, 0) == [(f"{folder}/step-2", "2")] * 2
    assert set(job.finish().values()) == {0}


def test_a_node_with_an_empty_folder_of_its_own_is_told_the_same_step(two: Cluster, tmp_path: Path) -> None:
    folders = views(tmp_path, (1, 2), ())
    job = start(two, tmp_path, folders)
    assert told(job, 0) == [(f"{folder}/step-2", "2") for folder in order_of(job, two, folders)]
    assert "attempt 0 starts at step 2, although node-1 does not see it" in job.said()
    assert set(job.finish().values()) == {0}


def own_folders(tmp_path: Path, *steps: Sequence[int]) -> list[Path]:
    """Return a folder for each host, in which it has saved these steps by itself."""
    folders = [tmp_path / f"of-{number}" for number in range(len(steps))]
    for folder, saved in zip(folders, steps, strict=True):
        for step in saved:
            save(f"{folder}/step-{step}", {"x": b"%d" % step}, step=step, created_s=1e9 + step)
    return folders


def test_nodes_that_save_their_own_start_from_their_own_of_one_step(two: Cluster, tmp_path: Path) -> None:
    folders = own_folders(tmp_path, (10, 20, 30), (10, 20))
    job = start(two, tmp_path, folders)
    assert told(job, 0) == [(f"{folder}/step-20", "20-own") for folder in order_of(job, two, folders)]
    line = "step 30 is passed over: node-1 has none of it; attempt 0 starts at step 20, each node from a checkpoint of its own"
    assert line in job.said()
    assert set(job.finish().values()) == {0}


def test_nodes_with_nothing_in_common_do_not_start(two: Cluster, tmp_path: Path) -> None:
    folders = own_folders(tmp_path, (30,), (10,))
    job = start(two, tmp_path, folders, "--max-restarts", "1")
    wait_for(lambda: job.events("no_resume_point"), f"the reason:\n{job.said()}")
    assert "node-0 has step 30; node-1 has step 10" in job.events("no_resume_point")[0]["reason"]
    assert set(job.finish().values()) == {1}
    assert not list(job.steps_dir.glob("told.*")), "no rank was told a path that does not exist"


def test_a_restarted_controller_goes_on_with_the_choice(two: Cluster, tmp_path: Path) -> None:
    folders = views(tmp_path, (1, 2, 3), (1, 2))
    job = start(two, tmp_path, folders)
    job.wait_for_steps(0, 2)
    launcher = next(each for each in job.launchers if each.controller_pids())
    os.kill(launcher.controller_pid(), 9)
    job.wait_for_event("controller_resumed")
    show(tmp_path, folders[1], 3)
    job.wait_for_more_steps(0, 2)
    fail(job, 0)
    assert {step for _, step in told(job, 1)} == {"3"}, f"by now both see it:\n{job.said()}"
    assert [each["attempt"] for each in job.events("resume_chosen")] == [0, 1]
    assert set(job.finish().values()) == {0}
