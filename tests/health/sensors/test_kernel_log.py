"""What is read from the kernel's log."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sensor_ground import LIMIT_S, Tree, Watched

from robust_run.health.sensors import kernel_log
from robust_run.health.sensors.kernel_log import MOST_RECORDS, Batch, KernelLog, KernelRecord, judge, parse
from robust_run.health.sensors.settings import KernelLogSettings
from robust_run.health.sensors.types import AbsentError, SensorWorld
from robust_run.health.signs.kernel_lines import meaning_of

SETTINGS = KernelLogSettings()

LINES = [
    ("gpu.lost", "GPU 0000:3b:00", 79, "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus."),
    ("gpu.xid.48", "GPU 0000:86:00", 48, "NVRM: Xid (PCI:0000:86:00): 48, pid=1234, An uncorrectable double bit error (DBE)"),
    ("gpu.xid.31", "GPU 0000:86:00", 31, "NVRM: Xid (PCI:0000:86:00): 31, pid=99, name=python, Ch 00000008. MMU Fault"),
    ("gpu.lost", "GPU 0000:01:00", 0, "NVRM: GPU at PCI:0000:01:00: GPU-1234 has fallen off the bus"),
    ("gpu.driver", "GPU 0000:01:00", 0, "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x24:0x65:1423)"),
    ("memory.oom_kill", "python", 4711, "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:8kB"),
    ("memory.oom_kill", "pt_main_thread", 12, "Out of memory: Killed process 12 (pt_main_thread) total-vm:1kB"),
    ("kernel.panic", "", 0, "Kernel panic - not syncing: Fatal exception"),
    ("kernel.oops", "", 0, "BUG: unable to handle page fault for address: ffffffffc0a1b2c3"),
    ("kernel.oops", "", 0, "general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP"),
    ("kernel.lockup", "CPU#3", 0, "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]"),
    ("kernel.rcu_stall", "", 0, "rcu: INFO: rcu_preempt self-detected stall on CPU"),
    ("kernel.hung_task", "python", 123, "INFO: task python:123 blocked for more than 120 seconds."),
    ("kernel.hung_task", "kworker/u8:2", 55, "INFO: task kworker/u8:2:55 blocked for more than 120 seconds."),
    ("hardware.machine_check", "", 0, "mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 4: be00000000800400"),
    ("hardware.corrected", "", 0, "mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: 8c00004000010091"),
    ("hardware.machine_check", "", 0, "EDAC MC0: 1 UE memory read error on CPU_SrcID#0"),
    ("hardware.corrected", "", 0, "EDAC MC0: 1 CE memory read error on CPU_SrcID#0"),
    ("hardware.machine_check_logged", "", 0, "mce: [Hardware Error]: Machine check events logged"),
    ("hardware.pcie", "0000:5d:00.0", 0, "pcieport 0000:5d:00.0: AER: Uncorrectable (Fatal) error received: 0000:5e:00.0"),
    ("hardware.corrected", "", 0, "pcieport 0000:00:1c.5: AER: Corrected error message received from 0000:05:00.0"),
    ("disk.read_only", "nvme0n1p2", 0, "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"),
    ("disk.read_only", "sdb1", 0, "XFS (sdb1): Corruption of in-memory data (0x8) detected at xfs_x.  Shutting down filesystem."),
    ("disk.error", "sda", 0, "blk_update_request: I/O error, dev sda, sector 123 op 0x0:(READ)"),
    ("disk.error", "nvme0n1", 0, "critical medium error, dev nvme0n1, sector 9 op 0x0:(READ) flags 0x0"),
    ("disk.error", "sda1", 0, "EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory lblock 0"),
    ("disk.lost", "nvme1", 0, "nvme nvme1: Disabling device after reset failure: -19"),
    ("disk.timeout", "nvme0", 0, "nvme nvme0: I/O 12 QID 3 timeout, aborting"),
    ("mount.not_responding", "filer7", 0, "nfs: server filer7 not responding, still trying"),
    ("network.device_hung", "eth2", 0, "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 3 timed out"),
    ("cpu.hot", "CPU12", 0, "CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)"),
]  # fmt: skip

HARMLESS = [
    "nfs: server filer7 OK",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
    "br0: port 1(v2) entered disabled state",
    "systemd[1]: task python blocked my day",
    "audit: I said BUG: unable to handle",
    "python[5]: segfault at 0 ip 00007f error 4 in libtorch.so",
]


@pytest.mark.parametrize(("name", "subject", "number", "line"), LINES, ids=[line[3][:40] for line in LINES])
def test_a_line_of_the_kernel_is_taken_for_what_it_tells(name: str, subject: str, number: int, line: str) -> None:
    _, events = judge(SETTINGS, {}, Batch((KernelRecord(0, line),)), 1.0)
    assert [(event.name, event.subject, event.number) for event in events] == [(name, subject, number)]
    assert line[:60] in events[0].detail


@pytest.mark.parametrize("line", HARMLESS)
def test_other_lines_tell_nothing(line: str) -> None:
    assert judge(SETTINGS, {}, Batch((KernelRecord(0, line),)), 1.0)[1] == ()


def test_words_that_a_program_wrote_into_the_log_are_not_the_kernel_s() -> None:
    forged = Batch((KernelRecord(1, "Kernel panic - not syncing: I am a joke"),))
    assert judge(SETTINGS, {}, forged, 1.0)[1] == ()
    assert len(judge(KernelLogSettings(trust_programs=True), {}, forged, 1.0)[1]) == 1


def test_the_same_of_the_same_subject_is_said_again_only_after_a_while() -> None:
    batch = Batch((KernelRecord(0, "NVRM: Xid (PCI:0000:3b:00): 48, x"),) * 100)
    said, events = judge(SETTINGS, {}, batch, 1.0)
    assert len(events) == 1
    said, events = judge(SETTINGS, said, batch, 20.0)
    assert events == ()
    assert len(judge(SETTINGS, said, batch, 32.0)[1]) == 1


def test_errors_of_two_gpus_are_two() -> None:
    batch = Batch(
        (KernelRecord(0, "NVRM: Xid (PCI:0000:3b:00): 48, x"), KernelRecord(0, "NVRM: Xid (PCI:0000:3c:00): 48, x"))
    )
    assert len(judge(SETTINGS, {}, batch, 1.0)[1]) == 2


def test_records_are_split_into_who_wrote_them_and_what() -> None:
    text = "6,54478,44476237266,-;br0: up\n SUBSYSTEM=net\n12,54479,44476237268,-;hello; world\nrubbish\n"
    assert parse(text) == [KernelRecord(0, "br0: up"), KernelRecord(1, "hello; world")]


def test_a_storm_is_read_in_part_and_costs_no_more(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    log = KernelLog(0.01)
    log.open(str(path))
    try:
        path.write_text("6,1,1,-;storm\n" * 200_000)
        batch = log(SensorWorld(kmsg=str(path)))
        assert batch.lost
        assert MOST_RECORDS <= len(batch.records) < MOST_RECORDS + 1000
        assert log(SensorWorld(kmsg=str(path))) == Batch(())
    finally:
        log.close()


def test_a_gpu_that_is_lost_in_the_middle_of_a_storm_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("")
    log = KernelLog(0.01)
    log.open(str(path))
    try:
        lost = "4,1,1,-;NVRM: GPU at PCI:0000:01:00: GPU-1234 has fallen off the bus\n"
        path.write_text("6,1,1,-;storm\n" * 9000 + lost + "6,1,1,-;storm\n" * 9000)
        _, events = judge(SETTINGS, {}, log(SensorWorld(kmsg=str(path))), 1.0)
    finally:
        log.close()
    assert [each.name for each in events] == ["kernel_log.lost", "gpu.lost"]


def told(tree: Tree, world: SensorWorld, *lines: str) -> list[tuple[str, str, str, int]]:
    """Return what is made of lines that the kernel writes while the job's processes are those of the tree."""
    path = tree.path / "kmsg"
    path.write_text("")
    log = KernelLog(0.01)
    log(world)
    try:
        path.write_text("".join(f"4,1,1,-;{line}\n" for line in lines))
        _, events = judge(SETTINGS, {}, log(world), 1.0)
    finally:
        log.close()
    return [(event.name, event.kind, event.subject, event.number) for event in events]


def agent_7_and_rank_8(tree: Tree, namespace: str = "pid:[4026531836]") -> None:
    for pid, parent in ((1, 0), (7, 1), (8, 7), (50, 1)):
        tree.put(f"proc/{pid}/stat", f"{pid} (python) S {parent} {pid} {pid} 0\n")
    tree.put("proc/7/task/7/children", "8 ")
    tree.put("proc/7/cgroup", "0::/job\n")
    tree.put("cgroup/job/cgroup.procs", "7\n8\n")
    (tree.path / "proc/7/ns").mkdir()
    (tree.path / "proc/7/ns/pid").symlink_to(namespace)


def about_to_kill(pid: int, cgroup: str) -> str:
    where = f"oom_memcg={cgroup},task_memcg={cgroup},task=python,pid={pid},uid=0"
    return f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,{where}"


KILL = "Memory cgroup out of memory: Killed process {} (python) total-vm:9kB, anon-rss:8kB"


def test_only_what_concerns_the_job_is_an_alert(tree: Tree, world: SensorWorld) -> None:
    agent_7_and_rank_8(tree)
    assert told(
        tree,
        world,
        "I/O error, dev loop4, sector 8 op 0x0:(READ)",
        "I/O error, dev sda, sector 8 op 0x0:(READ)",
        KILL.format(50),
        KILL.format(8),
        "INFO: task python:50 blocked for more than 120 seconds.",
        "nfs: server filer7 not responding, still trying",
    ) == [
        ("disk.error", "note", "loop4", 0),
        ("disk.error", "alert", "sda", 0),
        ("memory.oom_kill", "note", "python", 50),
        ("memory.oom_kill", "alert", "python", 8),
        ("kernel.hung_task", "note", "python", 50),
        ("mount.not_responding", "note", "filer7", 0),
    ]


def test_a_process_of_the_job_that_nobody_had_seen_is_known_by_its_cgroup(tree: Tree, world: SensorWorld) -> None:
    agent_7_and_rank_8(tree)
    assert told(tree, world, about_to_kill(4711, "/job"), KILL.format(4711), KILL.format(4811)) == [
        ("memory.oom_kill", "alert", "python", 4711),
        ("memory.oom_kill", "note", "python", 4811),
    ]


def test_in_a_container_a_number_in_the_log_is_no_process_of_ours(tree: Tree, world: SensorWorld) -> None:
    """Process 8 of the machine is not our rank 8; a cgroup that the kernel calls as we do is ours."""
    agent_7_and_rank_8(tree, "pid:[4026532999]")
    assert told(tree, world, KILL.format(8)) == [("memory.oom_kill", "note", "python", 0)]
    assert told(tree, world, about_to_kill(8, "/job"), KILL.format(8)) == [("memory.oom_kill", "alert", "python", 0)]


def test_a_storm_of_another_s_image_does_not_ask_for_every_line_whose_it_is(tree: Tree, world: SensorWorld) -> None:
    agent_7_and_rank_8(tree)
    asked = []
    path = tree.path / "kmsg"
    path.write_text("")
    log = KernelLog(0.01)
    log(world)
    assert log._here is not None
    log._here.is_image = lambda device: bool(asked.append(device))  # type: ignore[method-assign]
    try:
        path.write_text("4,1,1,-;I/O error, dev loop4, sector 8\n" * 400)
        _, events = judge(SETTINGS, {}, log(world), 1.0)
    finally:
        log.close()
    assert [event.kind for event in events] == ["note"]
    assert len(asked) < 10


def test_reads_of_another_s_image_that_fail_in_a_real_kernel_alarm_nobody(
    root: None, watch: Callable[..., Watched], tmp_path: Path
) -> None:
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("/dev/kmsg cannot be read here")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(8 << 20)
    done = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no loop device: {done.stderr.strip()}")
    device = done.stdout.strip()
    try:
        watched = watch(SensorWorld(), kernel_log.sensor(KernelLogSettings(wait_s=0.2)))
        watched.wait_for_first_turns(1)
        os.truncate(image, 0)
        with open(os.open(device, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as reader:
            buffer = mmap.mmap(-1, 4096)
            try:
                if reader.readinto(buffer):
                    pytest.skip("this kernel reads what is not there")
            except OSError:
                pass  # as it should
        event = watched.wait_for("disk.error", "note")
        name = os.path.basename(device)
        mine = [event for event in watched.events if name in event.detail]
    finally:
        subprocess.run(["losetup", "-d", device], check=False)
    assert event.detail.startswith("it does not concern this job")
    assert [each.kind for each in mine] == ["note"]


def test_no_log_is_absent_not_an_error(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match="No such file"):
        KernelLog(0.01)(SensorWorld(kmsg=str(tmp_path / "none")))


@given(st.text())
def test_any_line_can_be_asked(line: str) -> None:
    meaning_of(line)
    assert all(record.facility >= 0 for record in parse(line))


def test_a_line_written_to_the_real_log_is_noticed(root: None, watch: Callable[..., Watched]) -> None:
    if not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("/dev/kmsg cannot be used here")
    settings = KernelLogSettings(trust_programs=True, wait_s=0.2)
    watched = watch(SensorWorld(), kernel_log.sensor(settings))
    mark = f"robust-test-{os.getpid()}-{time.monotonic_ns()}"
    with open("/dev/kmsg", "w") as log:
        deadline_s = time.monotonic() + LIMIT_S
        while not any(mark in event.detail for event in watched.events):
            assert time.monotonic() < deadline_s, "the line was never noticed"
            log.write(f"NVRM: Xid (PCI:0000:3b:00): 79, {mark}\n")
            log.flush()
            time.sleep(0.1)
    event = next(event for event in watched.events if mark in event.detail)
    assert (event.name, event.subject) == ("gpu.lost", "GPU 0000:3b:00")
