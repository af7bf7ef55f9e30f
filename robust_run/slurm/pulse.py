"""A sign of life of the controller in the run directory: who lost touch with it sees whether it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

PULSE_S = 3.0
"""Between two signs."""
SILENT_S = 12.0
"""A controller without a sign for so long is gone."""

_NAME = "pulse"


def beat(run_path: str) -> None:
    """Give a sign. The content changes, because a file's time may be seen late on a network file system."""
    try:
        with open(os.path.join(run_path, _NAME), "w", encoding="ascii") as file:
            file.write(f"{time.time():.3f}\n")
    except OSError:
        return  # a full disk; then the controller looks gone only to nodes that have lost it anyway


def is_silent(run_path: str, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Whether the controller gives no sign any more. Blocks for `SILENT_S`. False where its signs cannot be seen."""
    before = _read(run_path)
    if not before:
        return False
    waited_s = 0.0
    while waited_s < SILENT_S:
        sleep(1.0)
        waited_s += 1.0
        if _read(run_path) != before:
            return False
    return True


def _read(run_path: str) -> str:
    try:
        with open(os.path.join(run_path, _NAME), encoding="ascii", errors="replace") as file:
            return file.read(64)
    except OSError:
        return ""
