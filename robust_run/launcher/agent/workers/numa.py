"""CPU affinity of each worker, for `--numa-binding`. The launcher applies the answer with `sched_setaffinity`.

node          all CPUs of the NUMA node of the worker's GPU
socket        all CPUs of all NUMA nodes of that node's socket
exclusive     a share of the node's physical cores that no other worker gets, with all their hardware threads
core-complex  the cores that share one last-level cache, another one for each worker as long as there are enough

Local rank r uses GPU r; where there are more workers than GPUs they start again at the first. Without GPUs the workers
are dealt over the NUMA nodes in turn. Only CPUs this process may use are ever given out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from robust_run.errors import UserError
from robust_run.launcher.agent.workers.devices import visible_gpus
from robust_run.launcher.agent.workers.this_machine import RealFiles
from robust_run.launcher.model.world import Files

Cpus = frozenset[int]
_NODES = "/sys/devices/system/node"
_CPUS = "/sys/devices/system/cpu"


class Topology(Protocol):
    """Where CPUs and GPUs are."""

    def nodes(self) -> tuple[int, ...]:
        """NUMA nodes with at least one CPU that may be used, in order."""
        ...

    def cpus_of_node(self, node: int) -> Cpus:
        """CPUs of a NUMA node that may be used."""
        ...

    def socket_of(self, cpu: int) -> int:
        """Return the socket a CPU is in."""
        ...

    def core_of(self, cpu: int) -> int:
        """Return a number that the hardware threads of one core share."""
        ...

    def complex_of(self, cpu: int) -> int:
        """Return a number that the CPUs of one last-level cache share."""
        ...

    def gpu_nodes(self) -> tuple[int, ...]:
        """Return the NUMA node of each GPU, as workers count them; none without GPUs. Raises UserError if unknown."""
        ...


def cpus_for_ranks(mode: str, nproc: int, topology: Topology) -> tuple[Cpus, ...]:
    """Return the CPUs of each local rank. Raises UserError where workers cannot be bound as `mode` asks."""
    home = _homes(nproc, topology)
    used = set(home[:nproc])
    for node in used:
        if not topology.cpus_of_node(node):
            raise UserError(
                f"--numa-binding {mode}: this job may use no CPU of NUMA node {node}, where GPU {home.index(node)} is;"
                " ask the scheduler for CPUs near the GPUs, or leave the option out"
            )
    if mode == "node":
        return tuple(topology.cpus_of_node(home[rank]) for rank in range(nproc))
    if mode == "socket":
        return tuple(_socket_cpus(home[rank], topology) for rank in range(nproc))
    if mode == "exclusive":
        shares = {node: _exclusive_shares(node, home.count(node), topology) for node in used}
    elif mode == "core-complex":
        shares = {node: _complexes(node, topology) for node in used}
    else:
        raise UserError(f"--numa-binding {mode!r}: use node, socket, exclusive or core-complex")
    place = [home[:slot].count(node) for slot, node in enumerate(home)]
    return tuple(shares[home[rank]][place[rank] % len(shares[home[rank]])] for rank in range(nproc))


def _homes(nproc: int, topology: Topology) -> list[int]:
    """Return the NUMA node of each place a worker can have: one per GPU, and one more for each worker beyond them."""
    gpu_nodes = topology.gpu_nodes()
    nodes = topology.nodes()
    if not nodes:
        raise UserError("--numa-binding: /sys shows no NUMA node on this machine; leave the option out")
    cycle = gpu_nodes or nodes
    return [cycle[slot % len(cycle)] for slot in range(max(nproc, len(gpu_nodes)))]


def _socket_cpus(node: int, topology: Topology) -> Cpus:
    sockets = {topology.socket_of(cpu) for cpu in topology.cpus_of_node(node)}
    on_socket = (
        topology.cpus_of_node(other)
        for other in topology.nodes()
        if sockets & {topology.socket_of(cpu) for cpu in topology.cpus_of_node(other)}
    )
    return frozenset().union(*on_socket)


def _exclusive_shares(node: int, workers: int, topology: Topology) -> list[Cpus]:
    """Divide a node's cores into runs of neighbours; the first ones get a core more if it does not come out even."""
    cores = sorted(_grouped(topology.cpus_of_node(node), topology.core_of), key=min)
    if len(cores) < workers:
        raise UserError(
            f"--numa-binding exclusive: NUMA node {node} has {len(cores)} cores for {workers} workers or GPUs;"
            " use --numa-binding node, or fewer workers"
        )
    size, extra = divmod(len(cores), workers)
    ends = [(index + 1) * size + min(index + 1, extra) for index in range(workers)]
    starts = [0, *ends[:-1]]
    return [frozenset().union(*cores[start:end]) for start, end in zip(starts, ends, strict=True)]


def _complexes(node: int, topology: Topology) -> list[Cpus]:
    """Return the core complexes of a node, the ones with most usable CPUs first."""
    groups = _grouped(topology.cpus_of_node(node), topology.complex_of)
    return sorted(groups, key=lambda cpus: (-len(cpus), min(cpus)))


def _grouped(cpus: Iterable[int], key: Callable[[int], int]) -> list[Cpus]:
    groups: dict[int, set[int]] = {}
    for cpu in cpus:
        groups.setdefault(key(cpu), set()).add(cpu)
    return [frozenset(group) for group in groups.values()]


class SysfsTopology:
    """The topology that /sys and NVIDIA's driver describe."""

    def __init__(self, files: Files, env: Mapping[str, str], usable: Cpus) -> None:
        self._files = files
        self._env = env
        self._usable = usable

    def nodes(self) -> tuple[int, ...]:
        """See `Topology`."""
        names = (name.removeprefix("node") for name in self._files.names(_NODES) if name.startswith("node"))
        return tuple(sorted(node for node in map(int, filter(str.isdecimal, names)) if self.cpus_of_node(node)))

    def cpus_of_node(self, node: int) -> Cpus:
        """See `Topology`."""
        return parse_cpu_list(self._files.text(f"{_NODES}/node{node}/cpulist")) & self._usable

    def socket_of(self, cpu: int) -> int:
        """See `Topology`. A machine that does not say counts as one socket."""
        text = self._files.text(f"{_CPUS}/cpu{cpu}/topology/physical_package_id").strip()
        return int(text) if text.lstrip("-").isdecimal() else 0

    def core_of(self, cpu: int) -> int:
        """See `Topology`. A CPU that does not say is a core of its own."""
        siblings = parse_cpu_list(self._files.text(f"{_CPUS}/cpu{cpu}/topology/thread_siblings_list"))
        return min(siblings, default=cpu)

    def complex_of(self, cpu: int) -> int:
        """See `Topology`. Without caches to read, the CPUs of a core are a complex."""
        folder = f"{_CPUS}/cpu{cpu}/cache"
        highest, sharing = -1, Cpus()
        for name in self._files.names(folder):
            level = self._files.text(f"{folder}/{name}/level").strip()
            kind = self._files.text(f"{folder}/{name}/type").strip()
            if kind in ("Unified", "Data") and level.isdecimal() and int(level) > highest:
                highest, sharing = int(level), parse_cpu_list(self._files.text(f"{folder}/{name}/shared_cpu_list"))
        return min(sharing, default=self.core_of(cpu))

    def gpu_nodes(self) -> tuple[int, ...]:
        """See `Topology`."""
        if self._files.kind("/dev/nvidiactl") == "missing":
            if self._files.kind("/dev/kfd") != "missing":
                raise UserError(
                    "--numa-binding finds only NVIDIA's GPUs so far, and this node has AMD's; leave the option out"
                )
            return ()
        gpus = visible_gpus(self._files, self._env)
        if gpus is None:
            chosen = self._env.get("CUDA_VISIBLE_DEVICES")
            raise UserError(
                f"--numa-binding: cannot tell which GPUs the workers get (CUDA_VISIBLE_DEVICES={chosen!r}, or GPUs"
                " hidden from this container); set CUDA_VISIBLE_DEVICES to plain numbers, or leave the option out"
            )
        return tuple(self._node_of_gpu(gpu.pci_address) for gpu in gpus)

    def _node_of_gpu(self, pci_address: str) -> int:
        text = self._files.text(f"/sys/bus/pci/devices/{pci_address.lower()}/numa_node").strip()
        if not text and len(self.nodes()) > 1:
            raise UserError(f"--numa-binding: /sys does not say where GPU {pci_address} is; leave the option out")
        # A machine with one NUMA node says -1.
        return int(text) if text.isdecimal() else 0


def system_topology(env: Mapping[str, str], root: str = "") -> SysfsTopology:
    """Return this machine's topology, or that of a tree under `root` which stands for a machine."""
    return SysfsTopology(RealFiles(root), env, frozenset(os.sched_getaffinity(0)))


def parse_cpu_list(text: str) -> Cpus:
    """Return the numbers of a kernel list like `0-3,8`; none for an empty one. Raises UserError for anything else."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.partition("-")
        if not part:
            continue
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(
                f"--numa-binding: /sys has a list of CPUs that cannot be read: {text.strip()!r}; leave the option out"
            )
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)
