"""Traces of operations from files, as people have them: CSV with a header, or one JSON object a line.

    dp_rank,stage,step,optype,start,duration,microbatch
    0,0,17,forward-compute,12.081,0.031,0

Names and units are those of ByteDance's published traces; `rank`, `pp_rank`, `dur`, `mb` are understood, too.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from robust_run.errors import UserError
from robust_run.report.what_if.types import Kind, TracedOp

LARGEST_BYTES = 1 << 30
MOST_OPS = 2_000_000
_KINDS = {kind: kind for kind in get_args(Kind)} | {"forward_compute": "forward", "backward_compute": "backward"}
_NAMES = {
    "dp": ("dp_rank", "dp"),
    "stage": ("stage", "pp_rank", "pp_stage"),
    "step": ("step", "iteration"),
    "kind": ("optype", "op_type", "kind", "op"),
    "start": ("start", "start_s", "ts"),
    "duration": ("duration", "duration_s", "dur"),
}
_MICROBATCH = ("microbatch", "mb", "microbatch_id")
_NEEDED = "needed are dp_rank, stage, step, optype, start, duration"


def read(path: str, scale_s: float = 1.0) -> list[TracedOp]:
    """Return the operations in a file; those of kinds that are not known are left out. `scale_s`: seconds of its unit of time.

    Raises UserError, naming the line, for what is no trace.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    if len(data) > LARGEST_BYTES:
        raise UserError(f"{path}: it has more than {LARGEST_BYTES >> 20} MiB: give fewer steps")
    found = [op for number, row in _rows(data, path) if (op := _op(row, f"{path}:{number}", scale_s)) is not None]
    if not found:
        raise UserError(f"{path}: it has no operation: known are {', '.join(sorted(_KINDS))}")
    if len(found) > MOST_OPS:
        raise UserError(f"{path}: it has more than {MOST_OPS} operations: give fewer steps")
    return found


def _rows(data: bytes, path: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = data.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    yield number, msgspec.json.decode(line, type=dict[str, Any])
                except msgspec.MsgspecError as error:
                    raise UserError(f"{path}:{number}: it is no JSON object: {error}") from error
        return
    reader = csv.DictReader(io.StringIO(text))
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UserError(f"{path}:{reader.line_num}: it is no CSV: {error}") from error


def _op(row: Mapping[str, Any], where: str, scale_s: float) -> TracedOp | None:
    words = {name: _first(row, names, where) for name, names in _NAMES.items()}
    kind = _KINDS.get(str(words["kind"]).strip().lower().replace("-", "_"))
    if kind is None:
        return None
    microbatch = next((row[name] for name in _MICROBATCH if row.get(name) not in (None, "")), -1)
    try:
        numbers = [int(float(value)) for value in (words["dp"], words["stage"], words["step"], microbatch)]
        start_s, duration_s = float(words["start"]) * scale_s, float(words["duration"]) * scale_s
    except (TypeError, ValueError, OverflowError) as error:
        raise UserError(f"{where}: {error}") from error
    if not (math.isfinite(start_s) and math.isfinite(duration_s)) or duration_s < 0:
        raise UserError(f"{where}: start {words['start']!r} and duration {words['duration']!r} are no times")
    dp, stage, step, batch = numbers
    return TracedOp(
        dp=dp,
        stage=stage,
        step=step,
        kind=kind,
        start_s=start_s,
        duration_s=duration_s,
        microbatch=batch,
    )


def _first(row: Mapping[str, Any], names: tuple[str, ...], where: str) -> Any:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name]
    empty = next((name for name in names if name in row), "")
    raise UserError(f"{where}: {f'{empty} is empty' if empty else f'there is no column {names[0]}'}: {_NEEDED}")
