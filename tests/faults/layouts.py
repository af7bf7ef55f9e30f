"""The parallel layouts as numbers: what the program and the table of faults must agree on. Imports nothing."""

from __future__ import annotations

PRIMARY = {"dp": "metrics", "dp_manual": "dp", "tp_dp": "tp", "tp_dp_pp": "tp", "fsdp": "norm", "fsdp2": "metrics"}
"""By layout: the group whose all_reduce is tampered with."""
PRIMARY_HAS_ONE_OPERATION = frozenset({"tp_dp", "tp_dp_pp"})
"""Layouts in which that group is small and has one kind of call, so that leaving its order never shows as a mismatch."""


def shape(layout: str, world: int) -> tuple[int, int, int]:
    """Return how many ways tensor, data and pipeline parallel a layout is."""
    if layout == "tp_dp":
        return 2, world // 2, 1
    if layout == "tp_dp_pp":
        return 2, world // 4, 2
    return 1, world, 1
