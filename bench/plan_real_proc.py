"""What /proc says of a process that a trial of `plan_real.py` strikes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def inside(pid: int) -> int:
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("NSpid:")).split()[-1])
    return 0


def state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return bool(int(next(line for line in lines if line.startswith("SigCgt:")).split()[1], 16) >> (number - 1) & 1)
    return False
