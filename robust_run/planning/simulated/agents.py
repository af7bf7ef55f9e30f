"""Agents of a simulated job: they carry out the core's orders, all nodes that nothing happened to as one batch."""

from __future__ import annotations

from collections.abc import Sequence

from robust_run.launcher.model.actions import EndAttempt
from robust_run.launcher.model.code_events import StepsSurvived
from robust_run.launcher.model.events import AttemptEnded, AttemptStarted
from robust_run.launcher.model.job import Placement, Progress, RankEvidence
from robust_run.planning.course import AttemptCourse
from robust_run.planning.simulated.hosts import share_of
from robust_run.planning.simulated.job import SimulatedJob
from robust_run.planning.simulated.saved import InMemory, kept_at

PROBATION_STEPS = 20
SIGTERM = 15


class Agents:
    """All agents of a job."""

    def __init__(self, world: SimulatedJob) -> None:
        self._world = world
        self._launch_s = self._load_s = self._end_s = 0.0
        self._ends_at_s: float | None = None
        """When the newest attempt is over on the slowest node; None: it was not told to end."""
        self._began_end_s = 0.0
        self._progress = Progress()
        self._slowest = ""
        self._slows: list[tuple[float, float]] = []
        """Since when a node of the newest attempt is slow, and by how much."""

    def begin(self) -> None:
        """An attempt is opened: how long its phases take is drawn, whatever comes of it."""
        world = self._world
        times, rng = world.plan.times, world.rng("attempt", world.index)
        is_warm = world.plan.uses.warm and world.state.attempt > 0
        warm_s, cold_s = times.launch.draw(rng), times.cold_launch.draw(rng)
        self._launch_s = warm_s if is_warm else cold_s
        self._end_s, self._load_s = times.end.draw(rng), times.connect.draw(rng)
        self._ends_at_s, self._slows = None, []
        for node in world.state.places:
            world.by_agent[node].ended = None

    # --- start

    def start(self) -> None:
        """All workers are started, then load what they begin from, then train."""
        world, index = self._world, self._world.index
        layout, began_s = world.state.layout, world.now_s
        if world.is_single:
            for each in layout[1:]:
                share = share_of(world.seed, index, each.node, "start")
                world.at(began_s + share * self._launch_s, lambda each=each: self._say_started(index, each))  # type: ignore[misc]
        world.after(self._launch_s, lambda: self._started(index, layout[0]))

    def _say_started(self, index: int, each: Placement) -> None:
        world = self._world
        if world.is_in(index) and each.node in world.by_agent:
            number = world.state.attempt
            world.feed(AttemptStarted(attempt=number, node=each.node, pids=(1,) * each.nproc, port=1))

    def _started(self, index: int, slowest: Placement) -> None:
        world = self._world
        if not world.is_in(index):
            return
        self._say_started(index, slowest)
        attempt, times = world.attempt, world.plan.times
        attempt.started_s = world.now_s
        rng = world.rng("load", index)
        memory_s, storage_s = times.load_memory.draw(rng), times.load_storage.draw(rng)
        by_source = {"": 0.0, "storage": storage_s}
        load_s = self._load_s + by_source.get(attempt.source, memory_s)
        world.after(load_s, lambda: self._first_step(index))
        world.strikes.started(index)

    def _first_step(self, index: int) -> None:
        world = self._world
        if not world.is_in(index) or world.attempt.onset_s is not None:
            return
        world.attempt.first_step_s = world.now_s
        world.strikes.trains(index)
        code = world.state.code
        if code.records and code.records[code.running - 1].fate == "probation":
            world.after(PROBATION_STEPS * world.plan.times.step, lambda: self._survived(index))

    def _survived(self, index: int) -> None:
        """The code has proven itself on all nodes."""
        world = self._world
        if not world.is_in(index) or world.attempt.onset_s is not None:
            return
        for each in world.state.layout:
            if each.node in world.by_agent:
                world.feed(
                    StepsSurvived(
                        attempt=world.state.attempt,
                        node=each.node,
                        steps=PROBATION_STEPS,
                        step_s=world.plan.times.step,
                    )
                )

    def is_slow(self, share: float) -> None:
        """A node of the attempt that trains is slower than its peers from now on."""
        self._slows.append((self._world.now_s, share))

    def slow_down(self, attempt: AttemptCourse) -> None:
        """Reckon what slow nodes took of an attempt that is over."""
        end_s = attempt.stopped_s
        end_s = self._world.now_s if end_s is None else end_s
        attempt.slow = sum(max(end_s - since_s, 0.0) * share for since_s, share in self._slows)
        self._slows = []

    # --- end

    def end(self, order: EndAttempt) -> None:
        """All workers are ended; the slowest node says so last."""
        world, index = self._world, self._world.index
        if self._ends_at_s is not None or order.only:
            return
        attempt, layout = world.attempt, world.state.layout
        attempt.told_s = self._began_end_s = world.now_s
        self._ends_at_s = world.now_s + self._end_s
        at_s = kept_at(attempt, world.plan.saving, world.plan.times) if world.plan.uses.memory else None
        if at_s is not None:
            peers = world.state.memory_peers
            world.memory = InMemory(at_s=at_s, peers={each.node: peers.get(each.node, "") for each in layout})
        self._progress = self._progress_of(attempt)
        there = [each for each in layout if each.node in world.by_agent and each.node in world.state.unended]
        self._slowest = there[0].node if there else ""
        if world.is_single:
            for each in there:
                world.at(self._ends_s(index, each), lambda each=each: self._say_ended(index, each))  # type: ignore[misc]
        else:
            world.at(self._ends_at_s, lambda: self._all_ended(index, there))

    def _progress_of(self, attempt: AttemptCourse) -> Progress:
        began_s = attempt.started_s if attempt.started_s is not None else attempt.opened_s
        first_s, stopped_s = attempt.first_step_s, attempt.stopped_s
        trained_s = stopped_s - first_s if first_s is not None and stopped_s is not None else 0.0
        steps = max(int(trained_s / self._world.plan.times.step), 0)
        return Progress(lived_s=self._began_end_s - began_s, steps=steps)

    def _ends_s(self, index: int, each: Placement) -> float:
        if each.node == self._slowest and self._ends_at_s is not None:
            return self._ends_at_s
        return self._began_end_s + share_of(self._world.seed, index, each.node, "end") * self._end_s

    def _all_ended(self, index: int, there: Sequence[Placement]) -> None:
        for each in (*there[1:], there[0]) if there else ():
            self._say_ended(index, each)

    def settle(self, node: str, *, goes: bool = False) -> None:
        """Something is about to happen to this node alone: what it has said by now is told before. `goes`: it ends no more."""
        world, index = self._world, self._world.index
        place = world.state.places.get(node)
        if world.is_single or self._ends_at_s is None or place is None:
            return
        placement = world.state.layout[place]
        if self._ends_s(index, placement) <= world.now_s:
            self._say_ended(index, placement)
        elif goes and node == self._slowest:  # it is not waited for: the next slowest is the last
            left = [each for each in world.state.layout if each.node in world.state.unended and each.node != node]
            left.sort(key=lambda each: -self._ends_s(index, each))
            if left:
                world.at(self._ends_s(index, left[0]), lambda: self._all_ended(index, left))

    def _say_ended(self, index: int, each: Placement) -> None:
        world = self._world
        host = world.by_agent.get(each.node)
        if index != world.index or host is None or each.node not in world.state.unended:
            return
        world.feed(
            AttemptEnded(
                attempt=world.state.attempt,
                node=each.node,
                started_at_s=self._began_end_s - self._progress.lived_s,
                ranks=self._ranks(each, host.ended),
                progress=self._progress,
            )
        )

    def _ranks(self, each: Placement, own: RankEvidence | None) -> tuple[RankEvidence, ...]:
        if not self._world.is_single:
            return (own,) if own is not None else ()
        told_s = self._began_end_s
        return tuple(
            own
            if own is not None and own.rank == rank
            else RankEvidence(rank=rank, pid=1, exit_code=-SIGTERM, exited_at_s=told_s + 1.0, signalled_at_s=told_s)
            for rank in range(each.first_rank, each.first_rank + each.nproc)
        )
