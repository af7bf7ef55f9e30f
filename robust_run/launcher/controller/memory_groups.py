"""Which nodes share a parallel group, as a look at all ranks shows it: copies in memory are better off elsewhere.

It is looked once for a world of one shape, when its ranks have made their first steps. Imported where nodes keep copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from robust_run.launcher.core.resume.peers import shape
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.resume_events import MemoryGroups
from robust_run.tracer.types import Scene

#: After the first step of a rank: the others have made one, too, and keepers are there.
LOOK_AFTER_S = 5.0
#: With fewer nodes there is nothing to choose.
FEWEST_NODES = 3
#: Of a job that makes new groups all the time not all are kept.
MOST_GROUPS = 4096


class Asks(Protocol):
    """Has all nodes look at their ranks, see `EvidenceCollector.ask`."""

    def __call__(self, then: Callable[[Scene], None], *, samples: int) -> bool:
        """Call `then` with what they see; false: nothing runs."""
        ...


class MemoryGroupsLook:
    """One controller's."""

    def __init__(
        self,
        state: JobState,
        ask: Asks,
        tell: Callable[[Event], None],
        later: Callable[[float, Callable[[], None]], Any],
    ) -> None:
        self._state, self._ask, self._tell, self._later = state, ask, tell, later
        self._looked = -1
        """The newest attempt that is or was looked at."""

    def first_step(self, attempt: int) -> None:
        """A rank of an attempt has made its first step."""
        if attempt > self._looked and len(self._state.layout) >= FEWEST_NODES:
            self._looked = attempt
            self._later(LOOK_AFTER_S, lambda: self._look(attempt))

    def _look(self, attempt: int) -> None:
        state = self._state
        if state.attempt == attempt and state.is_training and state.memory_at and state.memory_shape != shape(state):
            self._ask(self._learn, samples=0)

    def _learn(self, scene: Scene) -> None:
        state = self._state
        if scene.attempt != state.attempt or not state.is_training or scene.silent_nodes:
            return
        self._tell(MemoryGroups(attempt=scene.attempt, groups=groups_of(scene, state)))


def groups_of(scene: Scene, state: JobState) -> tuple[tuple[int, ...], ...]:
    """Return the places of nodes that share a parallel group: each such set once, without groups of all ranks or of one node."""
    place = [each.group_rank for each in state.layout for _ in range(each.nproc)]
    found: set[tuple[int, ...]] = set()
    for sight in scene.ranks:
        for group in sight.trace.groups if sight.trace is not None else ():
            if len(group.ranks) < len(place) and len(found) < MOST_GROUPS:
                found.add(tuple(sorted({place[rank] for rank in group.ranks if rank < len(place)})))
    return tuple(sorted(each for each in found if len(each) > 1))
