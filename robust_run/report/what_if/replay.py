"""Replays steps of a pipeline from what each piece of work took, in the order in which it was done. Pure.

Rules, as in the paper: work on a rank goes one after the other; a transfer ends when both ends have come to it and the bytes have
moved; a collective when all ranks of the stage have, and the bytes have moved. What a rank waited is no part of a duration: of
transfers and collectives only what they took after the last had come counts. In a trace without transfers a microbatch is worked
on by one stage after the other, as far as the times of the trace bear that out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from robust_run.errors import UserError
from robust_run.report.what_if.types import COMPUTE, PAIRS, SYNC, Kind, TracedOp

_RECV_OF = PAIRS
#: Clocks of nodes are this far apart, or less.
_CLOCKS_S = 1e-4
_SEND_OF: dict[Kind, Kind] = {recv: send for send, recv in PAIRS.items()}


class Replay:
    """Steps that can be replayed again and again, with other durations."""

    def __init__(self, ops: Sequence[TracedOp]) -> None:
        """`ops`: all of some steps, in any order. Raises UserError where they wait for each other in a circle."""
        self.ops = tuple(sorted(ops, key=lambda op: (op.step, op.start_s, op.end_s)))
        self.steps = tuple(sorted({op.step for op in self.ops}))
        self._units, unit_of = _units(self.ops)
        self.durations_s = _own_durations(self.ops, self._units)
        """By op: what it takes once all it waits for has come."""
        self._before = _before(self.ops, self._units, unit_of)
        self._order = _order(self._before, unit_of)

    def step_lengths_s(self, durations_s: Sequence[float] | None = None) -> tuple[float, ...]:
        """Return how long each step takes with these durations (None: as measured), from the end of the one before it."""
        durations_s = self.durations_s if durations_s is None else durations_s
        ends: list[float] = [0.0] * len(self.ops)
        step_ends: dict[int, float] = defaultdict(float)
        for unit in self._order:
            begin_s = max((ends[op] for op in self._before[unit]), default=0.0)
            for op in self._units[unit]:
                ends[op] = begin_s + durations_s[op]
                step = self.ops[op].step
                step_ends[step] = max(step_ends[step], ends[op])
        lengths, before_s = [], 0.0
        for step in self.steps:
            lengths.append(max(0.0, step_ends[step] - before_s))
            before_s = max(before_s, step_ends[step])
        return tuple(lengths)

    def mean_s(self, durations_s: Sequence[float] | None = None) -> float:
        """Return how long a step takes on average."""
        lengths = self.step_lengths_s(durations_s)
        return sum(lengths) / len(lengths) if lengths else 0.0

    def changed(self, new_s: Callable[[int, TracedOp], float | None]) -> list[float]:
        """Return the durations with those replaced for which the function returns another."""
        found = []
        for index, op in enumerate(self.ops):
            other = new_s(index, op)
            found.append(self.durations_s[index] if other is None else other)
        return found

    def measured_s(self) -> float:
        """Return how long a step took on average when it was traced."""
        if not self.ops:
            return 0.0
        begin_s, end_s = min(op.start_s for op in self.ops), max(op.end_s for op in self.ops)
        return (end_s - begin_s) / len(self.steps)


def _units(ops: Sequence[TracedOp]) -> tuple[list[list[int]], list[int]]:
    """Group ops that end together: both ends of a transfer, all ranks of a collective; each other one is alone."""
    found: dict[tuple[object, ...], list[int]] = {}
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    for index, op in enumerate(ops):
        if op.kind in SYNC:
            turn = (op.dp, op.stage, op.step, op.kind)
            counts[turn] += 1
            key: tuple[object, ...] = (op.kind, op.stage, op.step, counts[turn])
        elif op.kind in _RECV_OF:
            key = (op.kind, op.dp, op.step, op.microbatch, op.stage)
        elif op.kind in _SEND_OF:
            send = _SEND_OF[op.kind]
            key = (send, op.dp, op.step, op.microbatch, op.stage - 1 if send == "forward_send" else op.stage + 1)
        else:
            key = (index,)
        found.setdefault(key, []).append(index)
    units = list(found.values())
    unit_of = [0] * len(ops)
    for number, unit in enumerate(units):
        for index in unit:
            unit_of[index] = number
    return units, unit_of


def _own_durations(ops: Sequence[TracedOp], units: Sequence[Sequence[int]]) -> list[float]:
    found = [0.0] * len(ops)
    for unit in units:
        came_s = max(ops[index].start_s for index in unit)
        for index in unit:
            op = ops[index]
            found[index] = op.duration_s if op.kind in COMPUTE else max(0.0, op.end_s - max(came_s, op.start_s))
    return found


def _before(ops: Sequence[TracedOp], units: Sequence[Sequence[int]], unit_of: Sequence[int]) -> list[list[int]]:
    """Return for each unit the ops that must have ended before it can begin."""
    found: list[list[int]] = [[] for _ in units]
    last: dict[tuple[object, ...], int] = {}
    by_key: dict[tuple[object, ...], int] = {}
    has_transfers = False
    for index, op in enumerate(ops):
        by_key[op.dp, op.stage, op.step, op.kind, op.microbatch] = index
        has_transfers = has_transfers or op.kind in PAIRS or op.kind in _SEND_OF
    for index, op in enumerate(ops):
        worker = (op.dp, op.stage)
        stream = (*worker, "compute" if op.kind in COMPUTE else op.kind)
        waits = [last.get(stream)]
        needs: dict[Kind, tuple[Kind, ...]] = {
            "forward": ("forward_recv",),
            "backward": ("backward_recv", "forward"),
            "forward_send": ("forward",),
            "backward_send": ("backward",),
        }
        waits += [by_key.get((*worker, op.step, kind, op.microbatch)) for kind in needs.get(op.kind, ())]
        if op.kind in COMPUTE:
            waits.append(last.get((*worker, "params_sync", op.step)))
            if not has_transfers and op.microbatch >= 0:
                there = op.stage - 1 if op.kind == "forward" else op.stage + 1
                came = by_key.get((op.dp, there, op.step, op.kind, op.microbatch))
                waits.append(came if came is not None and ops[came].end_s <= op.start_s + _CLOCKS_S else None)
        if op.kind == "grads_sync":
            waits.append(last.get((*worker, "compute")))
        if op.kind == "params_sync" or (op.kind in COMPUTE and (*worker, "compute", op.step) not in last):
            waits.append(last.get((*worker, "grads_sync")))
        mine = unit_of[index]
        found[mine] += [each for each in waits if each is not None and unit_of[each] != mine]
        last[stream] = index
        last[(*stream, op.step)] = index
    return found


def _order(before: Sequence[Sequence[int]], unit_of: Sequence[int]) -> list[int]:
    """Return the units in an order in which none comes before what it waits for. Raises UserError where there is none."""
    after: list[list[int]] = [[] for _ in before]
    left = [0] * len(before)
    for unit, ops in enumerate(before):
        for other in {unit_of[op] for op in ops}:
            after[other].append(unit)
            left[unit] += 1
    ready = deque(unit for unit, count in enumerate(left) if not count)
    found = []
    while ready:
        unit = ready.popleft()
        found.append(unit)
        for other in after[unit]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    if len(found) < len(before):
        raise UserError(
            f"the trace cannot be replayed: {len(before) - len(found)} pieces of work wait for each other in a circle; "
            "are its microbatches, stages and data-parallel ranks numbered from 0?"
        )
    return found
