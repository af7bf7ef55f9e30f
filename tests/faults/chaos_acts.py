"""Does to simulated hosts what a schedule of `chaos.py` says, and undoes it when its time has come.

Each act names the hosts that it struck, so that a test can tell a host that was struck from one that was lost for nothing, and
that no fault went by unnoticed. An act that finds nothing to strike (the controller is just moving) waits for it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos import FOR_GOOD, Fault
from clusters import ClusterJob, outside
from host_process import HostProcess
from hosts import Cluster, Host
from jobs import wait_for

NOTHING_TO_STRIKE_S = 60.0
JUMP_S = 3600
FREE_BYTES = 4096
"""What is left of a disk that is full: less than any line that is written needs for long."""


def nothing() -> None:
    """Undo nothing."""


@dataclass
class Struck:
    """What an act did."""

    fault: Fault
    hosts: tuple[Host, ...]
    undo: Callable[[], None]
    undo_at_s: float
    """On our monotonic clock."""
    cuts_leader: bool = False
    """The host led the job: to its controller all others looked as if they were gone."""


@dataclass
class Ground:
    """Where a schedule is carried out."""

    cluster: Cluster
    job: ClusterJob
    disk: Path
    """A file system of its own, on which the run directory is."""
    clocks: Path
    """A folder with a file for each host, from which its wall clock is read; it is missing if no clock is to jump."""

    def join(self, host: Host) -> None:
        """Start the job's command on a host, unless that is off or has a launcher that lives."""
        newest = next((each for each in reversed(self.job.launchers) if each.host is host), None)
        if host._init and (newest is None or newest.process.poll() is not None):
            self.job.join(host, env=clock_of(self.clocks / host.name) if self.clocks.exists() else None)


CLOCK = """
import os
import time

_file, _true_s, _shift = os.environ.get("TEST_CLOCK_FILE", ""), time.time, [0.0, 0.0]


def _time():
    now_s = time.monotonic()
    if now_s >= _shift[1]:
        try:
            with open(_file) as file:
                _shift[0] = float(file.read())
        except (OSError, ValueError):
            pass
        _shift[1] = now_s + 0.2
    return _true_s() + _shift[0]


if _file:
    time.time = _time
    time.time_ns = lambda: int(_time() * 1e9)
"""
"""A `sitecustomize` that shifts what a host's Python processes take for the time of day. libfaketime also bends the timeouts of
locks, which no clock that jumps does."""


def clock_of(file: Path) -> dict[str, str]:
    """Return the variables that have a process read the shift of its wall clock from a file, again every moment."""
    return {"TEST_CLOCK_FILE": str(file)}


def strike(fault: Fault, place: Ground) -> Struck:
    """Do it, as soon as there is something to do it to."""
    leads = fault.act.startswith("cut") and any(_pids("controller", place.cluster[fault.host], place))
    hosts, undo = _ACTS[fault.act.partition(" ")[0]](fault, place)
    return Struck(fault, hosts, undo, time.monotonic() + fault.lasts_s, leads)


def _kill(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host, pids = _found(fault, place)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if fault.act in FOR_GOOD and fault.lasts_s:
        return (host,), lambda: _come_back(host, place)
    return (host,), nothing


def _stop(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host, pids = _found(fault, place)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)

    def undo() -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        _come_back(host, place, fault.lasts_s)

    return (host,), undo


def _cut(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host = place.cluster[fault.host]
    others = [other for other in place.cluster if other is not host]
    if fault.act == "cut":
        host.cut()
    elif fault.act == "cut from others":
        host.cut_from(*others, one_way=True)
    else:
        for other in others:
            other.cut_from(host, one_way=True)

    def undo() -> None:
        host.heal()
        _come_back(host, place, NOTHING_TO_STRIKE_S / 3)

    return (host,), undo


def _power(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host = place.cluster[fault.host]
    host.power_off()

    def undo() -> None:
        host.power_on()
        place.join(host)

    return (host,), undo if fault.lasts_s else nothing


def _late(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host = place.cluster[fault.host]
    place.join(host)
    return (host,), nothing


def _full(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    filler = place.disk / "filler"
    with filler.open("wb") as file:
        while (free := shutil.disk_usage(place.disk).free) > FREE_BYTES:
            with suppress(OSError):  # the job has written meanwhile
                at = os.fstat(file.fileno()).st_size
                os.posix_fallocate(file.fileno(), at, free - FREE_BYTES)
    return (place.cluster[fault.host],), filler.unlink


def _clock(fault: Fault, place: Ground) -> tuple[tuple[Host, ...], Callable[[], None]]:
    host = place.cluster[fault.host]
    part = place.clocks / f"{host.name}.part"
    part.write_text(f"{JUMP_S if fault.host % 2 else -JUMP_S:+d}\n")
    part.replace(place.clocks / host.name)
    return (host,), nothing


_ACTS: dict[str, Callable[[Fault, Ground], tuple[tuple[Host, ...], Callable[[], None]]]] = {
    "kill": _kill,
    "stop": _stop,
    "cut": _cut,
    "power": _power,
    "late": _late,
    "full": _full,
    "clock": _clock,
}


def _found(fault: Fault, place: Ground) -> tuple[Host, list[int]]:
    """Return a host that has such a process now, the one of the fault if it does, and their pids as we see them."""
    what = fault.act.partition(" ")[2]
    hosts = [place.cluster[fault.host], *(host for host in place.cluster if host.index != fault.host)]

    def look() -> tuple[Host, list[int]] | None:
        return next(((host, pids) for host in hosts if (pids := list(_pids(what, host, place)))), None)

    found: tuple[Host, list[int]] = wait_for(look, f"a {what} to strike", NOTHING_TO_STRIKE_S)
    return found


def _pids(what: str, host: Host, place: Ground) -> Iterator[int]:
    if not host._init or all(launcher.host is not host for launcher in place.job.launchers):
        return
    launcher = place.job.on(host)
    if launcher.process.poll() is not None:
        return
    if what == "rank":
        newest = max((worker.attempt for worker in place.job.workers()), default=0)
        pids = (w.pid for w in place.job.workers() if w.host == host.name and w.attempt == newest)
        yield from filter(None, (outside(host, pid) for pid in pids))
    elif what == "controller":
        yield from launcher.controller_pids()
    else:
        with suppress(AssertionError):
            agent = launcher.agent_pid()
            controllers = launcher.controller_pids()
            guard = launcher.guard_pid()
            yield from {"agent": [agent], "guard": [guard], "launcher": [*controllers, agent, guard]}[what]


def _come_back(host: Host, place: Ground, within_s: float = NOTHING_TO_STRIKE_S) -> None:
    """Start the same command again on a host whose launcher has ended, as whatever looks after a node would do.

    A launcher that was stopped or cut off may go on, or may find that its lease is over and end: that takes a moment.
    """
    process: HostProcess = place.job.on(host).process
    with suppress(subprocess.TimeoutExpired):
        process.wait(min(within_s, 10.0))
    place.join(host)
