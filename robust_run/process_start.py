"""What tells a process from a later one that got its number: when it was started. Numbers of processes come again."""

from __future__ import annotations


def started_at(pid: int) -> int:
    """Return when a process was started, in ticks of the kernel; 0: there is none, or only its exit status is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return 0 if fields[0] in b"ZX" else int(fields[19])
    except (OSError, IndexError, ValueError):
        return 0
