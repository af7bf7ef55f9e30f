"""How long a rank had waited for its DataLoader by the end of its newest steps, in the unused part of its ring's header.

112 cells of eight bytes from byte 128 on: step n (from 1) in cell n mod 112 has the nanoseconds that the main thread has waited,
all in all. Nothing here trusts the writer (`robust_run/tracer/arm/loader.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

DATA_AT, DATA_CELLS = 128, 112
DATA_BYTES = 8 * DATA_CELLS
#: No wait is longer, ten years.
_LONGEST_NS = 3 * 10**17


def parse(content: bytes, steps: int, steps_after: int) -> Mapping[int, float]:
    """Return seconds by step; empty where the program has no DataLoader. Never raises.

    `steps`, `steps_after`: made before and after `content` was read: what was overwritten meanwhile is left out.
    """
    if len(content) != DATA_BYTES or not any(content):
        return {}
    cells = memoryview(content).cast("Q")
    oldest = max(1, steps_after + 1 - DATA_CELLS + 1)
    found = {step: cells[step % DATA_CELLS] for step in range(oldest, steps + 1)}
    return {step: waited / 1e9 for step, waited in found.items() if waited < _LONGEST_NS}
