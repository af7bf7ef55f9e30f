"""CPU limits of cgroups and pressure, in made folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from robust_run.tracer.sight.cpu_limits import CpuLimits

V2, V1 = "0::/job/rank\n", "2:cpu,cpuacct:/job\n0::/\n"


@pytest.mark.parametrize(
    ("table", "file", "text"),
    [
        (V2, "job/rank/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec {}000000\n"),
        (V2, "job/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec {}000000\n"),
        (V2, "unified/job/cpu.stat", "throttled_usec {}000000\n"),
        (V1, "cpu,cpuacct/job/cpu.stat", "nr_periods 8\nnr_throttled 3\nthrottled_time {}000000000\n"),
        (V1, "cpu/job/cpu.stat", "throttled_time {}000000000\n"),
    ],
)
def test_the_share_of_time_is_that_since_the_look_before(table: str, file: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(table)
    path = tmp_path / "cgroup" / file
    path.parent.mkdir(parents=True)
    mount = tmp_path / "cgroup" / (file.split("/")[0] if file.startswith(("cpu", "unified")) else "")
    (mount / "cgroup.procs").touch()
    path.write_text(text.format(100))
    limits = CpuLimits(str(tmp_path / "proc"), str(tmp_path / "cgroup"))
    assert limits.share([7, 8], 10.0) == 0.0, "how much of it is new is not known"
    path.write_text(text.format(104))
    assert limits.share([7, 8], 20.0) == 0.4
    path.write_text(text.format(199))
    assert limits.share([7], 30.0) == 1.0, "that of several CPUs is added up by the kernel"
    path.write_text("throttled_usec nonsense\n")
    assert limits.share([7], 40.0) == 0.0
    assert limits.share([], 50.0) == 0.0


def test_pressure_is_that_of_the_last_ten_seconds(tmp_path: Path) -> None:
    limits = CpuLimits(str(tmp_path))
    assert limits.pressure_percent() == 0.0
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(
        "some avg10=83.07 avg60=1.00 avg300=0.10 total=5\nfull avg10=0.00 avg60=0.00\n"
    )
    assert limits.pressure_percent() == 83.07
