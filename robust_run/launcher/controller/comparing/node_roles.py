"""Roles of the nodes of an attempt, as a look at all ranks shows them (`tracer.pace.roles`): only nodes of one role are compared.

It is looked when ranks have made their first steps, and once more if not all of them had called anything by then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from robust_run.launcher.core.membership import name_of
from robust_run.launcher.core.state import JobState
from robust_run.tracer.types import Scene

#: After the first step of a rank: the others have made one, too. Then again after so long, if that showed nothing.
LOOK_AFTER_S, AGAIN_AFTER_S = 5.0, 20.0


class Asks(Protocol):
    """Has all nodes look at their ranks, see `EvidenceCollector.ask`."""

    def __call__(self, then: Callable[[Scene], None], *, samples: int) -> bool:
        """Call `then` with what they see; false: nothing runs."""
        ...


class NodeRolesLook:
    """One controller's."""

    def __init__(self, state: JobState, ask: Asks, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._state, self._ask, self._later = state, ask, later

    def look(self, then: Callable[[int, Mapping[str, str]], None]) -> None:
        """Call with the attempt and the roles of its nodes by name, empty where they are not known, some seconds from now."""
        attempt = self._state.attempt
        self._later(LOOK_AFTER_S, lambda: self._look(attempt, then, is_last=False))

    def _look(self, attempt: int, then: Callable[[int, Mapping[str, str]], None], *, is_last: bool) -> None:
        def learn(scene: Scene) -> None:
            if scene.attempt != attempt or attempt != self._state.attempt:
                return
            roles = {} if scene.silent_nodes else node_roles(scene, self._state)
            if roles or is_last:
                then(attempt, roles)
            else:
                self._later(AGAIN_AFTER_S, lambda: self._look(attempt, then, is_last=True))

        if attempt == self._state.attempt and not self._ask(learn, samples=0):
            then(attempt, {})


def node_roles(scene: Scene, state: JobState) -> dict[str, str]:
    """Return the role of each node by name; empty where it is not known of all. Pure."""
    from robust_run.launcher.model.job import ops_of
    from robust_run.tracer.pace.roles import roles_of

    nodes = {
        name_of(state, place.node): range(place.first_rank, place.first_rank + place.nproc) for place in state.layout
    }
    return roles_of(nodes, [sight.trace for sight in scene.ranks if sight.trace is not None], ops_of(scene.world_size))
