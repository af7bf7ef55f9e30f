"""A job of several roles as those see it who ask its leader: workers of each other, people of all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from robust_run.clock import Clock
from robust_run.orchestrator.model.names import MemberName
from robust_run.orchestrator.model.spec import RolesSpec
from robust_run.orchestrator.model.state import JobState
from robust_run.orchestrator.people.views.whole import view_of
from robust_run.orchestrator.queue.serving import QueueService
from robust_run.orchestrator.rules.queue_core import counts
from robust_run.orchestrator.rules.waits import QueueNow, chains
from robust_run.roles.view_words import RolesView
from robust_run.roles.words import Member


class Showing:
    """Reads the state, and changes nothing. `node`: where the leader is; `pids`: of launchers, by their run directory's name."""

    def __init__(
        self,
        spec: RolesSpec,
        state: JobState,
        node: str,
        pids: Callable[[], Mapping[str, int]],
        service: QueueService,
        clock: Clock,
    ) -> None:
        self._spec, self._state, self._node, self._pids = spec, state, node, pids
        self._service, self._clock = service, clock

    def known(self) -> dict[str, Member]:
        """Return what workers are told of all members, by name."""
        return {str(name): self.member(name) for name in self._state.members}

    def member(self, name: MemberName) -> Member:
        """Return what workers are told of a member."""
        member = self._state.members[name]
        most = max(member.ready, default=-1) + 1
        return Member(
            role=name.role,
            index=name.index,
            generation=member.generation,
            state=member.standing,
            ready=member.is_ready,
            addresses=tuple(member.ready.get(rank, "") for rank in range(most)),
            nodes=member.nodes,
        )

    def newest(self, name: str) -> tuple[int, int]:
        """Return the latest start of a member: which launcher, and which attempt of it. Raises KeyError."""
        role, _, index = name.rpartition("/")
        member = self._state.members[MemberName(role, int(index))]
        return member.serial, member.attempt

    def standings(self) -> dict[str, str]:
        """Return how each member stands, by name."""
        return {str(name): member.standing for name, member in self._state.members.items()}

    def traffic(self, now_s: float) -> dict[str, QueueNow]:
        """Return who waits at queues, and who fills and empties them."""
        queues = self._service.queues.queues
        return self._service.traffic.now({name: queue.state for name, queue in queues.items()}, now_s)

    def look(self) -> RolesView:
        """Return the job as people are shown it."""
        now_s = self._clock.monotonic_s()
        return view_of(
            self._spec,
            self._state,
            is_led=True,
            pids=self._pids(),
            queues={name: counts(queue.state) for name, queue in self._service.queues.queues.items()},
            idle=self._service.idle.shares(now_s),
            chains=tuple(chains(self.traffic(now_s), now_s, self.standings())),
            node=self._node,
        )
