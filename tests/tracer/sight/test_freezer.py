"""Processes that a cgroup keeps frozen, of either version, its own or one above it: in made folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.launcher.agent.ending import what_holds
from robust_run.tracer.sight.freezer import frozen_by


def made(folder: Path, table: str, files: dict[str, str]) -> tuple[str, str]:
    """Make a /proc with process 7, and cgroups with files."""
    (folder / "proc" / "7").mkdir(parents=True)
    (folder / "proc" / "7" / "cgroup").write_text(table)
    for name, text in files.items():
        path = folder / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        (path.parent / "cgroup.procs").touch()
    return str(folder / "proc"), str(folder / "cgroup")


V2, V1 = "0::/job/rank\n", "6:freezer:/job/rank\n1:cpu,cpuacct:/\n0::/\n"
CASES: dict[str, tuple[str, dict[str, str], str]] = {
    "frozen": (V2, {"cgroup.procs": "", "job/rank/cgroup.freeze": "1\n"}, "job/rank/cgroup.freeze"),
    "thawed": (V2, {"cgroup.procs": "", "job/rank/cgroup.freeze": "0\n"}, ""),
    "the one above": (
        V2,
        {"cgroup.procs": "", "job/cgroup.freeze": "1\n", "job/rank/cgroup.freeze": "0\n"},
        "job/cgroup.freeze",
    ),
    "both": (
        V2,
        {"cgroup.procs": "", "job/cgroup.freeze": "1\n", "job/rank/cgroup.freeze": "1\n"},
        "job/cgroup.freeze",
    ),
    "beside version 1": (
        V2,
        {"unified/cgroup.procs": "", "unified/job/rank/cgroup.freeze": "1\n"},
        "unified/job/rank/cgroup.freeze",
    ),
    "version 1": (
        V1,
        {"freezer/cgroup.procs": "", "freezer/job/rank/freezer.state": "FROZEN\n"},
        "freezer/job/rank/freezer.state",
    ),
    "version 1, on its way": (
        V1,
        {"freezer/cgroup.procs": "", "freezer/job/rank/freezer.state": "FREEZING\n"},
        "freezer/job/rank/freezer.state",
    ),
    "version 1, thawed": (V1, {"freezer/cgroup.procs": "", "freezer/job/rank/freezer.state": "THAWED\n"}, ""),
    "outside of our namespace": ("0::/../job\n", {"cgroup.procs": "", "job/cgroup.freeze": "1\n"}, ""),
    "not mounted": (V2, {}, ""),
    "garbage": ("0\n::\n6:freezer\n0::\0\xff\n0::/a\0b\n", {"cgroup.procs": ""}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_file_that_froze_a_process_is_found(case: str, tmp_path: Path) -> None:
    table, files, wanted = CASES[case]
    root, mounts = made(tmp_path, table, files)
    assert frozen_by(7, root, mounts) == (f"{mounts}/{wanted}" if wanted else "")


def test_a_process_that_is_gone_is_not_frozen(tmp_path: Path) -> None:
    assert frozen_by(8, str(tmp_path), str(tmp_path)) == ""


def test_what_cannot_be_ended_because_it_is_frozen_is_said_so(tmp_path: Path) -> None:
    table, files, wanted = CASES["version 1"]
    root, mounts = made(tmp_path, table, files)
    assert what_holds(7, root, mounts) == f"its cgroup keeps it frozen, to thaw it: echo THAWED > {mounts}/{wanted}"
    assert what_holds(8, root, mounts) == "it may hold a device"
