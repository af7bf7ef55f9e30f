"""The rules as they are where no file says otherwise. Figures and order are ByteRobust's (4.1 to 4.3) where it gives any.

- An event that only a broken machine makes: evict at once, skip the tests.
- Network alerts: tolerated; 2 within 5 min evict.
- What a wrong program makes too (an illegal memory access: two times out of three) never evicts by itself.
- NaN, a loss or gradient norm 5 times what it was: tests.
- A user's exception: the code, not the machine.
- What shows only that a peer failed (a broken connection) is no cause.
"""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.health.rules.types import HealthRule
from robust_run.health.signs.xids import LOST, XIDS

_BY_BYTEROBUST = "ByteRobust 4.1"


def _evict(why: str) -> HealthRule:
    return HealthRule(confidence="high", rung="evict", why=why)


def _network(why: str) -> HealthRule:
    return HealthRule(
        confidence="medium", rung="evict", why=why, count=2, within_s=300.0, apart_s=5.0, counts_as="network"
    )


def _twice(why: str) -> HealthRule:
    """Evict at the second alert within 5 min, of the same kind."""
    return HealthRule(confidence="medium", rung="evict", why=why, count=2, within_s=300.0, apart_s=5.0)


def _diagnose(why: str) -> HealthRule:
    return HealthRule(confidence="medium", rung="diagnose", why=why)


def _doubt(why: str) -> HealthRule:
    """Test, though the machine is as likely innocent."""
    return HealthRule(confidence="low", rung="diagnose", why=why)


def _report(why: str) -> HealthRule:
    return HealthRule(confidence="low", rung="report", why=why)


_GPUS: dict[str, HealthRule] = {
    "gpu.lost": _evict(f"{_BY_BYTEROBUST}: GPU unavailable"),
    "gpu.hung": _evict(f"{_BY_BYTEROBUST}: GPU driver hang, seen in 10 s"),
    "gpu.driver": _evict("the driver cannot use the GPU"),
    "gpu.ecc": _evict("ByteRobust table 1: GPU memory error"),
    "gpu.remap_failed": _evict("the GPU's memory has no spare rows left"),
    "gpu.remap_pending": _report("mended at the GPU's next reset"),
    "gpu.nvlink_down": _evict("a link between GPUs of the node is gone"),
    "gpu.nvlink_errors": _twice("a bad link between GPUs of the node"),
    "gpu.pcie_width": _diagnose("Minder table 1: PCIe downgrades are 7 % of faults"),
    "gpu.pcie_narrow": _report("it was so before the job"),
    "gpu.pcie_speed": _report("links slow down to save power too"),
    "gpu.hot": _report(f"{_BY_BYTEROBUST}: only together with a loss of throughput"),
    "gpu.throttled": _report("only together with a loss of throughput"),
    "gpu.xid": _report("an error of a kind that is not known to need more"),
    "gpu_memory.hung": _diagnose("the driver does not answer when asked for counters"),
}

_HOST: dict[str, HealthRule] = {
    "kernel.panic": _evict("ByteRobust table 1: OS kernel panic"),
    "kernel.oops": _evict(f"{_BY_BYTEROBUST}: OS kernel fault, seen in 2 s"),
    "kernel.lockup": _doubt(
        "a CPU did nothing but one thing for 20 s and more; a machine with too much to do shows it, too"
    ),
    "kernel.rcu_stall": _doubt("as kernel.lockup"),
    "kernel.hung_task": HealthRule(
        confidence="low", rung="inquire", why="a process waits in the kernel; for what is to be seen"
    ),
    "hardware.machine_check": _evict("uncorrectable hardware error"),
    "hardware.machine_check_logged": _report("corrected or not: the line does not say"),
    "hardware.corrected": _report("corrected"),
    "hardware.pcie": _diagnose("uncorrectable error of a PCIe device"),
    "memory.oom_kill": HealthRule(
        confidence="medium", rung="relaunch", why="the program needs more memory than it may have; not the node's fault"
    ),
    "memory.oom_kill_in_cgroup": _report("a cgroup that others are in, too: perhaps not the job's process"),
    "memory.oom_kill_on_node": _report("a process that is not the job's"),
    "memory": _report("a shortage, not a fault"),
    "cpu": _report("ByteRobust table 1: CPU overload; people decide whose work goes"),
    "clock": _report("no fault of training"),
}

_DISKS: dict[str, HealthRule] = {
    "disk.read_only": _evict(f"{_BY_BYTEROBUST}: disk fault"),
    "disk.lost": _evict(f"{_BY_BYTEROBUST}: disk fault"),
    "disk.error": _twice("a disk may err once"),
    "disk.timeout": _twice("a disk may be slow once"),
    "disk.stuck": _doubt("requests that do not end; they may yet"),
    "disk.hung": _doubt("a file system that does not answer; all nodes may use it"),
    "disk": _report("full or slow: people decide what goes"),
    "fsync.hung": _doubt("a durable write that does not end; it may yet"),
    "mount.stale": _twice("ByteRobust table 1: file system mount; a stale handle does not heal by itself"),
    "mount.hung": _twice("ByteRobust table 1: file system mount"),
    "mount.error": _twice("ByteRobust table 1: file system mount"),
    "mount.read_only": _report(
        "who serves it, or who mounted it, made it so: no disk of the node's, and often on all nodes at once"
    ),
    "mount.not_responding": _report("the kernel's own word for a server that is slow to answer"),
    "store": _report("ByteRobust table 1: HDFS error; the store's fault, not the node's"),
    "image": _report("the image's origin, its cache or the way there; disks of the node speak for themselves"),
}

_LINKS: dict[str, HealthRule] = {
    "network.link_down": _network(f"{_BY_BYTEROBUST}: 2 alerts within 5 min"),
    "network.link_flap": _network(f"{_BY_BYTEROBUST}: 2 alerts within 5 min"),
    "network.device_hung": _network(f"{_BY_BYTEROBUST}: 2 alerts within 5 min"),
    "network.errors": _network(f"{_BY_BYTEROBUST}: 2 alerts within 5 min"),
    "network.link_slow": _diagnose("a port that runs at a lower speed than at first"),
    "network.silent": HealthRule(
        confidence="medium", rung="inquire", why=f"{_BY_BYTEROBUST}: no RDMA traffic for 10 min"
    ),
    "network": _report("losses on the way are the fabric's as often as the node's"),
}

_NUMBERS: dict[str, HealthRule] = {
    "numbers.reduced": _diagnose(
        "AEGIS: what all ranks of a group have reduced together is the same on each, bit by bit"
    ),
}

_TRAINING: dict[str, HealthRule] = {
    "training.nan": _diagnose(f"{_BY_BYTEROBUST}: NaN"),
    "training.jump": _diagnose(f"{_BY_BYTEROBUST}: loss or gradient norm 5 times what it was"),
    "training.jump.stays": _diagnose(f"{_BY_BYTEROBUST}: as training.jump, and it is no batch of odd data"),
    "training.slow": HealthRule(
        confidence="low", rung="inquire", why=f"{_BY_BYTEROBUST}: low utilisation; aggregation analysis"
    ),
    "training.hung": _report("the file system of the event files does not answer: mounts and disks say so too"),
}

_WORKERS: dict[str, HealthRule] = {
    "worker.user_exception": HealthRule(
        confidence="high", rung="rollback", why=f"{_BY_BYTEROBUST}: user-space exception"
    ),
    "worker.usage": HealthRule(confidence="high", rung="stop", why="the same arguments fail again"),
    "worker.gpu_lost": _evict(f"{_BY_BYTEROBUST}: GPU unavailable"),
    "worker.ecc": _evict("ByteRobust table 1: GPU memory error"),
    "worker.illegal_memory_access": _doubt("ByteRobust table 2: user code in 41 of 62 cases"),
    "worker.cuda": _doubt("ByteRobust table 1: CUDA error, the most frequent symptom; of many causes"),
    "worker.nccl": _doubt("ByteRobust 4.2: an NCCL error starts the tests of GPU, node and neighbours"),
    "worker.nan": _diagnose(f"{_BY_BYTEROBUST}: NaN"),
    "worker.device_memory": HealthRule(
        confidence="low", rung="relaunch", why="the program's own need, but for fragmentation"
    ),
    "worker.host_memory": HealthRule(confidence="low", rung="relaunch", why="the program's own need, or a neighbour's"),
    "worker.storage": HealthRule(
        confidence="low", rung="relaunch", why="ByteRobust table 1: HDFS error; the store's fault"
    ),
    "worker.native_crash": _doubt("code or machine: the tests tell"),
    "worker.mismatch": _report("ranks called different collectives: the program's mistake, on any machine"),
    "worker.peer": _report("shows that a peer failed"),
}


def _xids() -> dict[str, HealthRule]:
    """A row for each listed Xid."""
    rows = {}
    for number, (kind, meaning) in XIDS.items():
        if kind == "device":
            rule = _evict(f"Xid {number}: {meaning}")
        elif kind == "unsure":
            rule = _doubt(f"Xid {number}: {meaning}")
        else:
            rule = _report(f"Xid {number}: {meaning}" + ("; mostly the program's" if kind == "program" else ""))
        if number not in LOST:
            rows[f"gpu.xid.{number}"] = rule
    return rows


_PEERS: dict[str, HealthRule] = {
    "outlier": _report("Minder: a node apart from its peers; a symptom, weighed together with a hang or a crash there"),
    "outlier.stays": _report(
        "Minder: a node that stays apart while the job makes steps; --on-outlier says what follows"
    ),
}

DEFAULTS: Mapping[str, HealthRule] = {
    **_PEERS,
    **_GPUS,
    **_xids(),
    **_HOST,
    **_DISKS,
    **_LINKS,
    **_NUMBERS,
    **_TRAINING,
    **_WORKERS,
}
