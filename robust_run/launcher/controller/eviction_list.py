"""The eviction list that jobs share (`--evict-list`), as one job's controller keeps it: what it says is told at the start, and
what this job decides is added to it.
"""

from __future__ import annotations

from collections.abc import Callable

from robust_run.clock import Clock
from robust_run.errors import RobustRunError
from robust_run.launcher.core.state import Eviction, JobState
from robust_run.launcher.model.check_events import Diagnosed, StandbyChecked
from robust_run.launcher.model.events import AttemptEnded, Event, Inquired
from robust_run.launcher.model.health_events import HealthSeen
from robust_run.launcher.model.node_events import NodeEvicted, NodeReadmitted
from robust_run.launcher.records import evictions


class EvictionList:
    """One job's view of the list. `path`: empty if there is none."""

    def __init__(self, path: str, clock: Clock, say: Callable[[str], None]) -> None:
        self._path = path
        self._clock = clock
        self._say = say
        self._known: set[str] = set()
        """Hosts that the list has: their eviction, when it is told, need not be written."""

    def tell(self, state: JobState, tell: Callable[[Event], None]) -> None:
        """Tell of the hosts on the list that this job does not know to be evicted. Raises RobustRunError."""
        for name, eviction in evictions.load(self._path).items() if self._path else ():
            self._known.add(name)
            if name not in state.evicted:
                by = eviction.by or "the list"
                tell(NodeEvicted(name=name, reason=eviction.reason, by=by, at_unix_s=eviction.at_unix_s, listed=True))

    def after(self, event: Event, state: JobState) -> None:
        """Remember for other jobs what this event, which `state` has taken in, did to hosts."""
        if not self._path:
            return
        try:
            self._remember(self._path, event, state)
        except (OSError, RobustRunError) as error:
            self._say(f"--evict-list {self._path}: {error}; the eviction holds for this job only")
        if isinstance(event, (NodeEvicted, NodeReadmitted)):
            self._known.discard(event.name)

    def _remember(self, path: str, event: Event, state: JobState) -> None:
        if isinstance(event, (Diagnosed, StandbyChecked)):
            self._remember_all(path, state)
        if isinstance(event, NodeEvicted) and event.name not in self._known:
            eviction = Eviction(reason=event.reason, by=event.by, at_unix_s=event.at_unix_s)
            evictions.remember(path, event.name, eviction)
        elif isinstance(event, NodeReadmitted):
            evictions.forget(path, event.name, event.by, self._clock.unix_s())
        elif isinstance(event, (HealthSeen, AttemptEnded, Inquired)):
            evictions.remember_rules(path, state.evicted, self._known)

    def _remember_all(self, path: str, state: JobState) -> None:
        """Remember what checks have led to."""
        for name, eviction in state.evicted.items():
            if name not in self._known:
                self._known.add(name)
                evictions.remember(path, name, eviction)
