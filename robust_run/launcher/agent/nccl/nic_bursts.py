"""Reads what each NIC moves, a hundred times a second, for a moment: what an average of a second hides (MegaScale, arXiv
2402.15627, section 5.2). Files stay open. Where a driver asks the card for each number, slices are as long as that takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise

from robust_run.health.sensors.files import names_in, number, to_decimal
from robust_run.health.sensors.links.ethtool import DriverStatistics, pauses
from robust_run.health.signs.nic_bursts import NicBurst

#: Length of a burst, and of the slices that it is made of.
BURST_S, SLICE_S = 0.5, 0.01
MOST_PORTS = 32
#: Marks of congestion (ECN), where the driver shows them; frames that ask for a pause (PFC) are counted with them.
_MARKS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")
_WAITS = "port_xmit_wait"
_WORD_BYTES = 4


def take(
    sys: str,
    monotonic_s: Callable[[], float],
    sleep: Callable[[float], None],
    driver_statistics: Callable[[str], Mapping[str, int]] | None = None,
) -> NicBurst | None:
    """Return what the ports moved in the next half second; None where there is none. `sys`: where /sys is. Takes that long.

    `driver_statistics`: of an interface, by name; None: the driver is asked.
    """
    ask = driver_statistics or DriverStatistics()
    files = _files(sys)
    opened = {path: _open(path) for paths, _ in files.values() for path in paths}
    try:
        marks = {name: _marks(name, folder, ask) for name, (_, folder) in files.items()}
        begun_s, rows = monotonic_s(), [{name: _moved(paths, opened) for name, (paths, _) in files.items()}]
        for place in range(1, round(BURST_S / SLICE_S) + 1):
            sleep(max(0.0, begun_s + place * SLICE_S - monotonic_s()))
            rows.append({name: _moved(paths, opened) for name, (paths, _) in files.items()})
        took_s = monotonic_s() - begun_s
        later = {name: _marks(name, files[name][1], ask) - count for name, count in marks.items()}
    finally:
        for descriptor in opened.values():
            with suppress(OSError):
                os.close(descriptor)
    moved = {name: tuple(max(0, b[name] - a[name]) for a, b in pairwise(rows)) for name in files}
    return NicBurst(length_s=took_s, moved=moved, marks={n: max(0, c) for n, c in later.items()}) if files else None


def _files(sys: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """Return for each port the files that count bytes, and the folder of its other counters; RDMA ports where there are any."""
    root = f"{sys}/class/infiniband"
    found: dict[str, tuple[tuple[str, ...], str]] = {}
    for device in names_in(root, MOST_PORTS):
        for port in names_in(f"{root}/{device}/ports", MOST_PORTS):
            folder = f"{root}/{device}/ports/{port}"
            found[f"{device}/{port}"] = tuple(f"{folder}/counters/port_{way}_data" for way in ("xmit", "rcv")), folder
    if not found:
        root = f"{sys}/class/net"
        devices = [name for name in names_in(root, 4 * MOST_PORTS) if os.path.exists(f"{root}/{name}/device")]
        found = {name: (tuple(f"{root}/{name}/statistics/{way}_bytes" for way in ("tx", "rx")), "") for name in devices}
    return dict(list(found.items())[:MOST_PORTS])


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1


def _moved(paths: tuple[str, ...], opened: Mapping[str, int]) -> int:
    """Return the bytes that a port has sent and received so far."""
    moved = 0
    for path in paths:
        with suppress(OSError):
            count = to_decimal(os.pread(opened[path], 64, 0).decode("ascii", "replace")) if opened[path] >= 0 else None
            moved += (count or 0) * (_WORD_BYTES if path.endswith("_data") else 1)
    return moved


def _marks(name: str, folder: str, ask: Callable[[str], Mapping[str, int]]) -> int:
    """Return what has been counted of congestion; of a port of RDMA with what its Ethernet interfaces say of pauses."""
    counted = [number(f"{folder}/hw_counters/{each}") for each in _MARKS] if folder else []
    waits = number(f"{folder}/counters/{_WAITS}") if folder else 0
    interfaces = names_in(f"{folder}/../../device/net", MOST_PORTS) if folder else (name,)
    asked = [found.sent + found.received for each in interfaces if (found := pauses(ask(each))) is not None]
    return sum(count or 0 for count in (*counted, waits, *asked))
