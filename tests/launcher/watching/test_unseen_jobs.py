"""Jobs whose ranks the kernel hides, and jobs with a rank that a cgroup keeps frozen: they are left alone, and it is said why."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from jobs import Job, running, script, wait_for
from launcher.watching.test_tracing import STUCK, incident, robust
from tracer.sight.unseen import UNDUMPABLE, unprivileged

VERSIONS = {
    "2": (("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "cgroup.freeze", "1", "0"),
    "1": (("/sys/fs/cgroup/freezer",), "freezer.state", "FROZEN", "THAWED"),
}


@contextmanager
def cgroup(version: str) -> Iterator[Path]:
    """Make a cgroup that can be frozen; it is thawed, empty and gone afterwards."""
    mounts, name, _, thawed = VERSIONS[version]
    for mount in map(Path, mounts):
        folder = mount / f"test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / name).exists():
            break
        folder.rmdir()
    else:
        pytest.skip(f"no cgroup of version {version} can be made here")
    try:
        yield folder
    finally:
        (folder / name).write_text(thawed)
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                os.kill(int(pid), 9)
        wait_for(lambda: not (folder / "cgroup.procs").read_text(), "the cgroup to be empty")
        folder.rmdir()


def ends_well(job: Job, folder: Path) -> None:
    (folder / "done").touch()
    assert job.finish() == 0, job.err
    assert len(job.events("attempt_started")) == 1, "it was left alone"
    job.assert_nothing_left()


def test_that_the_kernel_hides_ranks_is_said_once_and_they_are_left_alone(tmp_path: Path) -> None:
    program = script(tmp_path, UNDUMPABLE + STUCK)
    with running(tmp_path, "--nproc-per-node", "2", "--hang-after", "1", program, prefix=unprivileged()) as job:
        job.wait_for_file("stuck", tmp_path)
        found = incident(job)
        assert (found["verdict"]["kind"], found["verdict"]["ranks"], found["action"]["name"]) == ("hang", [1], "report")
        (tmp_path / "go on").touch()
        ends_well(job, tmp_path)
    (said,) = [line for line in job.err.splitlines() if "does not let robust-run see" in line]
    assert re.search(r"what (rank 1 waits|ranks 0 and 1 wait) for \(the program is undumpable", said), "both are"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frozen_rank_is_named_with_its_cgroup_and_left_alone(version: str, tmp_path: Path) -> None:
    (tmp_path / "go on").touch()
    _, name, frozen, thawed = VERSIONS[version]
    program = script(tmp_path, STUCK)
    options = ("--nproc-per-node", "2", "--hang-after", "2")
    with cgroup(version) as group, running(tmp_path, *options, program, cwd=tmp_path) as job:
        job.wait_for_file("stuck", tmp_path)
        (group / "cgroup.procs").write_text(str(job.pids()[1]))
        (group / name).write_text(frozen)
        found = incident(job)
        assert (found["verdict"]["kind"], found["verdict"]["ranks"]) == ("stopped", [1])
        assert f"rank 1 is frozen by the cgroup {group}; 1 rank has been waiting for" in found["verdict"]["sentence"]
        assert found["action"]["name"] == "report"
        assert f"to thaw it, type there: echo {thawed} > {group / name}" in robust(job, "why")
        (group / name).write_text(thawed)
        ends_well(job, tmp_path)
