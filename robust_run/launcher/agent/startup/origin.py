"""Start time of a launcher: when its process was, which is before any line of ours ran."""

from __future__ import annotations

import os
import time

#: Of /proc/PID/stat, counted after the command's name: when the process was started, in ticks since boot.
_STARTED_FIELD = 19


def started_s(pid: int, ticks_per_s: int = 0) -> float | None:
    """Return when a process was started, as time of the monotonic clock to 10 ms; None if that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read(4096).rpartition(b")")[2].split()
        since_boot_s = int(fields[_STARTED_FIELD]) / (ticks_per_s or os.sysconf("SC_CLK_TCK"))
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot_s
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return time.monotonic() - max(age_s, 0.0)
