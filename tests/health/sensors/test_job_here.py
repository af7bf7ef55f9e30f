"""What is found to be the job's on a node: its processes, cgroup, GPUs, what its folders lie on, what it has mounted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from sensor_ground import Tree

from robust_run.health.sensors import cgroups
from robust_run.health.sensors.job import job_mounts
from robust_run.health.sensors.job.block_devices import below, kind_of
from robust_run.health.sensors.job.job_here import LOOK_S, JobHere
from robust_run.health.sensors.job.lineage import REMEMBERED_S, ProcessFamily
from robust_run.health.sensors.job.own_gpus import of_node, used
from robust_run.health.sensors.mounts import InUse
from robust_run.health.sensors.types import SensorWorld
from robust_run.health.signs.visible_gpus import Gpu

AGENT, RANK, LOADER, SHELL, STRANGER = 7, 8, 9, 3, 50


def link(tree: Tree, name: str, target: str) -> None:
    path = tree.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def stat(tree: Tree, pid: int, parent: int) -> None:
    tree.put(f"proc/{pid}/stat", f"{pid} (a (b) c) S {parent} {pid} {pid} 0 -1 0\n")


@pytest.fixture
def job(tree: Tree) -> Tree:
    """A shell (3) started the agent (7), that a rank (8), that a loader (9); 50 is somebody else's. All pids are the kernel's."""
    for pid, parent in ((1, 0), (2, 0), (SHELL, 1), (AGENT, SHELL), (RANK, AGENT), (LOADER, RANK), (STRANGER, 1)):
        stat(tree, pid, parent)
    for pid, children in ((AGENT, "8 "), (RANK, "9 "), (LOADER, "")):
        tree.put(f"proc/{pid}/task/{pid}/children", children)
    link(tree, f"proc/{AGENT}/ns/pid", "pid:[4026531836]")
    return tree


# --- processes


def test_a_process_is_the_job_s_if_it_descends_from_its_agent(job: Tree, world: SensorWorld) -> None:
    family = ProcessFamily(world)
    assert [family.has(pid) for pid in (AGENT, RANK, LOADER)] == [True, True, True]
    assert [family.has(pid) for pid in (1, 2, SHELL, STRANGER)] == [False, False, False, False]


def test_one_that_is_gone_is_known_if_it_was_there_a_while_ago(job: Tree, world: SensorWorld) -> None:
    family = ProcessFamily(world)
    family.look(0.0)
    job.remove(f"proc/{LOADER}")
    job.put(f"proc/{RANK}/task/{RANK}/children", "")
    assert family.has(LOADER) is True
    assert family.has(STRANGER + 1) is None, "nobody knows whose that was"
    family.look(REMEMBERED_S + 1.0)
    assert family.has(LOADER) is None, "its number may be another's by now"


def test_a_number_that_another_process_has_by_now_is_that_one_s(job: Tree, world: SensorWorld) -> None:
    family = ProcessFamily(world)
    family.look(0.0)
    stat(job, LOADER, 1)
    assert family.has(LOADER) is False


def test_in_a_container_numbers_in_the_kernel_s_log_are_others(job: Tree, world: SensorWorld) -> None:
    (job.path / f"proc/{AGENT}/ns/pid").unlink()
    link(job, f"proc/{AGENT}/ns/pid", "pid:[4026532999]")
    family = ProcessFamily(world)
    family.look(0.0)
    assert [family.has(pid) for pid in (AGENT, RANK, STRANGER)] == [None, None, None]


def test_where_that_cannot_be_told_they_may_be(tree: Tree, world: SensorWorld) -> None:
    stat(tree, AGENT, 1)
    assert ProcessFamily(world).has(AGENT) is None


# --- cgroups


def in_cgroup(job: Tree, *pids: int, path: str = "/job") -> str:
    job.put(f"proc/{AGENT}/cgroup", f"4:memory:{path}\n")
    folder = f"cgroup/memory{path}"
    job.put(f"{folder}/cgroup.procs", "".join(f"{pid}\n" for pid in pids))
    return str(job.path / folder)


def test_a_cgroup_with_the_job_and_who_started_it_is_its_own(job: Tree, world: SensorWorld) -> None:
    in_cgroup(job, SHELL, AGENT, RANK)
    job.put("cgroup/memory/job/step/cgroup.procs", f"{LOADER}\n")
    here = JobHere(world)
    assert here.has_cgroup("/job") is True
    assert here.has_cgroup("/job/step") is True
    assert here.has_cgroup("/jobs") is False


@pytest.mark.parametrize("pid", [STRANGER, 0], ids=["a process of another job", "one of another namespace"])
def test_what_is_counted_in_a_cgroup_that_others_are_in_may_be_theirs(job: Tree, world: SensorWorld, pid: int) -> None:
    folder = in_cgroup(job, AGENT, RANK)
    sharing = cgroups.Sharing()
    assert not sharing.look(world, folder)
    in_cgroup(job, AGENT, RANK, pid)
    assert sharing.look(world, folder)
    in_cgroup(job, AGENT, RANK)
    assert sharing.look(world, folder), "it may be the very one that was killed"
    in_cgroup(job, AGENT, pid)
    assert JobHere(world).has_cgroup("/job") is None


def test_the_cgroup_of_all_processes_is_nobody_s(job: Tree, world: SensorWorld) -> None:
    in_cgroup(job, AGENT, path="/")
    assert JobHere(world).has_cgroup("/") is None
    assert JobHere(world).has_cgroup("/job") is None


# --- GPUs

NODE = [Gpu(f"0000:{bus}:00.0", f"GPU-{bus}") for bus in ("1b", "3b", "86", "af")]
ALL = frozenset(f"GPU 0000:{bus}:00" for bus in ("1b", "3b", "86", "af"))


@pytest.mark.parametrize(
    ("chosen", "own"),
    [
        (None, ALL),
        ("0,1,2,3", ALL),
        ("1", {"GPU 0000:3b:00"}),
        ("GPU-86, GPU-1b", {"GPU 0000:86:00", "GPU 0000:1b:00"}),
        ("", set()),
        ("-1", set()),
        ("0,9,1", {"GPU 0000:1b:00"}),
        ("MIG-GPU-3b/1/0", {"GPU 0000:3b:00"}),
        ("MIG-GPU-3b/1/0,MIG-GPU-3b/2/0", {"GPU 0000:3b:00"}),
        ("MIG-63feeb45-94c6", None),
        ("1,1", {"GPU 0000:3b:00"}),
    ],
)
def test_the_job_s_gpus_are_those_that_it_is_shown(chosen: str | None, own: set[str] | None) -> None:
    assert used(NODE, chosen) == own


def test_without_uuids_a_uuid_says_nothing() -> None:
    assert used([Gpu("0000:1b:00.0"), Gpu("0000:3b:00.0")], "GPU-3b") is None


def test_an_instance_of_the_only_gpu_is_of_that() -> None:
    assert used(NODE[:1], "MIG-63feeb45-94c6") == {"GPU 0000:1b:00"}


def driver(tree: Tree, openable: tuple[int, ...] = (0, 1)) -> None:
    for minor, bus in enumerate(("1b", "3b")):
        text = f"Model: \t H100\nGPU UUID: \t GPU-{bus}\nDevice Minor: \t {minor}\n"
        tree.put(f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information", text)
    for minor in openable:
        tree.put(f"dev/nvidia{minor}", "")


def on(world: SensorWorld, tree: Tree, **more: object) -> SensorWorld:
    return dataclasses.replace(world, dev=f"{tree}/dev", **more)  # type: ignore[arg-type]


def test_gpus_that_a_container_or_scheduler_does_not_let_be_opened_are_others(tree: Tree, world: SensorWorld) -> None:
    driver(tree, openable=(1,))
    here = JobHere(on(world, tree, visible_gpus="0"))
    assert [gpu.uuid for gpu in of_node(on(world, tree))] == ["GPU-3b"]
    assert (here.has_gpu("GPU 0000:3b:00"), here.has_gpu("GPU 0000:1b:00"), here.has_gpu("")) == (True, False, True)


def test_a_gpu_that_is_gone_from_the_driver_s_list_stays_the_job_s(tree: Tree, world: SensorWorld) -> None:
    driver(tree)
    here = JobHere(on(world, tree))
    tree.remove("proc/driver/nvidia/gpus/0000:3b:00.0")
    assert here.has_gpu("GPU 0000:3b:00") is True


def test_which_gpu_it_is_must_be_known_where_the_job_has_some_of_them(tree: Tree, world: SensorWorld) -> None:
    driver(tree)
    assert JobHere(on(world, tree, visible_gpus="0")).has_gpu("") is None
    assert JobHere(on(world, tree)).has_gpu("") is True


def test_a_driver_that_lists_nothing_leaves_all_to_a_job_that_was_not_told_otherwise(
    tree: Tree, world: SensorWorld
) -> None:
    assert JobHere(world).has_gpu("GPU 0000:3b:00") is True
    assert JobHere(on(world, tree, visible_gpus="0")).has_gpu("GPU 0000:3b:00") is None


# --- disks and mounts


def test_devices_are_told_apart_by_their_names() -> None:
    assert [kind_of(name) for name in ("loop12", "loop0p1", "dm-3", "nbd1p2", "sr0", "fd0", "zram0", "zd0")] == [
        "file", "file", "stacked", "served", "passing", "passing", "passing", "stacked",
    ]  # fmt: skip
    assert {kind_of(name) for name in ("sda", "nvme0n1", "md0", "mmcblk0", "vda1", "fdx", "bcache0", "")} == {"disk"}


def block(tree: Tree, name: str, number: str, *, slaves: tuple[str, ...] = (), of: str = "") -> None:
    """A device of /sys; `of`: the disk that it is a partition of."""
    folder = f"sys/devices/{of + '/' if of else ''}{name}"
    tree.put(f"{folder}/dev", number)
    if of:
        tree.put(f"{folder}/partition", 1)
    (tree.path / folder / "slaves").mkdir()
    for slave in slaves:
        tree.put(f"{folder}/slaves/{slave}/x", "")
    link(tree, f"sys/class/block/{name}", f"{tree}/{folder}")
    link(tree, f"sys/dev/block/{number}", f"{tree}/{folder}")


@pytest.fixture
def disks(job: Tree) -> Tree:
    """`/` is on dm-0 over dm-1 over a partition of nvme0n1; dm-9, over sdb, is another's; /data is on loop5."""
    block(job, "nvme0n1", "259:0")
    block(job, "nvme0n1p2", "259:2", of="nvme0n1")
    block(job, "dm-1", "253:1", slaves=("nvme0n1p2",))
    block(job, "dm-0", "253:0", slaves=("dm-1",))
    block(job, "sdb", "8:16")
    block(job, "dm-9", "253:9", slaves=("sdb",))
    block(job, "loop5", "7:5")
    block(job, "loop3", "7:3")
    job.put(f"proc/{AGENT}/mountinfo", MOUNTS)
    link(job, f"proc/{AGENT}/ns/mnt", "mnt:[1]")
    link(job, f"proc/{RANK}/ns/mnt", "mnt:[2]")
    job.put(f"proc/{RANK}/mountinfo", MOUNTS + "9 1 7:3 / /image ro - squashfs /dev/loop3 ro\n")
    return job


MOUNTS = """1 0 253:0 / / rw - ext4 /dev/mapper/vg-root rw
2 1 253:9 / /other rw - xfs /dev/mapper/other rw
3 1 0:40 / /home rw - nfs4 filer7:/home rw
4 1 0:41 / /their rw - nfs4 filer8:/their rw
5 1 7:5 / /data rw - ext4 /dev/loop5 rw
6 1 7:1 / /snap/core ro - squashfs /dev/loop1 ro
"""


def test_what_the_root_lies_on_is_found_through_partitions_and_layers(disks: Tree, world: SensorWorld) -> None:
    assert below(["dm-0"], world) == {"dm-0", "dm-1", "nvme0n1p2", "nvme0n1"}
    assert all(job_mounts.stands_on(world, device) for device in ("dm-0", "dm-1", "nvme0n1p2", "nvme0n1"))
    assert {job_mounts.stands_on(world, device) for device in ("dm-9", "sdb", "loop5", "../x")} == {False}


def test_in_a_container_it_is_not_known_what_its_layers_lie_on(disks: Tree, world: SensorWorld) -> None:
    text = "1 0 0:50 / / rw - overlay overlay rw,upperdir=/var/x\n2 1 253:0 / /data rw - ext4 /dev/mapper/data rw\n"
    disks.put(f"proc/{AGENT}/mountinfo", text)
    assert job_mounts.stands_on(world, "dm-9") is None
    assert job_mounts.stands_on(dataclasses.replace(world, folders=("/data",)), "dm-0") is True


def test_a_folder_that_the_job_writes_to_and_the_one_it_was_started_in_count_too(
    disks: Tree, world: SensorWorld
) -> None:
    writes = dataclasses.replace(world, folders=("/data/ckpt",))
    assert job_mounts.stands_on(writes, "loop5")
    link(disks, f"proc/{AGENT}/cwd", "/other/project")
    assert job_mounts.stands_on(world, "dm-9")


def test_an_image_is_what_is_mounted_for_the_job_s_processes_alone(disks: Tree, world: SensorWorld) -> None:
    assert job_mounts.is_image(world, "loop3")
    assert not job_mounts.is_image(world, "loop1"), "everybody sees that"
    assert not job_mounts.is_image(world, "loop6"), "that is nobody's here"


def test_a_server_is_the_job_s_if_something_of_it_is_mounted_where_it_runs(disks: Tree, world: SensorWorld) -> None:
    here = JobHere(world)
    assert here.mounts_from("filer7")
    assert not here.mounts_from("filer9")
    assert not here.mounts_from("filer")


def test_a_mount_is_used_that_a_process_of_the_job_is_in_or_has_something_open_of(
    disks: Tree, world: SensorWorld
) -> None:
    wheres = ["/home", "/their", "/data"]
    assert job_mounts.used_among(world, wheres) == set()
    link(disks, f"proc/{LOADER}/fd/5", "/data/shard-7.tar")
    link(disks, f"proc/{STRANGER}/fd/5", "/their/shard-7.tar")
    link(disks, f"proc/{RANK}/cwd", "/homeless")
    assert job_mounts.used_among(world, wheres) == {"/data"}
    assert job_mounts.used_among(dataclasses.replace(world, python=("/home/ann/venv",)), wheres) == {"/data", "/home"}


def test_a_mount_that_was_used_once_is_watched_from_then_on(disks: Tree, world: SensorWorld) -> None:
    now_s = 0.0
    use = InUse(["/home", "/their"], 10.0, lambda: now_s)
    assert not use.has("/home", world)
    link(disks, f"proc/{RANK}/fd/5", "/home/ann/data")
    assert not use.has("/home", world), "it is not looked at again at once"
    now_s = 10.0
    assert use.has("/home", world)
    (disks.path / f"proc/{RANK}/fd/5").unlink()
    now_s = 20.0
    assert use.has("/home", world)
    assert not use.has("/their", world)


def test_on_a_machine_that_shows_nothing_nothing_is_the_job_s(world: SensorWorld, tmp_path: Path) -> None:
    here = JobHere(world)
    here.look(LOOK_S)
    assert here.has_process(AGENT) is None
    assert here.has_cgroup("/job") is None
    assert not here.is_image("loop0")
    assert not here.stands_on("dm-0")
    assert not here.mounts_from("filer7")
