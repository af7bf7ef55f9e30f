"""What is read of the kernel's table of mounts."""

from __future__ import annotations

import os
from pathlib import Path

from robust_run.mounts import table

TABLE = (
    "1 0 0:1 / / rw - overlay overlay rw\n"
    "2 1 0:2 / /opt rw shared:9 - nfs4 server:/opt rw\n"
    "3 2 0:3 / /opt/a\\040b\\134 rw - tmpfs x rw\n"
    "4 1 8:17 / /opt rw - ext4 /dev/sdb1 rw\n"
    "no mount\n"
)


def test_a_path_is_on_the_longest_and_latest_mount(tmp_path: Path) -> None:
    (tmp_path / "table").write_text(TABLE)
    found = table.mounts(str(tmp_path / "table"))
    assert [mount.number for mount in found] == ["1", "2", "3", "4"]
    for path, kind in (
        ("/usr", "overlay"),
        ("/opt/env", "ext4"),
        ("/opt/a b\\/env", "tmpfs"),
        ("/optional", "overlay"),
    ):
        mount = table.mount_of(path, found)
        assert mount is not None and mount.kind == kind
    assert table.mount_of("/usr", []) is None
    assert (found[1].point, found[1].source, found[1].device) == ("/opt", "server:/opt", "0:2")


def test_of_this_machine_proc_is_known() -> None:
    assert table.device_number("/proc") == os.stat("/proc").st_dev
    assert table.device_number("/proc/self") is None
    assert "/proc" in table.points_below("/")
    assert "/proc" not in table.points_below("/proc")
