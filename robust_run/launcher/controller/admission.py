"""Who may join: why an agent is refused that belongs to another job, or takes a place that is taken."""

from __future__ import annotations

from collections.abc import Container

from robust_run.launcher.control.greeting import OTHER_JOB
from robust_run.launcher.control.messages import Hello, JoinRefused
from robust_run.launcher.core.state import JobState
from robust_run.launcher.model.job import JobSpec, ManyNodes


class Admission:
    """What the agents of one job must have in common, and who was given a --node-rank."""

    def __init__(self, spec: JobSpec, many: ManyNodes, run_id: str) -> None:
        self._spec = spec
        self._many = many
        self._run_id = run_id
        self._by_node_rank: dict[int, list[str]] | None = None
        """Agents that were given a --node-rank; None: not collected yet."""

    def refusal(self, hello: Hello, term: int) -> JoinRefused | None:
        """Return why an agent does not belong here, None if it does. `term`: of this controller."""
        if hello.term > term and self._many.controller_standby:
            return JoinRefused(reason=f"this controller has term {term}, a newer one has {hello.term}", final=False)
        named = {self._run_id, self._spec.rdzv_id, ""}
        if hello.job not in named:
            return JoinRefused(
                reason=f"job {hello.job!r} is not the one that runs here, which is {self._spec.rdzv_id!r} "
                f"(--rdzv-id, --run-id); {OTHER_JOB}"
            )
        mine = f"{self._many.fewest}:{self._many.most}"
        if hello.nnodes and hello.nnodes != mine:
            return JoinRefused(
                reason=f"--nnodes {hello.nnodes} on {hello.node.name} and {mine} on the controller's node differ; "
                "give the same everywhere"
            )
        return None

    def taken(self, hello: Hello, state: JobState, connected: Container[str]) -> JoinRefused | None:
        """Return what to say to a second node of the same --node-rank: no, or to wait, if the first may be gone."""
        rank = hello.node.node_rank
        if rank is None or hello.node.id in state.members:
            return None
        if self._by_node_rank is None:
            self._by_node_rank = {}
            for member in state.members.values():
                if member.info.node_rank is not None:
                    self._by_node_rank.setdefault(member.info.node_rank, []).append(member.info.id)
        holders = self._by_node_rank.setdefault(rank, [])
        for member in filter(None, map(state.members.get, holders)):
            if member.present:
                is_leaving = member.info.id in state.told
                return JoinRefused(
                    reason=f"--node-rank {rank} is taken by {member.info.name}; give each node a rank of its own",
                    final=member.info.id in connected and not is_leaving,
                )
        holders.append(hello.node.id)
        return None


def has_stale(state: JobState, node: str, attempt: int) -> bool:
    """Whether an agent that comes back must end the attempt that it was given up with.

    It has done so by itself, unless its machine was suspended, clocks and all: then it does not know how long it was away.
    """
    if not 0 <= attempt <= state.attempt or node in state.strays:
        return False
    return attempt < state.attempt or node not in state.unended
