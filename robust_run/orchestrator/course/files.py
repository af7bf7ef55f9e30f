"""`roles-course.json`: written whole or not at all, and read with care: a page is drawn without it, too."""

from __future__ import annotations

import math
import os

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.orchestrator.rules.course_points import FIRST_S, LARGEST_BYTES, MOST_POINTS, SCHEMA, Course, CoursePoint
from robust_run.report.files import open_regular

NAME = "roles-course.json"
#: Some 1,900 years: beyond it a time is a fault of its writer.
_LATEST_S = 6e10


def write(folder: str, course: Course) -> None:
    """Write or replace the file in one step. Raises OSError."""
    write_file(os.path.join(folder, NAME), msgspec.json.encode(course) + b"\n")


def read(folder: str) -> Course:
    """Return what a run directory has; nothing where there is none, or nothing that can be understood."""
    try:
        with open_regular(os.path.join(folder, NAME)) as file:
            content = file.read(LARGEST_BYTES + 1)
        found = json_decoder(Course).decode(content)
    except (OSError, ValueError, RecursionError):  # of msgspec, too
        return Course()
    if len(content) > LARGEST_BYTES or found.schema != SCHEMA or len(found.points) > MOST_POINTS:
        return Course()
    points = sorted((point for point in found.points if _is_sane(point)), key=lambda point: point.at_s)
    apart_s = found.apart_s if math.isfinite(found.apart_s) and found.apart_s >= FIRST_S else FIRST_S
    return Course(apart_s=min(apart_s, _LATEST_S), points=tuple(points))


def _is_sane(point: CoursePoint) -> bool:
    fills = [number for fill in point.queues.values() for number in (fill.low, fill.high, fill.leased, fill.kept)]
    times = [
        value for each in (*point.roles.values(), *point.members.values()) for value in (each.waited_s, each.here_s)
    ]
    return 0 <= point.at_s <= _LATEST_S and all(0 <= number <= _LATEST_S for number in (*fills, *times))
