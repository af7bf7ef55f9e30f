"""Slowness inside NCCL: gathers the windows of all nodes, asks for a look at all ranks where one calls for it, and says who is
slow. The judging is pure (`tracer.nccl.slowness`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import msgspec

from robust_run.clock import Clock
from robust_run.harmless import Harmless
from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import Event, Inquired
from robust_run.launcher.model.nccl_windows import NcclWindow
from robust_run.tracer.nccl.slowness import WINDOW_S, Slowness
from robust_run.tracer.nccl.work import RankWork, SlowFault
from robust_run.tracer.types import TraceVerdict

#: A window is judged when all nodes have spoken of it, or when one speaks of a window so much later: nodes none of whose ranks
#: are sampled say nothing.
LATE = 2
#: A node has a calendar of its own, or one that was set, if its windows come by so many windows too soon: no network does that.
EARLY = 1.0
#: Or so much too late so often in a row, or ever by more than the last: by less and more seldom it is the network that was slow.
SLOW, SLOW_IN_A_ROW, SLOWEST = 1.5, 5, 15.0
#: Lines of evidence of a verdict.
MOST_LINES = 40


class WindowNumbers:
    """Numbers windows alike on all nodes, also where a node's calendar is wrong or is set: by when they come, if need be."""

    def __init__(self) -> None:
        self._shifts: dict[str, int] = {}
        """By node: what is to be added to its numbers. Nodes with one calendar have one."""
        self._slow: dict[str, int] = {}
        """Of nodes: how many windows came too late in a row."""

    def of(self, node: str, number: int, now_s: float) -> int:
        """Return the number of a window that a node tells now; `now_s`: by the controller's monotonic clock."""
        current = now_s / WINDOW_S
        shift = self._shifts.get(node)
        early = number + shift - current if shift is not None else None
        slow = self._slow.pop(node, 0) + 1
        if shift is not None and early is not None and -SLOWEST <= early < -SLOW and slow < SLOW_IN_A_ROW:
            self._slow[node] = slow
        elif shift is None or early is None or not -SLOW <= early <= EARLY:
            others = Counter(known for other, known in self._shifts.items() if other != node).most_common()
            fit = (known for known, _ in others if -SLOW <= number + known - current <= EARLY)
            shift = self._shifts[node] = next(fit, round(current - number))
        return number + shift


class NcclSlowness:
    """The windows of one job. `ask`: has all ranks looked at; agents then do so for some windows."""

    def __init__(
        self,
        *,
        state: JobState,
        clock: Clock,
        ask: Callable[[], object],
        tell: Callable[[Event], None],
        say: Callable[[str], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._ask = ask
        self._tell = tell
        self._harmless = Harmless("looking for what is slow inside NCCL", say)
        self._attempt = -1
        self._judged = -1
        """Newest window that was judged."""
        self._held: dict[int, dict[str, NcclWindow]] = {}
        self._slowness = Slowness()
        self._numbers = WindowNumbers()
        self._told: set[tuple[str, tuple[int, ...]]] = set()
        self._nics: dict[str, tuple[str, ...]] = {}
        """Of each node by its name, what its NICs were unlike their peers when they were last looked at."""

    def take(self, node: str, said: NcclWindow) -> None:
        """Take in what a node says of a window."""
        state = self._state
        if said.attempt != state.attempt or not state.is_training or node not in state.unended:
            return
        if said.attempt != self._attempt:
            self._attempt, self._judged, self._held, self._slowness = said.attempt, -1, {}, Slowness()
            self._told, self._nics = set(), {}
        number = self._numbers.of(node, said.number, self._clock.monotonic_s())
        if number <= self._judged:
            return
        self._held.setdefault(number, {})[node] = said
        newest = max(self._held)
        for number in sorted(self._held):
            if number + LATE <= newest or self._held[number].keys() >= set(state.unended):
                windows = self._held.pop(number)
                self._judged = number
                self._harmless.run(partial(self._judge, windows))

    def _judge(self, windows: dict[str, NcclWindow]) -> None:
        works = [self._named(node, work) for node, said in windows.items() for work in said.works]
        past = [self._named(node, work) for node, said in windows.items() for work in said.past]
        self._nics |= {name_of(self._state, node): said.nics for node, said in windows.items() if said.nics}
        self._slowness = self._slowness.hear(works, past)
        if self._slowness.asks:
            self._ask()
        fault = self._slowness.fault()
        if fault is not None and (fault.component, fault.ranks) not in self._told:
            self._told.add((fault.component, fault.ranks))  # it is found again in every window, and said once
            seen = [f"{node}: {line}" for node in fault.nodes for line in self._nics.get(node, ())]
            verdict = verdict_of(msgspec.structs.replace(fault, evidence=(*fault.evidence, *seen)[:MOST_LINES]))
            self._tell(Inquired(attempt=self._attempt, verdict=verdict, at_unix_s=self._clock.unix_s()))

    def _named(self, node: str, work: RankWork) -> RankWork:
        return msgspec.structs.replace(work, node=name_of(self._state, node))


def verdict_of(fault: SlowFault) -> TraceVerdict:
    """Return what is said of a fault. A link has two ends, and nobody knows of a node that is at fault."""
    return TraceVerdict(
        kind="slow",
        ranks=fault.ranks,
        nodes=() if fault.component == "link" else fault.nodes,
        group=fault.comm,
        confidence=fault.confidence,
        rule=f"nccl_slow_{fault.component}",
        only_told=True,
        sentence=fault.sentence,
        evidence=fault.evidence,
    )
