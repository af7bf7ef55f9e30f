"""Disks and file systems that fail, as trees show them and as a real kernel does."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_ground import LIMIT_S, Tree

from robust_run.health.rules.table import DEFAULTS
from robust_run.health.sensors import fsync
from robust_run.health.sensors.disk import Disk, DiskSample, DiskState, Space, judge, parse_disks, read
from robust_run.health.sensors.fsync import FsyncSample, FsyncState
from robust_run.health.sensors.job import mountinfo
from robust_run.health.sensors.settings import DiskSettings, FsyncSettings
from robust_run.health.sensors.types import AbsentError, Event, SensorWorld

SETTINGS = DiskSettings()
ROOMY = Space(free_bytes=10**12, total_bytes=2 * 10**12)


def sample(
    spaces: Mapping[str, Space] | None = None,
    read_only: Mapping[str, bool] | None = None,
    errors: Mapping[str, int] | None = None,
    disks: Mapping[str, Disk] | None = None,
    remote: frozenset[str] = frozenset(),
) -> DiskSample:
    return DiskSample(
        spaces=spaces or {}, read_only=read_only or {}, errors=errors or {}, disks=disks or {}, remote=remote
    )


def said(*samples: tuple[float, DiskSample]) -> list[Event]:
    state, events = DiskState(), []
    for now_s, each in samples:
        state, new = judge(SETTINGS, state, each, now_s)
        events += new
    return events


def test_a_full_file_system_is_said_with_what_is_left() -> None:
    full = sample(spaces={"/data": Space(free_bytes=5_000_000, total_bytes=10**12)})
    events = said((0, sample(spaces={"/data": ROOMY})), (5, full))
    assert [(event.name, event.subject) for event in events] == [("disk.full", "/data")]
    assert "5.0 MB of 1000.00 GB are free" in events[0].detail


def test_a_large_file_system_is_not_full_while_gigabytes_are_left() -> None:
    assert said((0, sample(spaces={"/data": Space(free_bytes=10**10, total_bytes=10**15)}))) == []


def test_a_file_system_without_inodes_is_full() -> None:
    none = Space(free_bytes=10**12, total_bytes=2 * 10**12, free_files=0, total_files=10**6)
    assert "inodes" in said((0, sample(spaces={"/data": none})))[0].detail


def test_what_turns_read_only_is_a_fault_and_what_always_was_is_not() -> None:
    good, bad = sample(read_only={"/data": False, "/usr": True}), sample(read_only={"/data": True, "/usr": True})
    events = said((0, good), (5, bad), (10, bad))
    assert [(event.name, event.subject, event.at_s) for event in events] == [("disk.read_only", "/data", 5)]


def test_a_file_system_that_others_serve_and_that_turns_read_only_is_no_disk_of_the_node_s() -> None:
    good, bad = (sample(read_only={"/nfs": turned}, remote=frozenset(("/nfs",))) for turned in (False, True))
    events = said((0, good), (5, bad))
    assert [(event.name, event.subject) for event in events] == [("mount.read_only", "/nfs")]
    assert DEFAULTS["mount.read_only"].rung == "report"


def test_what_is_writable_again_is_said() -> None:
    good, bad = sample(read_only={"/data": False}), sample(read_only={"/data": True})
    assert [event.kind for event in said((0, good), (5, bad), (10, good))] == ["alert", "clear"]


def test_new_errors_are_said_and_old_ones_are_not() -> None:
    events = said((0, sample(errors={"sda": 7})), (5, sample(errors={"sda": 7})), (10, sample(errors={"sda": 9})))
    assert [(event.name, event.subject, event.at_s) for event in events] == [("disk.error", "sda", 10)]
    assert "2 new errors" in events[0].detail


def test_requests_that_never_end_are_said_and_slow_ones_are_not() -> None:
    stuck = [(5.0 * turn, sample(disks={"sda": Disk(done=100, in_flight=3)})) for turn in range(8)]
    slow = [(5.0 * turn, sample(disks={"sda": Disk(done=100 + turn, in_flight=3)})) for turn in range(8)]
    idle = [(5.0 * turn, sample(disks={"sda": Disk(done=100, in_flight=0)})) for turn in range(8)]
    assert [(event.name, event.at_s) for event in said(*stuck)] == [("disk.stuck", 25.0)]
    assert said(*slow) == said(*idle) == []


def test_all_is_read_from_a_tree(tree: Tree, world: SensorWorld, tmp_path: Path) -> None:
    tree.write(
        proc__7__mountinfo=f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / {tmp_path}/d rw - xfs /dev/sdb ro,noatime\n",
        proc__diskstats="8 0 sda 10 0 0 0 20 0 0 0 2 0 0\n7 0 loop0 1 0 0 0 1 0 0 0 0 0 0\n",
        sys__block__sda__device__ioerr_cnt="0x1f\n",
        sys__fs__ext4__sda1__errors_count="3\n",
    )
    found = read(SensorWorld(proc=world.proc, sys=world.sys, pid=7, folders=(str(tmp_path), f"{tmp_path}/d/deep")))
    assert found.remote == set()
    assert found.read_only == {str(tmp_path): False, f"{tmp_path}/d/deep": True, "/": False}
    assert list(found.spaces) == [str(tmp_path)]
    assert found.errors == {"sda": 31, "ext4 on sda1": 3}
    assert found.disks == {"sda": Disk(done=30, in_flight=2)}


def test_a_folder_that_is_made_later_hides_no_disk_and_is_watched_where_it_will_be(
    tree: Tree, world: SensorWorld, tmp_path: Path
) -> None:
    """`--ckpt-dir` is often made by the first checkpoint."""
    tree.put("proc/7/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    run, later = str(tmp_path), f"{tmp_path}/ckpt/of/this"
    found = read(SensorWorld(proc=world.proc, sys=world.sys, pid=7, folders=(run, later)))
    assert found.spaces[later].total_bytes == found.spaces[run].total_bytes > 0
    try:
        assert fsync.read(later).took_s > 0
    except AbsentError as error:  # a file system without files that have no name
        assert "No such file" not in str(error)


def test_a_folder_that_another_machine_serves_is_known_as_that(tree: Tree, world: SensorWorld) -> None:
    tree.put("proc/7/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:40 / /nfs ro - nfs4 filer:/vol ro\n")
    found = read(SensorWorld(proc=world.proc, sys=world.sys, pid=7, folders=("/nfs/ckpt",)))
    assert (found.remote, found.read_only) == ({"/nfs/ckpt"}, {"/nfs/ckpt": True, "/": False})


def test_errors_of_images_and_of_other_jobs_volumes_are_no_errors_of_the_node_s_disks(
    tree: Tree, world: SensorWorld
) -> None:
    for device, number in (("dm-0", "253:0"), ("dm-9", "253:9"), ("loop3", "7:3"), ("nbd1", "43:1"), ("sda", "8:0")):
        tree.put(f"sys/block/{device}/device/ioerr_cnt", "0x1\n")
        tree.put(f"sys/fs/ext4/{device}/errors_count", "3\n")
        tree.put(f"sys/devices/{device}/dev", number)
        (tree.path / "sys/dev/block").mkdir(parents=True, exist_ok=True)
        (tree.path / f"sys/dev/block/{number}").symlink_to(tree.path / f"sys/devices/{device}")
    disks = "".join(f"7 0 {name} 10 0 0 0 20 0 0 0 2 0 0\n" for name in ("loop3", "nbd1", "dm-9", "zram0", "sda"))
    tree.put("proc/diskstats", disks)
    tree.put("proc/7/mountinfo", "1 0 253:0 / / rw - ext4 /dev/mapper/root rw\n2 1 7:3 / /i ro - ext4 /dev/loop3 ro\n")
    found = read(world)
    assert found.errors == {"sda": 1, "ext4 on sda": 3, "ext4 on dm-0": 3}
    assert list(found.disks) == ["sda"]


@given(st.text())
def test_any_text_is_a_table_of_disks_or_mounts(text: str) -> None:
    parse_disks(text)
    mountinfo.mount_of("/x/y", mountinfo.parse(text))


def test_a_path_lies_on_the_mount_with_the_longest_name_and_the_last_of_equals() -> None:
    text = "1 0 8:1 / / rw - ext4 a rw\n2 1 0:5 / /mnt\\040x rw - nfs4 b rw\n3 1 0:6 / /mnt\\040x rw - tmpfs c rw\n"
    mounts = mountinfo.parse(text)
    found = mountinfo.mount_of("/mnt x/deep", mounts)
    assert found is not None
    assert (found.where, found.kind, mounts[1].is_remote) == ("/mnt x", "tmpfs", True)
    assert mountinfo.mount_of("/mnt xy", mounts) == mounts[0]


IN_A_MOUNT = """if True:
    import json, subprocess, time
    from robust_run.health.sensors import disk
    from robust_run.health.sensors.settings import DiskSettings
    from robust_run.health.sensors.types import SensorWorld
    run = lambda *line: subprocess.run(line, check=True)
    run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/mnt")
    world = SensorWorld(folders=("/mnt",))
    settings = DiskSettings()
    state, before = disk.judge(settings, disk.DiskState(), disk.read(world), 0.0)
    ACT
    state, events = disk.judge(settings, state, disk.read(world), 5.0)
    print(json.dumps([[event.name, event.subject] for event in before + events]))
    """
FILL = """
    try:
        open("/mnt/big", "wb").write(bytes(9 << 20))
    except OSError:
        pass
    """


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (FILL, [["disk.full", "/mnt"]]),
        ('run("mount", "-o", "remount,ro", "/mnt")', [["disk.read_only", "/mnt"]]),
    ],
    ids=["filled", "remounted read-only"],
)
def test_a_real_file_system_that_fails_is_noticed(
    act: str, expected: list[list[str]], private: Callable[..., subprocess.Popen[str]]
) -> None:
    output, errors = private("--mount", IN_A_MOUNT.replace("ACT", act)).communicate(timeout=LIMIT_S)
    assert json.loads(output or "null") == expected, errors


def test_a_durable_write_is_timed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    try:
        found = fsync.read(str(tmp_path))
    except AbsentError as error:
        pytest.skip(str(error))
    assert found.error == 0
    assert os.listdir(tmp_path) == []


def test_a_folder_where_it_cannot_be_timed_is_absent() -> None:
    with pytest.raises(AbsentError):
        fsync.read("/proc")


def written(*took_s: float, error: int = 0) -> list[Event]:
    state, events = FsyncState(), []
    for turn, seconds in enumerate(took_s):
        state, new = fsync.judge(FsyncSettings(), "/data", state, FsyncSample(took_s=seconds, error=error), 30.0 * turn)
        events += new
    return events


def test_one_slow_write_is_a_checkpoint_and_two_in_a_row_are_said() -> None:
    assert written(0.1, 5.0, 0.1) == []
    assert [(event.name, event.kind) for event in written(5.0, 5.0, 0.1)] == [
        ("disk.slow_fsync", "alert"),
        ("disk.slow_fsync", "clear"),
    ]


def test_a_write_that_fails_says_why_unless_the_disk_sensor_does() -> None:
    assert [event.name for event in written(0.0, error=errno.EIO)] == ["disk.error"]
    assert [event.name for event in written(0.0, error=errno.ESTALE)] == ["mount.stale"]
    assert written(0.0, error=errno.ENOSPC) == []
