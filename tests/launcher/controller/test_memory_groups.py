"""Which nodes share a parallel group: looked at once for a world of one shape, and told as places of nodes."""

from __future__ import annotations

from collections.abc import Callable

from robust_run.launcher.controller.memory_groups import MemoryGroupsLook
from robust_run.launcher.core.state import JobState, MemoryAddress
from robust_run.launcher.model.events import Event
from robust_run.launcher.model.job import Placement
from robust_run.launcher.model.resume_events import MemoryGroups
from robust_run.tracer.types import Group, RankSight, RankTrace, Scene

PIPELINES, REPLICAS = ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))


class World:
    """A job of four nodes with two ranks each."""

    def __init__(self, nodes: int = 4, *groups: tuple[int, ...], silent: tuple[str, ...] = ()) -> None:
        layout = tuple(
            Placement(node=f"n{place}", group_rank=place, first_rank=2 * place, nproc=2) for place in range(nodes)
        )
        self.state = JobState(phase="running", attempt=0, layout=layout, has_memory=True)
        self.state.memory_at = {"n0": MemoryAddress(host="h", port=1)}
        self.told: list[Event] = []
        self.timers: list[Callable[[], None]] = []
        self.asked = 0
        self.groups, self.silent = groups, silent
        self.look = MemoryGroupsLook(self.state, self._ask, self.told.append, lambda _, call: self.timers.append(call))

    def _ask(self, then: Callable[[Scene], None], *, samples: int) -> bool:
        assert samples == 0, "no process is to be looked at for it"
        self.asked += 1
        sights = tuple(RankSight(rank=rank, node="h", trace=self._trace(rank)) for rank in range(8))
        then(Scene(at_s=0.0, attempt=self.state.attempt, world_size=8, ranks=sights, silent_nodes=self.silent))
        return True

    def _trace(self, rank: int) -> RankTrace:
        own = tuple(Group(name=str(each), ranks=each) for each in self.groups if rank in each)
        return RankTrace(rank=rank, world_size=8, pid=1, steps=1, last_at_s=0.0, blocked_s=0.0, ops=(), groups=own)

    def steps(self) -> None:
        """A rank of the newest attempt has made a step, and time passes."""
        self.look.first_step(self.state.attempt)
        while self.timers:
            self.timers.pop()()


def test_groups_are_told_as_places_of_nodes_each_once() -> None:
    world = World(4, *PIPELINES, *REPLICAS, tuple(range(8)), (0, 1))
    world.steps()
    assert world.told == [MemoryGroups(attempt=0, groups=((0, 1), (0, 2), (1, 3), (2, 3)))]


def test_a_world_of_the_same_shape_is_not_looked_at_again() -> None:
    world = World(4, *PIPELINES)
    world.steps()
    world.state.memory_shape = (2, 2, 2, 2)
    world.state.attempt = 1
    world.steps()
    assert world.asked == 1
    world.state.memory_shape = (2, 2)
    world.state.attempt = 2
    world.steps()
    assert world.asked == 2


def test_nobody_is_asked_where_there_is_nothing_to_choose_or_no_copies_are_kept() -> None:
    few = World(2, *PIPELINES)
    few.steps()
    without = World(4, *PIPELINES)
    without.state.memory_at.clear()
    without.steps()
    over = World(4, *PIPELINES)
    over.look.first_step(0)
    over.state.phase = "ending"
    over.timers.pop()()
    assert (few.asked, without.asked, over.asked) == (0, 0, 0)


def test_half_a_picture_is_none() -> None:
    world = World(4, *PIPELINES, silent=("n3",))
    world.steps()
    assert world.told == []
