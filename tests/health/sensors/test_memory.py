"""Processes killed for memory, shortages, and CPUs that are taken away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sensor_ground import LIMIT_S, Tree, Watched

from robust_run.health.sensors import cgroups, kernel_log, memory, pressure
from robust_run.health.sensors.links import neighbours
from robust_run.health.sensors.links.neighbours import NeighbourSample, NeighbourState, Process
from robust_run.health.sensors.memory import MemorySample
from robust_run.health.sensors.pressure import PressureSample, PressureState
from robust_run.health.sensors.settings import KernelLogSettings, MemorySettings, NeighbourSettings, PressureSettings
from robust_run.health.sensors.types import AbsentError, Event, SensorWorld


def test_cgroups_of_both_versions_are_found_where_they_are_mounted(tree: Tree, world: SensorWorld) -> None:
    tree.write(
        proc__7__cgroup="4:memory:/job\n1:cpu,cpuacct:/job\n0::/job\n",
        cgroup__unified__job__cgroup_procs="",
        cgroup__memory__job__x="",
    )
    tree.put("cgroup/unified/job/cgroup.procs", "")
    tree.put("cgroup/memory/job/cgroup.procs", "")
    tree.put("cgroup/cpu,cpuacct/cgroup.procs", "")
    found = cgroups.find(world)
    root = f"{tree}/cgroup"
    assert (found.unified, found.memory, found.cpu) == (
        f"{root}/unified/job",
        f"{root}/memory/job",
        f"{root}/cpu,cpuacct",
    )


def test_a_cgroup_s_path_cannot_lead_out_of_where_cgroups_are(tree: Tree, world: SensorWorld) -> None:
    tree.put("proc/7/cgroup", "0::/../../../etc\n")
    tree.put("cgroup/cgroup.procs", "")
    assert cgroups.find(world).unified == f"{tree}/cgroup"


@pytest.mark.parametrize(
    ("own", "file"),
    [("0::/job\n", "cgroup/job/memory.events"), ("4:memory:/job\n", "cgroup/memory/job/memory.oom_control")],
    ids=["version 2", "version 1"],
)
def test_kills_are_counted_in_the_job_s_cgroup(own: str, file: str, tree: Tree, world: SensorWorld) -> None:
    tree.put("proc/7/cgroup", own)
    tree.put("proc/vmstat", "pswpin 0\noom_kill 9\n")
    tree.put(f"{os.path.dirname(file)}/cgroup.procs", "")
    tree.put(file, "low 0\noom_kill 2\n")
    assert memory.read(world) == MemorySample(in_cgroup=2, on_node=9)


def test_a_kernel_that_counts_nothing_is_said_once(world: SensorWorld) -> None:
    with pytest.raises(AbsentError):
        memory.read(world)


def kills(before: MemorySample, after: MemorySample) -> list[str]:
    state, events = memory.judge(None, before, 0.0)
    assert events == ()
    return [event.name for event in memory.judge(state, after, 0.5)[1]]


def test_a_kill_in_the_job_is_told_from_one_elsewhere_on_the_node() -> None:
    before = MemorySample(in_cgroup=1, on_node=5)
    assert kills(before, MemorySample(in_cgroup=2, on_node=6)) == ["memory.oom_kill"]
    assert kills(before, MemorySample(in_cgroup=1, on_node=6)) == ["memory.oom_kill_on_node"]
    assert kills(before, before) == []
    assert kills(MemorySample(on_node=5), MemorySample(on_node=6)) == ["memory.oom_kill_on_node"]


def test_a_kill_in_a_cgroup_that_others_are_in_may_be_of_one_of_them() -> None:
    before = MemorySample(in_cgroup=1, on_node=5, is_shared=True)
    state, events = memory.judge(None, before, 0.0)
    assert [(event.name, event.kind) for event in events] == [("memory.shared", "note")]
    _, events = memory.judge(state, MemorySample(in_cgroup=2, on_node=6, is_shared=True), 0.5)
    assert [event.name for event in events] == ["memory.oom_kill_in_cgroup"]


def test_who_is_in_the_cgroup_is_looked_at_before_and_after_a_kill(tree: Tree, world: SensorWorld) -> None:
    tree.put("proc/7/cgroup", "0::/job\n")
    tree.put("proc/7/stat", "7 (python) S 1 7 7 0\n")
    tree.put("proc/50/stat", "50 (other) S 1 50 50 0\n")
    tree.put("cgroup/job/memory.events", "oom_kill 2\n")
    tree.put("cgroup/job/cgroup.procs", "7\n")
    now_s = 0.0
    counts = memory.Counts(5.0, lambda: now_s)
    assert not counts(world).is_shared
    tree.put("cgroup/job/cgroup.procs", "7\n50\n")
    now_s = 1.0
    assert not counts(world).is_shared, "it is not looked at all the time"
    tree.put("cgroup/job/memory.events", "oom_kill 3\n")
    assert counts(world).is_shared, "at a kill it is"
    tree.put("cgroup/job/cgroup.procs", "7\n")
    now_s = 9.0
    assert counts(world).is_shared


class Cgroup:
    """A cgroup of this machine, of version 2 or 1, made for one test."""

    def __init__(self, folder: Path, controller: str) -> None:
        self.folder = folder
        self.controller = controller

    def limit(self, names: tuple[str, ...], value: str) -> None:
        for name in names:
            with suppress(OSError):
                (self.folder / name).write_text(value)
                return
        pytest.skip(f"this cgroup takes no {' or '.join(names)}")

    def run(self, code: str) -> subprocess.Popen[str]:
        """Start a program that enters the cgroup, says so, and goes on when it is told to."""
        enter = f"open({str(self.folder / 'cgroup.procs')!r}, 'w').write('0'); print('in', flush=True); input()\n"
        return subprocess.Popen(
            [sys.executable, "-c", enter + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


@pytest.fixture
def cgroup(root: None) -> Iterator[Callable[[str], Cgroup]]:
    made: list[Path] = []

    def make(controller: str) -> Cgroup:
        top = Path("/sys/fs/cgroup")
        new = (top / "cgroup.controllers").exists() and controller in (
            top / "cgroup.subtree_control"
        ).read_text().split()
        folder = (top if new else top / controller) / f"robust-test-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup with {controller} can be made here: {error.strerror}")
        made.append(folder)
        return Cgroup(folder, controller)

    yield make
    for folder in made:
        deadline_s = time.monotonic() + LIMIT_S
        while folder.exists() and time.monotonic() < deadline_s:
            try:
                folder.rmdir()
            except OSError:  # its last process is being buried
                time.sleep(0.02)
        assert not folder.exists()


def test_a_real_process_killed_for_memory_is_noticed_in_its_cgroup_and_in_the_kernel_s_log(
    cgroup: Callable[[str], Cgroup], watch: Callable[..., Watched]
) -> None:
    group = cgroup("memory")
    group.limit(("memory.max", "memory.limit_in_bytes"), str(64 << 20))
    victim = group.run("kept = []\nwhile True: kept.append(bytearray(b'x' * (4 << 20)))")
    try:
        assert victim.stdout is not None
        assert victim.stdin is not None
        assert victim.stdout.readline() == "in\n"
        world = SensorWorld(pid=victim.pid)
        log = KernelLogSettings(wait_s=0.2)
        sensors = [memory.sensor(MemorySettings(interval_s=0.1))]
        if os.access("/dev/kmsg", os.R_OK):
            sensors.append(kernel_log.sensor(log))
        watched = watch(world, *sensors)
        watched.wait_for_first_turns(len(sensors))
        victim.stdin.write("\n")
        victim.stdin.flush()
        assert victim.wait(LIMIT_S) == -9
        event = watched.wait_for("memory.oom_kill")
        if len(sensors) == 2:
            deadline_s = time.monotonic() + LIMIT_S
            while not any(event.number == victim.pid for event in watched.events):
                assert time.monotonic() < deadline_s, watched.events
                time.sleep(0.02)
        assert event.kind == "alert"
    finally:
        victim.kill()
        victim.communicate(timeout=LIMIT_S)


def test_a_real_cpu_limit_shows_as_time_that_was_taken(cgroup: Callable[[str], Cgroup]) -> None:
    group = cgroup("cpu")
    # The least there is: less than one turn of the scheduler, so that it takes effect on a machine of any load.
    group.limit(("cpu.max", "cpu.cfs_quota_us"), "1000" if group.folder.parent.name == "cpu" else "1000 100000")
    spinner = group.run("import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass")
    try:
        assert spinner.stdout is not None
        assert spinner.stdin is not None
        assert spinner.stdout.readline() == "in\n"
        world = SensorWorld(pid=spinner.pid)
        before = pressure.read(world)
        assert before.throttled_s is not None
        spinner.stdin.write("\n")
        spinner.stdin.flush()
        deadline_s = time.monotonic() + LIMIT_S
        sample = before
        while (sample.throttled_s or 0.0) - before.throttled_s < 0.5:
            assert time.monotonic() < deadline_s, "it was never throttled"
            time.sleep(0.05)
            sample = pressure.read(world)
    finally:
        spinner.kill()
        spinner.communicate(timeout=LIMIT_S)


def short(*samples: PressureSample, every_s: float = 5.0) -> list[Event]:
    state, events = PressureState(), []
    for turn, sample in enumerate(samples):
        state, new = pressure.judge(PressureSettings(), state, sample, every_s * turn)
        events += new
    return events


def test_pressure_is_said_when_it_lasts() -> None:
    bad = PressureSample(waiting={"memory full": 50.0, "cpu some": 10.0})
    assert short(*[bad] * 6) == []
    events = short(*[bad] * 7)
    assert [event.name for event in events] == ["memory.pressure_on_node"]
    assert "50 % of the last 10 s on the whole node" in events[0].detail


def test_pressure_in_the_job_s_own_cgroup_is_told_from_that_of_the_whole_node() -> None:
    waiting = {"memory full": 50.0, "cpu some": 90.0, "io full": 90.0}
    events = short(*[PressureSample(waiting=waiting, own={"cpu some": 80.0, "io full": 10.0})] * 7)
    assert {event.name for event in events} == {"memory.pressure_on_node", "cpu.pressure", "disk.pressure_on_node"}


def test_pressure_of_a_cgroup_is_read_where_the_job_has_it_to_itself(tree: Tree, world: SensorWorld) -> None:
    tree.put("proc/7/cgroup", "0::/job\n")
    tree.put("cgroup/job/cgroup.procs", "7\n")
    tree.put("cgroup/job/cpu.pressure", "some avg10=33.00 avg60=0.00 avg300=0.00 total=1\n")
    assert pressure.read(world).own == {"cpu some": 33.0}
    assert pressure.read(world, shared=True).own == {}


def test_memory_that_runs_out_and_swapping_are_said() -> None:
    samples = [
        PressureSample(waiting={}, memory_bytes=10**12, free_bytes=10**9, swapped_pages=turn * 50_000)
        for turn in range(9)
    ]
    assert {event.name for event in short(*samples)} == {"memory.short", "memory.swapping"}


def test_a_cpu_limit_that_holds_the_job_back_is_said() -> None:
    samples = [PressureSample(waiting={}, throttled_s=2.0 * turn) for turn in range(9)]
    assert [event.name for event in short(*samples)] == ["cpu.throttled"]


def test_pressure_memory_and_swapping_are_read_from_proc(tree: Tree, world: SensorWorld) -> None:
    tree.write(
        proc__pressure__memory="some avg10=1.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=12.50 avg60=0 avg300=0 total=1\n",
        proc__meminfo="MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    500 kB\n",
        proc__vmstat="pswpin 3\npswpout 4\n",
    )
    found = pressure.read(world)
    assert found.waiting == {"memory some": 1.0, "memory full": 12.5}
    assert (found.memory_bytes, found.free_bytes, found.swapped_pages) == (1_024_000, 512_000, 7)


def stat(pid: int, name: str, parent: int, group: int, ticks: int) -> str:
    return f"{pid} ({name}) R {parent} {group} 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 55 0 0\n"


def test_processes_are_listed_only_while_work_waits_for_cpus(tree: Tree, world: SensorWorld) -> None:
    settings = NeighbourSettings()
    tree.put("proc/pressure/cpu", "some avg10=3.00 avg60=0 avg300=0 total=1\n")
    tree.put("proc/12/stat", stat(12, "a (b) c", 1, 12, 250))
    assert neighbours.read(settings, world).processes == {}
    tree.put("proc/pressure/cpu", "some avg10=80.00 avg60=0 avg300=0 total=1\n")
    assert neighbours.read(settings, world).processes == {
        12: Process(parent=1, group=12, name="a (b) c", cpu_s=2.5, start=55)
    }


def test_a_program_that_is_not_the_job_s_and_takes_cpus_is_named() -> None:
    def at(now_s: float) -> NeighbourSample:
        def process(parent: int, group: int, name: str, cores: float) -> Process:
            return Process(parent=parent, group=group, name=name, cpu_s=cores * now_s, start=1)

        listed = {
            7: process(1, 7, "agent", 0.0),
            8: process(7, 8, "train", 4.0),
            9: process(8, 8, "loader", 4.0),
            20: process(1, 20, "miner", 1.0),
            21: process(20, 20, "miner", 1.0),
        }
        return NeighbourSample(waiting_percent=90, processes=listed, job=7)

    state, events = NeighbourState(), []
    for turn in range(5):
        state, new = neighbours.judge(NeighbourSettings(), state, at(10.0 * turn), 10.0 * turn)
        events += new
    assert [(event.name, event.subject) for event in events] == [("cpu.neighbour", "miner (process group 20)")]
    assert "2.0 CPUs" in events[0].detail
