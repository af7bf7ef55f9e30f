"""The leases that a controller grants: longer where machines are late, and never longer than is on record.

How it knows: each heartbeat says how late the timers on its node fired in the last minute; the time between two heartbeats and
this process's own looks say the rest. What looks the same on a healthy cluster: a cable that was out for a second, a laptop's
lid; they cost a longer wait for one minute.

Workers of a silent node must be dead before they are replaced, by whatever controller. So a node counts as lost when the longest
lease that it was granted and may still hold is over for certain (`FailureDetector.granted`), and a controller that takes over
waits as long as the journal says that any lease may be: a longer one is put on record, durably, before it is granted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from robust_run.launcher.core.failure_detector import FailureDetector
from robust_run.launcher.core.lateness import WINDOW_S, Lateness
from robust_run.launcher.model.lease_times import MARGIN_S, LeaseTimes, adapted, quiet_s
from robust_run.launcher.model.node_events import LeaseRecorded

#: Lateness that is not noted: it is far below what a lease has room for, and ten thousand nodes are never quite on time.
NOT_NOTED_S = 0.05
#: A controller that did not run for so long tells it with the nodes that it lost then: it may be why.
STOOD_STILL_S = 3.0


class LeaseRecord(Protocol):
    """Keeps for a successor how long silent nodes are waited for."""

    def begin(self, lost_s: float) -> None:
        """Put it on record; this takes a while, in which the loop is not blocked."""
        ...

    def is_done(self) -> bool:
        """Whether what was begun last is where a successor finds it."""
        ...


class LeaseJournal:
    """The record in the job's state, and so in its journal."""

    def __init__(self, note: Callable[[str], None], tell: Callable[[LeaseRecorded], object]) -> None:
        self.is_kept: Callable[[], bool] = lambda: True
        """Whether a successor would know all that the controller has been told."""
        self._note = note
        self._tell = tell

    def begin(self, lost_s: float) -> None:
        """See `LeaseRecord`."""
        self._note(f"by how late machines are, a silent node is lost after {lost_s:.1f} s at most")
        self._tell(LeaseRecorded(lost_s=lost_s))

    def is_done(self) -> bool:
        """See `LeaseRecord`."""
        return self.is_kept()


class _Node:
    """What was seen of a node."""

    __slots__ = ("beat_s", "lateness")

    def __init__(self) -> None:
        self.lateness: Lateness | None = None
        """None: it was not late in the last minute."""
        self.beat_s = 0.0
        """When its newest heartbeat was heard."""


class Leases:
    """What is granted to whom."""

    def __init__(self, base: LeaseTimes, heartbeat_s: float, detector: FailureDetector, record: LeaseRecord) -> None:
        self.recorded_s = base.lost_s
        """As long as a successor waits for a silent node, or will as soon as that is on record."""
        self._durable_s = base.lost_s
        self._base = base
        self._quiet_s = quiet_s(base.lease_s)
        self._heartbeat_s = heartbeat_s
        self._detector = detector
        self._record = record
        self._own = Lateness()
        self._is_on_time = True
        """This process was not late in the last minute."""
        self._nodes: dict[str, _Node] = {}
        self._long_until_s = float("-inf")
        """Until when a lease may be in force that is longer than usual."""

    def take_over(self, lost_s: float, now_s: float) -> None:
        """Go on where a predecessor may have granted leases that are over for certain after so long; 0: none but the usual."""
        self.recorded_s = self._durable_s = max(lost_s, self._base.lost_s)
        if self.recorded_s > self._base.lost_s:
            self._long_until_s = now_s + self.recorded_s

    def own_look(self, late_s: float, now_s: float) -> None:
        """Note how late this process was. Call it at every look."""
        self._own.note(late_s, now_s)
        self._is_on_time = self._own.worst_s(now_s) <= self._quiet_s
        if self._durable_s < self.recorded_s and self._record.is_done():
            self._durable_s = self.recorded_s
        if self.recorded_s > self._base.lost_s and now_s > self._long_until_s + WINDOW_S:
            self.recorded_s = self._durable_s = self._base.lost_s
            self._record.begin(self.recorded_s)

    def stood_s(self, now_s: float) -> float:
        """Return for how long this process stood still in the last minute, at worst; 0.0 where that is nothing to tell."""
        worst_s = self._own.worst_s(now_s)
        return round(worst_s, 1) if worst_s >= STOOD_STILL_S else 0.0

    def connected(self, node: str, heard_s: float) -> LeaseTimes:
        """Return what a node is granted that was let in: the time without a connection is no lateness."""
        seen = self._nodes.get(node)
        if seen is None:
            seen = self._nodes[node] = _Node()
        seen.beat_s = heard_s
        return self._grant(node, seen, heard_s)

    def heartbeat(self, node: str, late_s: float, heard_s: float) -> LeaseTimes:
        """Return what a node is granted from when it sent the heartbeat that was heard just now. It was let in before."""
        seen = self._nodes[node]
        between_s = heard_s - seen.beat_s - self._heartbeat_s
        seen.beat_s = heard_s
        late_s = max(late_s, between_s)
        if late_s >= NOT_NOTED_S:
            if seen.lateness is None:
                seen.lateness = Lateness()
            seen.lateness.note(late_s, heard_s)
        elif seen.lateness is None and self._is_on_time:
            return self._base  # as below, ten thousand times a second
        return self._grant(node, seen, heard_s)

    def late_s(self, node: str, now_s: float) -> float | None:
        """Return by how much a node's timers and this process's were late in the last minute; None: it was never connected."""
        seen = self._nodes.get(node)
        if seen is None:
            return None
        worst_s = seen.lateness.worst_s(now_s) if seen.lateness is not None else 0.0
        return worst_s + self._own.worst_s(now_s)

    def _grant(self, node: str, seen: _Node, heard_s: float) -> LeaseTimes:
        late_s = seen.lateness.worst_s(heard_s) if seen.lateness is not None else 0.0
        if not late_s:
            seen.lateness = None
        late_s += self._own.worst_s(heard_s)
        if late_s <= self._quiet_s:
            return self._base  # as `adapted` would
        times = adapted(self._base.lease_s, late_s)
        lost_s = times.lost_s
        if lost_s > self._durable_s:
            if lost_s > self.recorded_s:
                self.recorded_s = lost_s
                self._record.begin(lost_s)
            times = LeaseTimes(max(self._base.lease_s, self._durable_s - MARGIN_S - times.late_s), times.late_s)
            lost_s = times.lost_s
        until_s = heard_s + lost_s
        self._detector.granted(node, until_s)
        self._long_until_s = max(self._long_until_s, until_s)
        return times
