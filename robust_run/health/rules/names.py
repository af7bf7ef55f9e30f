"""Every name that an event may have, so that a rule for none of them is refused: it would never speak.

A row of the table answers for all names that begin with its own. Those in `MORE` have no row of their own; a rules' file may give
them one. Two families are open: `gpu.xid.NUMBER`, and `outlier.METRIC` of the metrics in which nodes are compared.
"""

from __future__ import annotations

import re

from robust_run.health.rules.table import DEFAULTS
from robust_run.health.sensors.usage import SAID

MORE = (
    "clock.jump",
    "clock.skew",
    "clock.unsynchronised",
    "cpu.hot",
    "cpu.neighbour",
    "cpu.pressure",
    "cpu.pressure_on_node",
    "cpu.throttled",
    "disk.full",
    "disk.pressure",
    "disk.pressure_on_node",
    "disk.slow_fsync",
    "image.error",
    "memory.pressure",
    "memory.pressure_on_node",
    "memory.short",
    "memory.swapping",
    "network.drops",
    "network.retransmits",
    "outlier.ended",
    "store.error",
    "store.slow",
    "training.damaged",
    # a reading that does not end is an alert of its sensor
    "clock.hung",
    "memory.hung",
    "network.hung",
    "store.hung",
)
_XID = re.compile(r"gpu\.xid\.[1-9][0-9]{0,4}")


def names() -> tuple[str, ...]:
    """Return all names but those of Xids that no row lists, for people and for what is nearest to a mistake."""
    return (*DEFAULTS, *MORE, *(f"outlier.{part}{metric}" for part in ("", "stays.") for metric in SAID))


def is_known(name: str) -> bool:
    """Whether an event may be called so, or a family of them: the rules' file may change what follows from it."""
    return name in names() or _XID.fullmatch(name) is not None
