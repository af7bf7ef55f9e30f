"""usage.json: how full and busy nodes were. Written whole or not at all, and read with care: a page is drawn without it, too."""

from __future__ import annotations

import msgspec

from robust_run.atomic_file import write_file
from robust_run.decoders import json_decoder
from robust_run.report.files import open_regular
from robust_run.report.usage import COMPARED, KEPT, LARGEST_BYTES, MOST_POINTS, SCHEMA, UsageHistory, UsagePoint

NAME = "usage.json"


def write(path: str, points: tuple[UsagePoint, ...]) -> None:
    """Write or replace the file in one step. Raises OSError."""
    write_file(path, msgspec.json.encode(UsageHistory(points=points)) + b"\n")


def read(path: str) -> tuple[UsagePoint, ...]:
    """Return what a run directory has, oldest first; nothing where there is none, or nothing that can be understood."""
    try:
        with open_regular(path) as file:
            content = file.read(LARGEST_BYTES + 1)
        found = json_decoder(UsageHistory).decode(content)
    except (OSError, ValueError, RecursionError):  # of msgspec, too
        return ()
    if len(content) > LARGEST_BYTES or found.schema != SCHEMA or len(found.points) > MOST_POINTS:
        return ()
    known = {*KEPT, *COMPARED}
    points = [
        msgspec.structs.replace(point, spreads={name: each for name, each in point.spreads.items() if name in known})
        for point in found.points
        if point.begin_s < point.end_s <= _LATEST_S
    ]
    return tuple(sorted(points, key=lambda point: point.begin_s))


#: Some 1,900 years: beyond it a time is a fault of its writer.
_LATEST_S = 6e10
