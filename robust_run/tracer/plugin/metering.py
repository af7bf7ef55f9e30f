"""Reads now and then what the ranks of a node completed inside NCCL. The counting is pure (`rates`); here files are read."""

from __future__ import annotations

from collections.abc import Mapping

from robust_run.tracer.nccl import rates
from robust_run.tracer.nccl.types import CommRate
from robust_run.tracer.plugin import reader


class Metering:
    """The ranks of one attempt on one node."""

    def __init__(self) -> None:
        self._meters: dict[int, rates.Meter] = {}

    def look(self, files: Mapping[int, str], now_s: float) -> tuple[CommRate, ...]:
        """Return what ranks completed since the last look. `files`: their traces, by rank; those not there are passed over.

        `now_s` is monotonic. Never raises. Takes 0.1 ms a rank, and 4 ms for each thousand operations.
        """
        found: list[CommRate] = []
        for rank, path in files.items():
            meter = self._meters.setdefault(rank, rates.Meter())
            seen = reader.glance(path)
            wanted = meter.wants(seen.ops) if seen is not None and seen.pid else 0
            moves = reader.moved(path, wanted) if wanted else None
            if moves is not None:
                found += meter.look(moves, now_s)
        return rates.bounded(found)
