"""Whose it is what the kernel's log tells of: a node is judged by its own disks and its own job."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from robust_run.health.sensors.kernel_log import Batch, KernelRecord, judge
from robust_run.health.sensors.settings import KernelLogSettings
from robust_run.health.signs.kernel_lines import killed_in, meaning_of
from robust_run.health.signs.ownership import Owner, owner_of

OURS, THEIRS, GONE = 4711, 4811, 999
OWN_GPU, OTHER_GPU = "0000:3b:00", "0000:86:00"


@dataclass
class Known:
    """A job of process 4711 in cgroup /job with GPU 3b, its folders on dm-0, its image on loop3, and filer7 mounted."""

    processes: dict[int, bool] = field(default_factory=lambda: {OURS: True, THEIRS: False})
    cgroups: dict[str, bool | None] = field(default_factory=lambda: {"/job": True, "/shared": None})
    gpus: tuple[str, ...] | None = (f"GPU {OWN_GPU}",)
    in_layers: bool = False

    def has_process(self, pid: int) -> bool | None:
        return self.processes.get(pid)

    def has_cgroup(self, path: str) -> bool | None:
        return self.cgroups.get(path, False)

    def has_gpu(self, name: str) -> bool | None:
        return None if self.gpus is None or not name else name in self.gpus

    def is_image(self, device: str) -> bool:
        return device == "loop3"

    def stands_on(self, device: str) -> bool | None:
        return None if self.in_layers else device in ("dm-0", "sda", "nbd0")

    def mounts_from(self, server: str) -> bool:
        return server == "filer7"


OWN_DISKS = ["sda", "sda1", "nvme0n1", "nvme0n1p2", "mmcblk0", "md127", "vda", "xvdb", "hda", "dasda", "pmem0", "sdq"]
FORMS = [
    "blk_update_request: I/O error, dev {}, sector 123 op 0x0:(READ)",
    "I/O error, dev {}, sector 8 op 0x0:(READ) flags 0x800 phys_seg 1 prio class 2",
    "critical medium error, dev {}, sector 9 op 0x0:(READ) flags 0x0",
    "Buffer I/O error on dev {}, logical block 12, async page read",
    "EXT4-fs error (device {}): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0",
    "EXT4-fs ({}): Remounting filesystem read-only",
    "XFS ({}): metadata I/O error in \"xfs_read_agf\" at daddr 0x1 len 1 error 5",
    "XFS ({}): Corruption of in-memory data (0x8) detected at xfs_x.  Shutting down filesystem.",
    "BTRFS error (device {}): bdev errs; forced readonly",
]  # fmt: skip


def owner(line: str, here: Known | None = None, cgroup: str = "") -> Owner:
    meaning = meaning_of(line)
    assert meaning is not None, line
    return owner_of(meaning._replace(cgroup=cgroup), here or Known())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("device", OWN_DISKS)
def test_an_error_of_a_disk_is_the_node_s(device: str, form: str) -> None:
    assert owner(form.format(device)) == "job"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("device", "whose"),
    [
        ("loop3", "image"),
        ("loop7", "other"),
        ("loop7p1", "other"),
        ("ram0", "other"),
        ("zram0", "other"),
        ("sr0", "other"),
        ("fd0", "other"),
        ("nbd4", "other"),
        ("nbd0", "job"),
        ("rbd1", "other"),
        ("drbd1", "other"),
        ("dm-0", "job"),
        ("dm-9", "other"),
        ("zd16", "other"),
    ],
)
def test_an_error_of_what_is_no_disk_is_the_node_s_only_where_the_job_stands_on_it(
    device: str, form: str, whose: Owner
) -> None:
    assert owner(form.format(device)) == whose


def test_where_the_root_is_made_of_layers_a_disk_still_is_the_node_s_and_a_volume_may_be_anybody_s() -> None:
    inside = Known(in_layers=True)
    assert [owner(FORMS[0].format(device), inside) for device in ("sda", "dm-0", "loop3", "loop7", "nbd0")] == [
        "job", "unknown", "image", "other", "unknown",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "whose"),
    [
        (f"Memory cgroup out of memory: Killed process {OURS} (python) total-vm:9kB, anon-rss:8kB", "job"),
        (f"Out of memory: Killed process {OURS} (python) total-vm:9kB, anon-rss:8kB", "job"),
        (f"Memory cgroup out of memory: Killed process {THEIRS} (python) total-vm:9kB, anon-rss:8kB", "other"),
        (f"Out of memory: Killed process {THEIRS} (python) total-vm:9kB, anon-rss:8kB", "other"),
        (f"Out of memory: Killed process {GONE} (python) total-vm:9kB, anon-rss:8kB", "unknown"),
        (f"INFO: task python:{OURS} blocked for more than 120 seconds.", "job"),
        (f"INFO: task python:{THEIRS} blocked for more than 120 seconds.", "other"),
        (f"INFO: task kworker/u8:2:{GONE} blocked for more than 120 seconds.", "unknown"),
    ],
)
def test_what_is_about_a_process_is_the_job_s_if_that_is(line: str, whose: Owner) -> None:
    assert owner(line) == whose


@pytest.mark.parametrize(
    ("pid", "cgroup", "whose"),
    [
        (GONE, "/job", "job"),
        (GONE, "/shared", "unknown"),
        (GONE, "/elsewhere", "unknown"),
        (GONE, "", "unknown"),
        (THEIRS, "/job", "other"),
        (OURS, "/elsewhere", "job"),
    ],
)
def test_of_a_process_that_is_gone_its_cgroup_tells_where_nobody_else_is_in_it(
    pid: int, cgroup: str, whose: Owner
) -> None:
    assert owner(f"Memory cgroup out of memory: Killed process {pid} (python) x", cgroup=cgroup) == whose


def test_the_line_before_a_kill_says_in_which_cgroup_it_was() -> None:
    """As Linux 5 and 6 write it, of a cgroup's limit and of the whole node's memory."""
    line = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/slurm/job_7,"
        "task_memcg=/slurm/job_7/step_0,task=python,pid=4811,uid=1000"
    )
    assert killed_in(line) == (4811, "/slurm/job_7/step_0")
    whole = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,global_oom,task_memcg=/a,task=x,pid=3,uid=0"
    assert killed_in(whole) == (3, "/a")
    assert killed_in("oom_reaper: reaped process 4811 (python), now anon-rss:0kB") is None


XID = "NVRM: Xid (PCI:{}): {}, pid={}, name=python, text"


@pytest.mark.parametrize("number", [48, 62, 64, 74, 79, 95, 119])
def test_a_broken_gpu_is_the_job_s_if_the_job_may_use_it_whoever_s_work_it_was(number: int) -> None:
    for pid in (OURS, THEIRS, GONE, "'<unknown>'"):
        assert owner(XID.format(OWN_GPU, number, pid)) == "job"
        assert owner(XID.format(OTHER_GPU, number, pid)) == "other"


@pytest.mark.parametrize("number", [13, 31, 43, 45, 69, 94])
def test_what_a_program_did_wrong_on_a_gpu_is_the_job_s_unless_it_is_another_s_program(number: int) -> None:
    assert owner(XID.format(OWN_GPU, number, OURS)) == "job"
    assert owner(XID.format(OWN_GPU, number, THEIRS)) == "other"
    assert owner(XID.format(OWN_GPU, number, GONE)) == "job", "the GPU is the job's"
    assert owner(f"NVRM: Xid (PCI:{OWN_GPU}): {number}, Ch 00000008") == "job", "older drivers name no process"
    assert owner(XID.format(OTHER_GPU, number, OURS)) == "other"


@pytest.mark.parametrize(
    "line", [XID.format(OWN_GPU, 79, OURS), "NVRM: rm_init_adapter failed for device bearing minor number 0"]
)
def test_where_it_is_not_known_which_gpus_are_the_job_s_nothing_is_certain(line: str) -> None:
    assert owner(line, Known(gpus=None)) == "unknown"


def test_a_server_that_does_not_respond_matters_where_the_job_has_mounted_it() -> None:
    assert owner("nfs: server filer7 not responding, still trying") == "job"
    assert owner("nfs: server filer8 not responding, still trying") == "other"


def test_a_network_device_without_hardware_is_a_container_s_or_a_virtual_machine_s() -> None:
    form = "NETDEV WATCHDOG: {} ({}): transmit queue 3 timed out"
    assert owner(form.format("eth2", "mlx5_core")) == "job"
    assert owner(form.format("eth0", "virtio_net")) == "job"
    assert owner(form.format("tap7", "tun")) == "other"


@pytest.mark.parametrize(
    "line",
    [
        "Kernel panic - not syncing: Fatal exception",
        "BUG: unable to handle page fault for address: ffffffffc0a1b2c3",
        f"watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:{THEIRS}]",
        "mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 4: be00000000800400",
        "pcieport 0000:5d:00.0: AER: Uncorrectable (Fatal) error received: 0000:5e:00.0",
        "nvme nvme1: Disabling device after reset failure: -19",
    ],
)
def test_a_fault_of_the_machine_concerns_every_job_on_it(line: str) -> None:
    assert owner(line) == "job"


@pytest.mark.parametrize(
    "line",
    [
        "SQUASHFS error: Failed to read block 0x1f3a: -5",
        "SQUASHFS error: Unable to read metadata cache entry [1f3a]",
        "python[4811]: segfault at 0 ip 00007f sp 00007f error 4 in libtorch.so",
        "traps: python[4811] general protection fault ip:7f sp:7f error:0 in libc.so",
        "fuse: trying to steal weird page",
        "Tasks in /other killed as a result of limit of /other",
    ],
)
def test_what_says_nothing_of_a_machine_is_not_taken_for_anything(line: str) -> None:
    assert meaning_of(line) is None


# --- what is made of it -------------------------------------------------------------------------------------------------

LINE = "I/O error, dev loop3, sector 8"


def said(whose: Owner, image: str = "image hf.sqsh") -> tuple[str, str, str, str]:
    _, (event,) = judge(KernelLogSettings(), {}, Batch((KernelRecord(0, LINE, owner=whose),), image=image), 1.0)
    return event.name, event.kind, event.subject, event.detail


def test_what_does_not_concern_the_job_is_kept_as_a_note_and_alarms_nobody() -> None:
    name, kind, subject, detail = said("other")
    assert (name, kind, subject) == ("disk.error", "note", "loop3")
    assert detail.startswith("it does not concern this job: the kernel's log: I/O error")
    assert said("unknown")[1] == "note"
    assert "not known whether" in said("unknown")[3]


def test_reads_that_fail_in_the_job_s_image_are_told_as_the_image_s() -> None:
    name, kind, subject, detail = said("image")
    assert (name, kind, subject) == ("image.error", "alert", "image hf.sqsh")
    assert detail == f"reads of it fail; the kernel's log: {LINE}"


def test_a_note_of_another_s_does_not_keep_one_s_own_from_being_said() -> None:
    settings = KernelLogSettings()
    remembered, _ = judge(settings, {}, Batch((KernelRecord(0, LINE, owner="other"),)), 1.0)
    _, events = judge(settings, remembered, Batch((KernelRecord(0, LINE, owner="job"),)), 2.0)
    assert [event.kind for event in events] == ["alert"]
