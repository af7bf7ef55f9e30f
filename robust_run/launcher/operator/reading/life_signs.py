"""Liveness of a job whose controller does not answer: the lock on its journal, its process, who leads it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from robust_run.clock import SystemClock
from robust_run.errors import PlatformError, RobustRunError
from robust_run.health.sensors.job import mountinfo
from robust_run.health.sensors.job.mountinfo import MountinfoLine
from robust_run.health.sensors.types import SensorWorld
from robust_run.launcher.operator.reading.client import this_machine
from robust_run.launcher.operator.reading.place import ApiEndpoint, read_place
from robust_run.launcher.operator.views.life import LifeSigns
from robust_run.launcher.records.journal import is_claimed

if TYPE_CHECKING:
    from robust_run.launcher.operator.reading.client import NoAnswerError
    from robust_run.launcher.operator.reading.dead import DeadJob

#: File systems that are no other machine's, and no container's that is gone.
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "jfs"))
#: Clocks and a start that took its time: a process that is younger than the journal by more is another that got its number.
YOUNGER_S = 60.0


def signs_of(dead: DeadJob, run_directory: str, silence: NoAnswerError | None) -> LifeSigns:
    """Return what can be found out of a job whose controller does not answer; `silence`: why not. Never raises."""
    if dead.state.finish is not None:
        return LifeSigns(run_directory=run_directory, is_over=True)
    here, place = this_machine(), place_of(run_directory)
    host = place.host if place is not None else dead.last_host
    says = str(silence) if silence is not None else "its controller is gone"
    is_refused = silence is None or silence.refused
    if place is None and host != here.host and is_refused:  # nothing says where it serves, if it has begun to
        says, is_refused = f"its controller runs or ran on {host}, which cannot be asked from here", False
    is_this_host = host == here.host and (place is None or here.has(place))
    if place is not None and host == here.host and not is_this_host and is_local(run_directory):
        # No other machine writes to a disk of this one: it was this one, before it was started anew.
        says, is_refused, is_this_host = f"{host} was started anew since its controller ran", True, True
    began_on, pid = dead.first_process
    is_first = place is None and began_on == here.host and may_be(pid, dead.started_unix_s)
    return LifeSigns(
        run_directory=run_directory,
        host=host,
        is_this_host=is_this_host,
        silence=says,
        is_refused=is_refused,
        is_claimed=is_claimed(os.path.join(run_directory, "journal.jsonl")),
        process=pid if is_first else 0,
        led_by=_led_by(dead, run_directory),
    )


def is_local(folder: str, mounts: tuple[MountinfoLine, ...] | None = None) -> bool:
    """Whether a folder lies on a file system that one machine alone has mounted."""
    if mounts is None:
        try:
            mounts = mountinfo.read(SensorWorld())
        except OSError:
            return False
    found = mountinfo.mount_of(os.path.realpath(folder), mounts)
    return found is not None and found.kind in LOCAL


def may_be(pid: int, since_unix_s: float) -> bool:
    """Whether a process of this number exists that was there when a journal was begun."""
    if pid <= 0:
        return False
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            booted_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, IndexError, StopIteration):
        return os.path.exists(f"/proc/{pid}")
    return not since_unix_s or booted_s + ticks / os.sysconf("SC_CLK_TCK") <= since_unix_s + YOUNGER_S


def place_of(run_directory: str) -> ApiEndpoint | None:
    """Return where a controller says that it answers; None where it does not, or what it says cannot be read."""
    try:
        return read_place(run_directory)
    except PlatformError:
        return None


def _led_by(dead: DeadJob, run_directory: str) -> str:
    """Return who leads a job with candidates, as `--resume` finds it; the lock on the journal is not theirs."""
    many = dead.spec.many
    if many is None or many.controller_standby == 0:
        return ""
    import asyncio

    from robust_run.launcher.controller.leadership.leaders import who_leads
    from robust_run.launcher.controller.leadership.types import JobFinished

    try:
        leader = asyncio.run(who_leads(dead.spec, many, run_directory, SystemClock()))
    except JobFinished as finished:
        return f"the last that led it said that it is over: {finished}"
    except RobustRunError as error:
        return f"who leads it cannot be known here: {error}"
    return "" if leader is None else f"{leader.host} controls it now at {leader.address} (term {leader.term})"
