"""Compares the checksums that ranks of a group report of the same reduced value. Deterministic.

What is compared is known to be one and the same: the same call of the same group, by its number in it, of as many elements,
in the same place. It is compared once all ranks of the group have spoken; what one does not tell (it is at another step, its
file was overwritten, it has ended) is dropped. And values of a kind that were never equal say nothing: a library may add in
another order on each rank. So a kind of value counts once it was the same on all ranks some times in a row, and no more when it
falls apart altogether.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from robust_run.tracer.reduced.types import ReducedDifference, ReducedValue

#: So many times in a row values of a kind must have been the same on all ranks before a difference says anything.
TRUSTED = 2
#: Calls of one group that are waited for, and groups; the oldest are dropped.
MOST_OPEN, MOST_GROUPS = 16, 8192

Kind = tuple[int, int, int, int, int]
Call = tuple[int, int, int, int, int, int, int]


class Comparison:
    """The reduced values of one attempt."""

    def __init__(self) -> None:
        self._open: dict[int, dict[Call, dict[int, ReducedValue]]] = {}
        self._same: dict[Kind, int] = {}
        self.compared = 0
        """How often all ranks of a group have been compared."""

    def hear(self, values: Iterable[ReducedValue]) -> list[ReducedDifference]:
        """Take in what ranks report; return what differs where it must not."""
        found = (self._complete(call) for value in values if (call := self._add(value)))
        return [each for each in found if each is not None]

    def _add(self, value: ReducedValue) -> dict[int, ReducedValue] | None:
        """Return the values of all ranks of a group if this was the last of them."""
        calls = self._open.get(value.group)
        if calls is None:
            while len(self._open) >= MOST_GROUPS:
                self._open.pop(next(iter(self._open)))
            calls = self._open[value.group] = {}
        key = (value.size, value.seq, value.kind, value.numel, value.dtype, value.start, value.length)
        heard = calls.get(key)
        if heard is None:
            while len(calls) >= MOST_OPEN:
                calls.pop(next(iter(calls)))
            heard = calls[key] = {}
        heard[value.rank] = value
        if value.size < 2 or len(heard) < value.size:
            return None
        return calls.pop(key)

    def _complete(self, heard: dict[int, ReducedValue]) -> ReducedDifference | None:
        self.compared += 1
        any_value = next(iter(heard.values()))
        kind = (any_value.group, any_value.size, any_value.kind, any_value.numel, any_value.dtype)
        counts = Counter(value.checksum for value in heard.values())
        if len(counts) == 1:
            while len(self._same) >= MOST_GROUPS:
                self._same.pop(next(iter(self._same)))
            self._same[kind] = self._same.pop(kind, 0) + 1
            return None
        if self._same.get(kind, 0) < TRUSTED:
            self._same.pop(kind, None)
            return None
        (most, times), *_ = counts.most_common(1)
        has_majority = times * 2 > len(heard)
        if not has_majority and len(counts) > 2:  # it fell apart: another algorithm, another order
            self._same.pop(kind)
            return None
        ranks = tuple(sorted(rank for rank, value in heard.items() if not has_majority or value.checksum != most))
        others = tuple(sorted(heard.keys() - set(ranks)))
        return ReducedDifference(ranks=ranks, others=others, value=heard[ranks[0]])
