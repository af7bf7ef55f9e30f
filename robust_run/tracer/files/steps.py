"""The steps file: how many optimizer steps a worker has made, readable after the worker was killed.

One file of 72 bytes for each worker of an attempt. The launcher creates it, the worker maps it and writes
(`robust_run/tracer/arm/sitecustomize.py`), the launcher reads it. It is nine cells of eight bytes in the machine's byte
order, so every value changes at once:

    0 magic   1 version   2 pid   3 steps   4 monotonic time of the first step   5 of the last step
    6 step after which a parameter was no finite number, while code is on probation; 0: none
    7 monotonic time when the main thread raised an exception that nobody caught; 0: it did not, or that is not known
    8 monotonic time when the program had come to its end, all its exit handlers included; 0: it had not, or that is not known

pid is 0 until a process has made a step; times are seconds, as floating-point numbers.
"""

from __future__ import annotations

import math
import os
import sys

import msgspec

MAGIC = b"RBSTEPS\n"
VERSION = 1
FILE_BYTES = 72
MAGIC_CELL, VERSION_CELL, PID_CELL, STEPS_CELL, FIRST_CELL, LAST_CELL, NOT_FINITE_CELL, RAISED_CELL, ENDED_CELL = range(
    9
)


#: The marks file beside it, which `marks` reads; made here because this is on the way to the first worker.
MARKS_MAGIC, MARKS_VERSION, MARKS_BYTES, MARKS_SUFFIX = b"RBMARKS\n", 1, 2048, ".marks"
#: Ending of the file of reduced values beside it, which `reduced` makes.
REDUCED_SUFFIX = ".reduced"


class StepCount(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker has done so far. Every call of an optimizer's `step` counts, also of several optimizers."""

    pid: int
    """Of the process that counts; 0 while none has made a step."""
    steps: int
    first_step_monotonic_s: float | None
    """When the first step ended; None before it."""
    last_step_monotonic_s: float | None
    not_finite_step: int = 0
    """After this one a parameter was no finite number; 0: none was, as far as was looked."""
    raised_monotonic_s: float | None = None
    """When it raised what ends it; None: that is not known."""
    ended_monotonic_s: float | None = None
    """When it had come to its end and was only cleaning up; None: that is not known."""


def create(path: str) -> None:
    """Write a steps file that no process has claimed yet, replacing what was there. Raises OSError."""
    _create(path, MAGIC, VERSION, FILE_BYTES)


def create_marks(steps_file: str) -> None:
    """Write a marks file that no worker has written to yet, beside its steps file. Raises OSError."""
    _create(f"{steps_file}{MARKS_SUFFIX}", MARKS_MAGIC, MARKS_VERSION, MARKS_BYTES)


def _create(path: str, magic: bytes, version: int, size_bytes: int) -> None:
    content = magic + version.to_bytes(8, sys.byteorder)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, content.ljust(size_bytes, b"\0"))
    finally:
        os.close(descriptor)


def cells_of(
    path: str, magic: bytes, version: int, size_bytes: int
) -> tuple[memoryview[int], memoryview[float]] | None:
    """Return a file's cells as whole numbers and as floating-point numbers.

    None if it is missing, too short, damaged or of another version. Never raises.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(size_bytes)
    except (OSError, ValueError):
        return None
    if len(content) < size_bytes or not content.startswith(magic):
        return None
    numbers = memoryview(content).cast("Q")
    return (numbers, memoryview(content).cast("d")) if numbers[VERSION_CELL] == version else None


def read(path: str) -> StepCount | None:
    """Return what a steps file says; None if it is missing, too short, damaged or of another version. Never raises."""
    cells = cells_of(path, MAGIC, VERSION, FILE_BYTES)
    if cells is None:
        return None
    numbers, times = cells
    counted = numbers[STEPS_CELL] > 0
    return StepCount(
        pid=numbers[PID_CELL],
        steps=numbers[STEPS_CELL],
        first_step_monotonic_s=times[FIRST_CELL] if counted and math.isfinite(times[FIRST_CELL]) else None,
        last_step_monotonic_s=times[LAST_CELL] if counted and math.isfinite(times[LAST_CELL]) else None,
        not_finite_step=numbers[NOT_FINITE_CELL] if counted else 0,
        raised_monotonic_s=_time(times[RAISED_CELL]),
        ended_monotonic_s=_time(times[ENDED_CELL]),
    )


def _time(value: float) -> float | None:
    return value if 0 < value < math.inf else None
