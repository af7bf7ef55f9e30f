"""From how a worker ended to an event that the rules know: what it said, and what the node's sensors saw at that moment. Pure.

A worker's words are a symptom. What the kernel says of it goes first: a worker killed for memory says nothing at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.health.sensors.types import Event
from robust_run.health.types import Finding

SIGKILL = 9
COUNTED = ("memory.oom_kill", "memory.oom_kill_in_cgroup")
"""Kills that a cgroup counts: of the job's own, and of one that others are in, too."""
KILLED = (-SIGKILL, 128 + SIGKILL)
"""Exit codes of a process that was killed, as Python and as a shell give them."""
PERHAPS = "perhaps the kernel killed it because memory ran out"
AT_ONCE_S = 0.5
"""A kill that was counted earlier than this before the death may well be another process's: a cgroup is shared."""
NEAR_S = 5.0
"""A kill that the kernel counted so shortly before or after a worker's death was that worker's, if it was killed by SIGKILL."""


def event_of(
    rank: int, pid: int, exit_code: int | None, finding: Finding | None, seen: Sequence[Event], at_s: float
) -> Event | None:
    """Return the event `worker.TROUBLE` for a rank that ended by itself, None where nothing is known.

    `seen`: what the sensors of its node said lately. `at_s`: when it ended, by the node's monotonic clock.
    """
    if exit_code in KILLED:
        kill = _killed_for_memory(pid, seen, at_s)
        if kill is not None:
            is_at_once = kill.at_s >= at_s - AT_ONCE_S
            is_sure = kill.number == pid or (is_at_once and kill.name == COUNTED[0])
            why = "the kernel killed it because memory ran out" if is_sure else PERHAPS
            when = "" if is_at_once or is_sure else f", {at_s - kill.at_s:.1f} s before"
            when += "" if is_sure else "; or a process sent the signal"
            detail = f"{why}: {kill.detail.partition('; ')[0]}{when}"  # the kernel's own line stands in the evidence
            return _event("worker.host_memory", rank, detail, at_s, pid)
    if finding is None or not finding.trouble:
        return None
    return _event(f"worker.{finding.trouble}", rank, finding.line, at_s, pid)


def _killed_for_memory(pid: int, seen: Sequence[Event], at_s: float) -> Event | None:
    """The kernel's log names the process; a cgroup's counter only says that there was one, of any process in it.

    Kills that the log names of others (as an alert of the job's, as a note of another job's) are theirs, and not counted again.
    """
    kills = [event for event in seen if event.name == "memory.oom_kill" and event.kind == "alert"]
    named = next((event for event in kills if event.number == pid), None)
    if named is not None:
        return named
    near = [event for event in seen if event.name.startswith("memory.oom_kill") and abs(event.at_s - at_s) <= NEAR_S]
    others = {event.number for event in near if event.number}
    counted = [event for event in near if not event.number and event.name in COUNTED and event.kind == "alert"]
    grown = max((int(event.value or 1) for event in counted), default=0)
    return max(counted, key=lambda event: event.at_s) if grown > len(others) else None


def _event(name: str, rank: int, detail: str, at_s: float, pid: int) -> Event:
    return Event(name=name, kind="alert", subject=f"rank {rank}", detail=detail[:300], at_s=at_s, number=pid)
