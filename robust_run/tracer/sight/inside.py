"""What NCCL does inside the ranks of a node, read at the beginning and at the end of a look, and cut for the way.

Times are those of the node's monotonic clock, as in all that is seen there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from robust_run.tracer.nccl import cut
from robust_run.tracer.nccl.types import NcclTrace
from robust_run.tracer.plugin import layout, reader
from robust_run.tracer.sight import proxy_threads
from robust_run.tracer.sight.targets import Target

#: Operations that are read: a host may be so many ahead of its GPU.
READ_OPS = 2048
#: Of each rank that are told, unless the order says otherwise.
FLOWS, OPS = 256, 64
Readings = tuple[NcclTrace | None, NcclTrace | None]


class TracesOfRanks:
    """The traces of some ranks while they are looked at."""

    def __init__(self, targets: Sequence[Target], root: str = "/proc") -> None:
        self._targets = targets
        self._root = root
        self._readings: list[list[NcclTrace | None]] = []
        self._ran: list[list[proxy_threads.Ran]] = []

    def sample(self) -> None:
        """Read all traces, and how long NCCL's threads have run. A moment of some milliseconds, for which the caller waits."""
        self._readings.append([read_trace(target) for target in self._targets])
        self._ran.append(
            [
                {} if trace is None or not target.is_there else proxy_threads.ran_ns(trace, target.pid, self._root)
                for target, trace in zip(self._targets, self._readings[-1], strict=True)
            ]
        )

    def found(self, flows: int, ops: int) -> list[Readings]:
        """Return of each target the last reading and the first, cut; None where there is none."""
        if not self._readings:
            return [(None, None)] * len(self._targets)
        last = self._readings[-1]
        first = self._readings[0] if len(self._readings) > 1 else [None] * len(last)
        first_ran, last_ran = self._ran[0], self._ran[-1]
        last = [
            None
            if now is None
            else msgspec.structs.replace(
                proxy_threads.judged(now, *ran), network=proxy_threads.network_of(now, target.pid, self._root)
            )
            for target, now, ran in zip(self._targets, last, zip(first_ran, last_ran, strict=True), strict=True)
        ]
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
