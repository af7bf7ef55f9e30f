"""Compares what ranks have noted of reduced values (`--check-reduced`); a difference is told like what a sensor sees.

What follows is the rules' to say. The comparing is pure (`tracer.reduced.compare`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.health.types import Event
from robust_run.launcher.core.membership import node_of_rank
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.reduced_values import ReducedValues
from robust_run.tracer.reduced.compare import Comparison
from robust_run.tracer.reduced.types import DTYPES, KINDS, ReducedDifference
from robust_run.tracer.words import ranks_words

#: Different ranks that are named in one attempt: after that it is no machine.
MOST_TOLD = 8
#: Ranks that an event names.
MOST_NAMED = 16


class ReducedComparison:
    """The reduced values of one job; begins anew with each attempt."""

    def __init__(
        self, state: JobState, clock: Clock, tell: Callable[[HealthSeen], None], say: Callable[[str], None]
    ) -> None:
        self._state, self._clock, self._tell = state, clock, tell
        self._harmless = Harmless("comparing reduced values", say)
        self._attempt = -1
        self._comparison = Comparison()
        self._told: set[tuple[int, ...]] = set()

    def take(self, node: str, said: ReducedValues) -> None:
        """Take in what a node says of its ranks."""
        state = self._state
        if said.attempt != state.attempt or not state.is_training or node not in state.unended:
            return
        if said.attempt != self._attempt:
            self._attempt, self._comparison, self._told = said.attempt, Comparison(), set()
        self._harmless.run(lambda: self._compare(node, said))

    def _compare(self, node: str, said: ReducedValues) -> None:
        own = [place for place in self._state.layout if place.node == node]
        ranks = {rank for place in own for rank in range(place.first_rank, place.first_rank + place.nproc)}
        for found in self._comparison.hear(value for value in said.values if value.rank in ranks):
            if found.ranks not in self._told and len(self._told) < MOST_TOLD:
                self._told.add(found.ranks)
                self._say(found)

    def _say(self, found: ReducedDifference) -> None:
        first = found.ranks[0]
        nodes = [each.node for each in self._state.layout if each.first_rank <= first < each.first_rank + each.nproc]
        if nodes:
            hosts = {rank: node_of_rank(self._state, rank) for rank in found.ranks[:MOST_NAMED]}
            event = event_of(found, hosts, self._clock.monotonic_s())
            self._tell(HealthSeen(node=nodes[0], event=event, at_unix_s=self._clock.unix_s()))


def event_of(found: ReducedDifference, hosts: Mapping[int, str], now_s: float) -> Event:
    """Return a difference as a sensor would say it. `hosts`: by rank."""
    value = found.value
    what = KINDS[value.kind].replace("all_reduce", f"all_reduce #{value.seq}")
    dtype = DTYPES[value.dtype] if value.dtype < len(DTYPES) else "?"
    last = value.start + value.length - 1
    on = ", ".join(dict.fromkeys(name for name in hosts.values() if name))
    who = f"{ranks_words(found.ranks)} ({on})" if on else ranks_words(found.ranks)
    differs = (
        f"is not on {who} what it is on {ranks_words(found.others)}"
        if found.others
        else f"is not the same on {who}, and it cannot be told which of them is wrong"
    )
    word = "rank" if len(found.ranks) == 1 else "ranks"
    return Event(
        name="numbers.reduced",
        kind="alert",
        subject=f"{word} {', '.join(map(str, found.ranks[:MOST_NAMED]))}",
        detail=f"the value of {what} (elements {value.start} to {last} of {value.numel}, {dtype}, after {value.step} steps) "
        f"{differs}",
        at_s=now_s,
    )
