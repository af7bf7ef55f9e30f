"""What NCCL does inside the ranks of a node, read at the beginning and at the end of a look, and cut for the way.

Times are those of the node's monotonic clock, as in all that is seen there.
"""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.tracer.nccl import cut
from robust_run.tracer.nccl.types import NcclTrace
from robust_run.tracer.plugin import layout, reader
from robust_run.tracer.sight.targets import Target

#: Operations that are read: a host may be so many ahead of its GPU.
READ_OPS = 2048
#: Of each rank that are told, unless the order says otherwise.
FLOWS, OPS = 256, 64
Readings = tuple[NcclTrace | None, NcclTrace | None]


class TracesOfRanks:
    """The traces of some ranks while they are looked at."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._readings: list[list[NcclTrace | None]] = []

    def sample(self) -> None:
        """Read all traces. A moment of some milliseconds, for which the caller waits."""
        self._readings.append([read_trace(target) for target in self._targets])

    def found(self, flows: int, ops: int) -> list[Readings]:
        """Return of each target the last reading and the first, cut; None where there is none."""
        if not self._readings:
            return [(None, None)] * len(self._targets)
        last = self._readings[-1]
        first = self._readings[0] if len(self._readings) > 1 else [None] * len(last)
        wanted = cut.counterparts(last)
        return [
            (None, None)
            if now is None
            else cut.cut(now, _same_process(before, now), flows=flows, ops=ops, wanted=wanted)
            for before, now in zip(first, last, strict=True)
        ]


def read_trace(target: Target) -> NcclTrace | None:
    """Return what the target's trace holds, None if it has none, or no process writes it (yet). Never raises."""
    trace = reader.read(f"{target.steps_file}{layout.SUFFIX}", READ_OPS) if target.steps_file else None
    return trace if trace is not None and trace.glance.pid else None


def _same_process(before: NcclTrace | None, now: NcclTrace) -> NcclTrace | None:
    return before if before is not None and before.glance.pid == now.glance.pid else None
