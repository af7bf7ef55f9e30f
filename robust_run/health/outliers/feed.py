"""What a job feeds its comparing of nodes with, and how that is started: one place for jobs and for what measures them.

Pure, and without numpy: the controller uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from robust_run.health.rules.types import Comparing
from robust_run.health.sensors.usage import by_name

STAYS = "outlier.stays"
"""Beginning of the name of what is said of a node that was named and stays apart; the metric follows."""
SLACK = 1.25
"""Heartbeats come early and late: within a little more than the time between two, there is one of each node. With few nodes a
reading that lacks one says nothing of any."""
REPEAT_S = 30.0
"""How often the comparing says that a node is still apart."""


def row(at_s: float, machine: str, role: str, usage: Sequence[float]) -> dict[str, Any]:
    """Return a row of `robust outliers` from what a node says of itself (`usage.SAID`)."""
    return {"time": at_s, "machine": machine, "role": role, **by_name(usage)}


def arguments(comparing: Comparing, heartbeat_s: float) -> list[str]:
    """Return the options of `robust outliers` for a job whose nodes speak every `heartbeat_s`."""
    limits = {
        "--interval": SLACK * heartbeat_s,
        "--apart": comparing.apart,
        "--hold": comparing.hold,
        "--settle": comparing.settle_s,
        "--repeat": REPEAT_S,
    }
    return [word for name, value in limits.items() for word in (name, str(value))]
