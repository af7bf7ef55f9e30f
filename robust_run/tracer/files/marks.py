"""The marks file: what a worker spent its start on, readable while it starts and after it was killed.

One file of 2 KiB for each worker of an attempt. The launcher creates it (`steps.create_marks`), the worker writes to it until
its first optimizer step (`robust_run/tracer/arm/startup/marks.py`), the launcher reads it. Cells of eight bytes, in the
machine's order:

    0 magic   1 version   2 pid   3 monotonic time when the interpreter was there   4 number of spans
    5 kind of what goes on now, 0: nothing   6 since when   7 reserved   from 8: spans: kind, begin, end

Times are seconds, as floating-point numbers. Spans are of the main thread and do not overlap.
"""

from __future__ import annotations

import math

import msgspec

from robust_run.tracer.files.steps import MARKS_BYTES as FILE_BYTES
from robust_run.tracer.files.steps import MARKS_MAGIC as MAGIC
from robust_run.tracer.files.steps import MARKS_VERSION as VERSION
from robust_run.tracer.files.steps import cells_of

MAGIC_CELL, VERSION_CELL, PID_CELL, ARMED_CELL, COUNT_CELL, OPEN_CELL, OPENED_CELL = range(7)
SPANS_CELL, SPAN_CELLS = 8, 3
MOST_SPANS = (FILE_BYTES // 8 - SPANS_CELL) // SPAN_CELLS
KINDS = ("", "imports", "init", "torch.load", "DCP", "safetensors", "robust-run")
"""What the numbers of kinds mean; from the third on, who loads a checkpoint."""


class StartMark(msgspec.Struct, frozen=True, array_like=True):
    """One thing that took a while."""

    kind: int
    """Index into `KINDS`."""
    began_s: float
    ended_s: float


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker noted so far."""

    pid: int
    armed_s: float
    """When its interpreter was there, before the program."""
    spans: tuple[StartMark, ...]
    """In order of time."""
    open_kind: int = 0
    """What goes on now; 0: nothing that is noted."""
    opened_s: float = 0.0


def read(path: str) -> Marks | None:
    """Return what a worker noted; None if nothing, or the file is missing, damaged or of another version. Never raises."""
    cells = cells_of(path, MAGIC, VERSION, FILE_BYTES)
    if cells is None:
        return None
    numbers, times = cells
    if not numbers[PID_CELL] or not math.isfinite(times[ARMED_CELL]):
        return None
    spans: list[StartMark] = []
    for index in range(min(numbers[COUNT_CELL], MOST_SPANS)):
        at = SPANS_CELL + SPAN_CELLS * index
        kind, began_s, ended_s = numbers[at], times[at + 1], times[at + 2]
        earliest_s = spans[-1].ended_s if spans else float("-inf")
        if 0 < kind < len(KINDS) and earliest_s <= began_s <= ended_s < math.inf:
            spans.append(StartMark(kind, began_s, ended_s))
    is_open = 0 < numbers[OPEN_CELL] < len(KINDS) and math.isfinite(times[OPENED_CELL])
    return Marks(
        pid=numbers[PID_CELL],
        armed_s=times[ARMED_CELL],
        spans=tuple(spans),
        open_kind=numbers[OPEN_CELL] if is_open else 0,
        opened_s=times[OPENED_CELL] if is_open else 0.0,
    )
