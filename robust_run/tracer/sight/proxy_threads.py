"""What the kernel tells of the threads that move NCCL's data, and of the network that they use.

NCCL's proxy thread polls without a pause as long as it has work. One that got no CPU at all between two looks stands still: it is
stopped, blocked or starved, and what its counters say of GPUs and of the network means nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from robust_run.tracer.nccl.types import Communicator, NcclTrace, Network, Thread
from robust_run.tracer.sight.source_lines import DESCRIPTORS

#: Of threads by their number, for how long each has run, in ns.
Ran = dict[int, int]
#: A wrapper, and what it starts: the rank is at most so many processes below what the launcher started.
_DEPTH = 8
#: Devices of networks that write to a peer's memory themselves: InfiniBand, RoCE and EFA, Slingshot, Omni-Path, BXI.
_RDMA = ("/dev/infiniband/", "/dev/cxi", "/dev/hfi1", "/dev/portals")
#: Plugins for other networks, of which nothing is known here.
_PLUGIN = "libnccl-net"
MAPS_BYTES = 8 << 20


def ran_ns(trace: NcclTrace, started: int, root: str = "/proc") -> Ran:
    """Return how long the proxy threads of a rank have run. Nothing where its process is not what was started, or below it, as it
    is where the rank counts processes for itself (a container). Never raises."""
    pid = trace.glance.pid
    threads = {one.thread for one in trace.communicators if one.thread and one.closed_s is None}
    if not threads or not _is_below(pid, started, root):
        return {}
    found = {}
    for thread in threads:
        try:
            with open(f"{root}/{pid}/task/{thread}/schedstat") as file:
                found[thread] = int(file.read(64).split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return found


def judged(trace: NcclTrace, before: Mapping[int, int], now: Mapping[int, int]) -> NcclTrace:
    """Return a trace that says of each communicator what its thread did between two looks. Pure."""
    if not now or before is now:
        return trace
    return msgspec.structs.replace(
        trace,
        communicators=tuple(
            msgspec.structs.replace(one, proxy=_proxy_of(one, before, now)) for one in trace.communicators
        ),
    )


def _proxy_of(communicator: Communicator, before: Mapping[int, int], now: Mapping[int, int]) -> Thread:
    thread = communicator.thread
    if communicator.closed_s is not None or thread not in before or thread not in now:
        return ""
    return "runs" if now[thread] > before[thread] else "still"


def network_of(trace: NcclTrace, started: int, root: str = "/proc") -> Network:
    """Return what moves a rank's bytes: rdma where its process has such a device open, else sockets; "" where it cannot be looked
    at, or a plugin of NCCL's may do something else. Never raises."""
    pid = trace.glance.pid
    if not _is_below(pid, started, root):
        return ""
    opened = _opened(pid, root)
    if any(name.startswith(_RDMA) for name in opened):
        return "rdma"
    return "sockets" if any(name.startswith("socket:") for name in opened) and not _has_plugin(pid, root) else ""


def _opened(pid: int, root: str) -> list[str]:
    """Return what a process has open; nothing where that is too much to look through."""
    folder, found = f"{root}/{pid}/fd", []
    try:
        numbers = os.listdir(folder)
    except OSError:
        return []
    for number in numbers if len(numbers) <= DESCRIPTORS else ():
        try:
            found.append(os.readlink(f"{folder}/{number}"))
        except OSError:
            continue
    return found


def _has_plugin(pid: int, root: str) -> bool:
    """Whether a process has a network plugin of NCCL's loaded, or may have."""
    try:
        with open(f"{root}/{pid}/maps", errors="replace") as file:
            maps = file.read(MAPS_BYTES)
    except OSError:
        return True
    return _PLUGIN in maps or len(maps) >= MAPS_BYTES


def _is_below(pid: int, started: int, root: str) -> bool:
    """Whether a process is another, or below it."""
    for _ in range(_DEPTH):
        if pid == started:
            return True
        if pid <= 1:
            return False
        try:
            with open(f"{root}/{pid}/stat") as file:
                pid = int(file.read(4096).rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False
