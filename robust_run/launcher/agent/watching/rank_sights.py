"""Sights of one attempt's ranks on this node: looked at when the controller asks, or read from what they left behind.

Imported when it is first asked for. What it reads was written by the user's processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from robust_run.harmless import Harmless
from robust_run.launcher.agent.evidence import end_of, had_ended
from robust_run.launcher.agent.workers.workers import Worker
from robust_run.launcher.model.actions import Collect
from robust_run.launcher.model.job import RankEvidence, Sights
from robust_run.launcher.records.run_directory import RunDirectory
from robust_run.tracer.nccl.types import NcclNote
from robust_run.tracer.sight.targets import Target
from robust_run.tracer.types import FlightSight, RankSight


class RankSights:
    """Looks at the ranks of one attempt."""

    def __init__(
        self,
        attempt: int,
        workers: Sequence[Worker],
        run_directory: RunDirectory,
        harmless: Harmless,
        notes: Callable[[int], tuple[NcclNote, ...]] | None,
        clocks: Callable[[int], FlightSight | None] | None = None,
    ) -> None:
        """`notes`: of a rank, how what NCCL does came to stand still; None: NCCL is not traced. `clocks`: what its flight
        recorder said at regular looks; None: there are none (yet).
        """
        self._attempt, self._workers, self._run_directory = attempt, workers, run_directory
        self._harmless, self._notes, self._clocks = harmless, notes, clocks

    async def collect(self, order: Collect, ras_address: str, deliver: Callable[[Sights], None]) -> None:
        """Look at all ranks, and deliver what is seen. `ras_address`: of NCCL's RAS; empty: it is not asked."""
        from robust_run.tracer.sight.collect import collect
        from robust_run.tracer.sight.ras import heard, with_report

        targets = [self._target(worker) for worker in self._workers]
        sights: tuple[RankSight, ...] = ()
        if not order.samples:
            deliver(Sights(attempt=order.attempt, number=order.number, sights=self._recorded(targets, order)))
            return
        try:
            sights, report = await asyncio.gather(
                collect(targets, samples=order.samples, ops=order.ops, flows=order.flows),
                heard(ras_address, [target.rank for target in targets], order.samples),
            )
            sights = with_report(tuple(self._with_log(self._with_words(sight)) for sight in sights), report)
            deliver(Sights(attempt=order.attempt, number=order.number, sights=sights))
        except Exception as error:
            self._harmless.failed(error)
            deliver(Sights(attempt=order.attempt, number=order.number, sights=()))

    def last(self, ranks: Sequence[RankEvidence], ops: int, flows: int) -> tuple[RankSight, ...]:
        """Return what the rings and traces of an attempt that has ended say, if a rank failed by itself."""
        from robust_run.tracer.sight.collect import dead_sights

        known = {evidence.rank: evidence for evidence in ranks}
        if not any(evidence.exit_code not in (0, None) and evidence.signalled_at_s is None for evidence in ranks):
            return ()
        return dead_sights([self._target(worker, known.get(worker.rank)) for worker in self._workers], ops, flows)

    def _recorded(self, targets: Sequence[Target], order: Collect) -> tuple[RankSight, ...]:
        """Return what is in the ranks' rings: nothing is asked of their processes."""
        from robust_run.tracer.sight.collect import dead_sights

        try:
            return dead_sights(targets, order.ops, 0)
        except Exception as error:
            self._harmless.failed(error)
            return ()

    def _with_words(self, sight: RankSight) -> RankSight:
        """Add what a rank raised whose program has ended while a thread of it keeps the process."""
        from robust_run.tracer.stacks.normal import is_leaving, main_stacks

        stacks = main_stacks(sight)
        if not stacks or not is_leaving(stacks[-1]):
            return sight
        logs = self._run_directory.logs_of(self._attempt, sight.rank)
        if not logs:
            return sight
        from robust_run.health.output import classify

        return msgspec.structs.replace(sight, finding=classify(end_of(f"{logs}/stderr.log"), None))

    def _with_log(self, sight: RankSight) -> RankSight:
        """Add how what NCCL does came to stand still, and what torch's flight recorder said before."""
        if self._clocks is not None:
            sight = msgspec.structs.replace(sight, flight=self._clocks(sight.rank))
        if self._notes is None or sight.nccl is None:
            return sight
        return msgspec.structs.replace(sight, nccl_log=self._notes(sight.rank))

    def _target(self, worker: Worker, evidence: RankEvidence | None = None) -> Target:
        ended = worker.exit_code is not None
        by_itself = ended and (worker.signalled_at_s is None or worker.exited_at_s <= worker.signalled_at_s)
        steps_file = self._run_directory.steps_file(self._attempt, worker.rank)
        return Target(
            rank=worker.rank,
            node="",  # the controller knows what it is called
            pid=worker.pid,
            steps_file=steps_file,
            exit_code=worker.exit_code if by_itself else None,
            ended_at_s=worker.exited_at_s if ended else None,
            finding=evidence.finding if evidence is not None else None,
            had_ended=had_ended(worker, steps_file, evidence) if by_itself else False,
            alive=not ended,
        )
