"""From a fault to the event that tells of it: real injections, and the sensors' own process as the agent starts it.

    python bench/detect.py --rounds 10

Faults: a line of the kernel's log (written to /dev/kmsg), a GPU that its driver loses (a stub of libnvidia-ml, compiled
here), a network link that loses its carrier (a veth pair), a process killed for memory (a cgroup with a limit; with the
kernel's log, and by the cgroup's counter alone), a file system remounted read-only and one that is full (tmpfs), a network
file system whose server never answers (FUSE). All in namespaces and cgroups of the bench's own; needs root and Linux, and
what cannot be done is left out with the reason. The sensors keep their default intervals; each injection comes at a random
moment of them. A time counts from the injection (for memory: from the death of the victim) to the event's line read by the
parent. What the sensors cost is measured while nothing happens. The last line of standard output is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

from sensor_ground import StubDriver, compile_stub  # noqa: E402

from robust_run.health.sensors.process import SensorSetup, WatchedAttempt, attempt_line, command, first_line, parse  # noqa: E402
from robust_run.health.sensors.settings import KernelLogSettings, MountSettings, SensorSettings  # noqa: E402
from robust_run.health.sensors.types import Event  # noqa: E402

INSIDE = "ROBUST_BENCH_DETECT_INSIDE"
LIMITS_S = {"kernel_fault": 2.0, "gpu_lost": 5.0, "link_down": 5.0, "oom": 1.0, "oom_without_kernel_log": 1.0}
WAIT_S = 60.0
OOM_LIMIT_BYTES = 96 << 20
VICTIM = "input()\nkept = []\nwhile True: kept.append(bytearray(b'x' * (4 << 20)))"


class CannotError(Exception):
    """A fault cannot be injected on this machine."""


class Sensors:
    """The sensors' process, and its events with the time at which each was read."""

    def __init__(self, setup: SensorSetup) -> None:
        self.process = subprocess.Popen(command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.events: queue.Queue[tuple[float, Event]] = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        assert self.process.stdin is not None
        self.process.stdin.write(first_line(setup) + attempt_line(WatchedAttempt(training=True)))
        self.process.stdin.flush()
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = parse(line)
            if event is not None:
                self.events.put((time.monotonic(), event))

    def wait_for(self, name: str, kind: str = "alert", subject: str | None = None) -> float:
        """Return when the next such event was read."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                at_s, event = self.events.get(timeout=max(0.01, deadline_s - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"detect: no {kind} {name} within {WAIT_S:g} s") from None
            if (event.name, event.kind) == (name, kind) and subject in (None, event.subject):
                return at_s

    def cpu_s(self) -> float:
        """Return the CPU time used so far."""
        row = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(row[11]) + int(row[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int:
        """Return its resident memory."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) * 1024

    def end(self) -> None:
        """End it as the agent does: its input ends."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(WAIT_S)
        self.reader.join(WAIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


class Ground:
    """Where the faults are injected: mounts, links and cgroups that end with the bench."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disk = folder / "disk"
        self.remote = folder / "remote"
        self.sys = folder / "sys"
        self.cgroup: Path | None = None
        self.member: subprocess.Popen[bytes] | None = None
        for place, kind, options in ((self.sys, "sysfs", ""), (self.disk, "tmpfs", "size=64m")):
            place.mkdir()
            run("mount", "-t", kind, *(("-o", options) if options else ()), kind, str(place))
        self.remote.mkdir()
        run(*"ip link add ours type veth peer name theirs".split())
        run(*"ip link set ours up".split())
        run(*"ip link set theirs up".split())
        compiler = shutil.which("cc") or shutil.which("gcc")
        self.library = compile_stub(compiler, folder) if compiler else ""
        os.environ["STUB_NVML_STATE"] = str(folder / "gpus")
        self.driver = StubDriver(self.library, folder / "gpus")
        self.driver.set(count=8)

    def enter_cgroup(self) -> Path:
        """Return a cgroup with little memory; a process of ours stays in it so that sensors find it."""
        if self.cgroup is None:
            top = Path("/sys/fs/cgroup")
            new = (top / "cgroup.controllers").exists()
            self.cgroup = (top if new else top / "memory") / f"robust-bench-{os.getpid()}"
            try:
                self.cgroup.mkdir()
                limit = "memory.max" if new else "memory.limit_in_bytes"
                (self.cgroup / limit).write_text(str(OOM_LIMIT_BYTES))
            except OSError as error:
                raise CannotError(f"no cgroup with a memory limit: {error}") from error
            self.member = subprocess.Popen(["sleep", "3600"])
            (self.cgroup / "cgroup.procs").write_text(str(self.member.pid))
        return self.cgroup

    def end(self) -> None:
        """Take away what would outlive the namespaces."""
        if self.member is not None:
            self.member.kill()
            self.member.wait()
        if self.cgroup is not None:
            end_s = time.monotonic() + 10
            while self.cgroup.exists() and time.monotonic() < end_s:
                with contextlib.suppress(OSError):
                    self.cgroup.rmdir()
                time.sleep(0.02)
        for place in (self.disk, self.sys):
            run("umount", "-l", str(place))


def run(*line: str) -> None:
    """Run a tool; what it says is shown only if it fails."""
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotError(f"{' '.join(line)}: {done.stderr.strip()}")


Inject = Callable[[Ground, Sensors, int], float]
"""Breaks something, waits for the event, mends it, and returns the seconds between."""


def kernel_fault(_: Ground, sensors: Sensors, round_: int) -> float:
    with open("/dev/kmsg", "w") as log:
        start_s = time.monotonic()
        log.write(
            f"watchdog: BUG: soft lockup - CPU#{round_} stuck for 22s! [robust-bench:1]\n"
        )  # a record ends with its line
        log.flush()
    return sensors.wait_for("kernel.lockup", subject=f"CPU#{round_}") - start_s


def gpu_lost(ground: Ground, sensors: Sensors, round_: int) -> float:
    if not ground.library:
        raise CannotError("no C compiler for the stub of libnvidia-ml")
    gpu = round_ % 8
    start_s = time.monotonic()
    ground.driver.set(**{f"lost_{gpu}": 1})
    took_s = sensors.wait_for("gpu.lost") - start_s
    ground.driver.set(**{f"lost_{gpu}": 0})
    sensors.wait_for("gpu.lost", "clear")
    return took_s


def link_down(_: Ground, sensors: Sensors, __: int) -> float:
    start_s = time.monotonic()
    run("ip", "link", "set", "theirs", "down")
    took_s = sensors.wait_for("network.link_down") - start_s
    run("ip", "link", "set", "theirs", "up")
    sensors.wait_for("network.link_down", "clear")
    return took_s


def oom(ground: Ground, sensors: Sensors, _: int) -> float:
    victim = subprocess.Popen([sys.executable, "-c", VICTIM], stdin=subprocess.PIPE)
    try:
        (ground.enter_cgroup() / "cgroup.procs").write_text(str(victim.pid))
        assert victim.stdin is not None
        victim.stdin.write(b"\n")
        victim.stdin.close()
        if victim.wait(WAIT_S) != -9:
            raise CannotError(f"the victim ended with {victim.returncode}, not of SIGKILL")
        died_s = time.monotonic()
        # the kernel says so before it kills: an event may be read before the death is seen
        return max(0.0, sensors.wait_for("memory.oom_kill") - died_s)
    finally:
        victim.kill()
        victim.wait()


def read_only(ground: Ground, sensors: Sensors, _: int) -> float:
    start_s = time.monotonic()
    run("mount", "-o", "remount,ro", str(ground.disk))
    took_s = sensors.wait_for("disk.read_only") - start_s
    run("mount", "-o", "remount,rw", str(ground.disk))
    sensors.wait_for("disk.read_only", "clear")
    return took_s


def disk_full(ground: Ground, sensors: Sensors, _: int) -> float:
    path = ground.disk / "big"
    with contextlib.suppress(OSError), open(path, "wb") as file:
        while True:
            file.write(bytes(1 << 20))
    start_s = time.monotonic()
    took_s = sensors.wait_for("disk.full") - start_s
    path.unlink()
    sensors.wait_for("disk.full", "clear")
    return took_s


@contextlib.contextmanager
def dead_server(ground: Ground) -> Iterator[None]:
    """A FUSE mount whose server never answers; its type says that it is a network file system."""
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        raise CannotError(f"no FUSE: {error}") from error
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"nobody", str(ground.remote).encode(), b"fuse.sshfs", 0, options):
        os.close(device)
        raise CannotError(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(device)
        run("umount", "-l", str(ground.remote))


FAULTS: dict[str, Inject] = {
    "kernel_fault": kernel_fault,
    "gpu_lost": gpu_lost,
    "link_down": link_down,
    "oom": oom,
    "oom_without_kernel_log": oom,
    "disk_read_only": read_only,
    "disk_full": disk_full,
}


def setup_of(ground: Ground, fault: str) -> SensorSetup:
    """Return the defaults, but for where the bench's own faults are."""
    log = KernelLogSettings(trust_programs=True, repeat_s=0.0, on=fault != "oom_without_kernel_log")
    member = ground.member.pid if ground.member is not None else 0
    return SensorSetup(
        settings=SensorSettings(kernel_log=log),
        sys=str(ground.sys),
        nvml_library=ground.library,
        interfaces=("ours",),
        folders=(str(ground.disk),),
        pid=member,
    )


def measure(ground: Ground, fault: str, rounds: int, chance: random.Random) -> list[float]:
    """Return the seconds of each round."""
    if fault.startswith("oom"):
        ground.enter_cgroup()
    sensors = Sensors(setup_of(ground, fault))
    try:
        time.sleep(3.0)  # all have read once
        found = []
        for round_ in range(rounds):
            time.sleep(chance.uniform(0.0, 2.0))
            found.append(FAULTS[fault](ground, sensors, round_))
        return found
    finally:
        sensors.end()


def measure_hung(ground: Ground) -> list[float]:
    """Return how long until a mount is said to hang: its time limit and what comes on top."""
    with dead_server(ground):
        settings = SensorSettings(mount=MountSettings(), kernel_log=KernelLogSettings(on=False))
        start_s = time.monotonic()
        sensors = Sensors(msgspec.structs.replace(setup_of(ground, ""), settings=settings))
        try:
            return [sensors.wait_for("mount.hung") - start_s]
        finally:
            sensors.process.kill()  # a thread of it waits in the kernel
            sensors.end()


def measure_cost(ground: Ground, seconds: float) -> dict[str, Any]:
    """Return what the sensors use while nothing happens, with eight GPUs of the stub."""
    sensors = Sensors(setup_of(ground, ""))
    try:
        time.sleep(5.0)
        before_s, start_s = sensors.cpu_s(), time.monotonic()
        time.sleep(seconds)
        share = (sensors.cpu_s() - before_s) / (time.monotonic() - start_s)
        return {"cpu_share_of_a_core": round(share, 5), "memory_bytes": sensors.memory_bytes(), "over_s": seconds}
    finally:
        sensors.end()


def shown(times: list[float], limit_s: float | None) -> dict[str, Any]:
    """Return the figures of one fault."""
    figures: dict[str, Any] = {
        "rounds": len(times),
        "median_s": round(statistics.median(times), 4),
        "max_s": round(max(times), 4),
    }
    if limit_s is not None:
        figures |= {"limit_s": limit_s, "within_limit": max(times) <= limit_s}
    return figures


def bench(rounds: int, cost_s: float, seed: int) -> dict[str, Any]:
    """Inject everything, print a line for each, and return all figures."""
    chance = random.Random(seed)
    result: dict[str, Any] = {"bench": "detect", "rounds": rounds, "faults": {}, "left_out": {}}
    with tempfile.TemporaryDirectory(prefix="robust-detect-") as name:
        ground = Ground(Path(name))
        try:
            jobs: dict[str, Callable[[], list[float]]] = {
                fault: lambda fault=fault: measure(ground, fault, rounds, chance) for fault in FAULTS
            }
            jobs["mount_hung"] = lambda: measure_hung(ground)
            for fault, job in jobs.items():
                try:
                    figures = shown(job(), LIMITS_S.get(fault))
                except (CannotError, OSError) as error:
                    result["left_out"][fault] = str(error)
                    print(f"{fault:24} left out: {error}", flush=True)
                    continue
                result["faults"][fault] = figures
                print(f"{fault:24} median {figures['median_s']:.3f} s, max {figures['max_s']:.3f} s", flush=True)
            result["cost"] = measure_cost(ground, cost_s)
            print(f"{'cost':24} {result['cost']['cpu_share_of_a_core']:.3%} of a core", flush=True)
        finally:
            ground.end()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cost-s", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if INSIDE not in os.environ:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            raise SystemExit("detect: needs root and unshare, for namespaces, cgroups and the kernel's log")
        os.environ[INSIDE] = "1"
        inside = ["unshare", "--net", "--mount", "--", sys.executable, str(HERE / "detect.py"), *sys.argv[1:]]
        os.execvp(inside[0], inside)
    result = bench(options.rounds, options.cost_s, options.seed)
    print(json.dumps(result))
    return 0 if all(each.get("within_limit", True) for each in result["faults"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
